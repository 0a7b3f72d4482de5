//! Prints the records of the kernel programs as they come: a look at the wire, for those who work on it.

use obi::capture::event::{Event, decode};
use obi::capture::hook_set::{HookSet, Preemption};
use obi::capture::kernel_types::KernelTypes;
use obi::capture::program::{Programs, Settings};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let settings = Settings {
        self_tgid: std::process::id(),
        ring_bytes: 8 << 20,
        head_limit: 8192,
        tick_ns: 4_000_000,
        tells_given: true,
        follows_databases: false,
        preemption: Preemption::None,
        tls: false,
        waiting: false,
        statistics: true,
    };
    let mut programs = Programs::load(HookSet::Socket, &settings, &KernelTypes::read(None)?)?;
    let mut maps = programs.start()?;
    for (name, reason) in programs.skipped() {
        eprintln!("skipped {name}: {reason}");
    }
    loop {
        std::thread::sleep(std::time::Duration::from_millis(100));
        while let Some(record) = maps.events.next() {
            match decode(&record) {
                Ok(Event::Head(head, payload)) => println!(
                    "head {:x} tgid {} side {} message {} flags {:#x} position {} wait {} body {} {:?}",
                    head.header.exchange,
                    head.header.tgid,
                    head.side,
                    head.message,
                    head.header.flags,
                    head.position,
                    head.started.saturating_sub(head.arrival),
                    head.body_bytes,
                    String::from_utf8_lossy(payload)
                ),
                other => println!("{other:?}"),
            }
        }
        for entry in maps.tally.iter().flatten() {
            println!("tally {:?} {}", entry.0.0, entry.1);
        }
    }
}

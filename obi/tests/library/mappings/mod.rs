//! Who maps what, with real programs: what they execute is found as of the time of a sample, through exec, fork,
//! dlopen, containers, deleted and replaced files, and after the end.
//!
//! In: small C programs that print where their own code is. Out: failure when an address leads elsewhere. Needs root.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking; helpers beside `#[test]` functions are not exempt"
)]

mod program;

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;

use obi::capture::mapping::ExecutableFile;
use obi::capture::mapping::backing::Kind;
use obi::capture::mapping::resolver::Resolved;

use self::program::{Agent, Folder, Program, monotonic};

/// What `nm` says of a symbol.
fn symbol(path: &str, name: &str) -> u64 {
    let output = Command::new("nm").arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.split(' ').nth(2) == Some(name)).unwrap();
    u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
}

/// The file that an address leads to is this one, and the address in it is that of the symbol.
fn check(agent: &mut Agent, reported: program::Reported, path: &str, name: &str) -> Arc<ExecutableFile> {
    let (place, file) = agent.file(reported);
    assert_eq!(place.elf_address(), Some(symbol(path, name)), "{path}");
    file
}

#[test]
fn programs_that_run_already_and_such_that_begin_are_found() {
    let folder = Folder::new();
    // Other tests run the same program: this one is another build.
    let path = folder.compile("program", "-DPADDING=23456");
    let mut before = Program::start(&path);
    let reported_before = before.reported();
    let mut agent = Agent::start();
    let mut after = Program::start(&path);
    let reported = after.reported();
    let file = check(&mut agent, reported_before, &path, "here");
    assert_eq!(file.identity.inode, fs::metadata(&path).unwrap().ino());
    assert!(Arc::ptr_eq(&file, &check(&mut agent, reported, &path, "here")));
    // Its end changes nothing, for a while.
    after.end();
    agent.await_end(reported.tgid);
    assert!(Arc::ptr_eq(&file, &check(&mut agent, reported, &path, "here")));
}

#[test]
fn an_exec_is_reported_from_what_ran_before_by_time() {
    let folder = Folder::new();
    let (first, second) =
        (folder.compile("first", "-no-pie"), folder.compile("second", "-no-pie -DPADDING=5000"));
    let mut agent = Agent::start();
    let mut program = Program::start(&first);
    let before = program.reported();
    program.say(&format!("exec {second}"));
    let after = program.reported();
    assert_eq!(before.tgid, after.tgid);
    check(&mut agent, after, &second, "here");
    check(&mut agent, before, &first, "here");
}

#[test]
fn a_fork_has_what_its_parent_had() {
    let folder = Folder::new();
    let path = folder.compile("program", "");
    let mut agent = Agent::start();
    let mut program = Program::start(&path);
    let parent = program.reported();
    program.say("fork");
    let child = program.reported();
    assert_ne!(parent.tgid, child.tgid);
    check(&mut agent, child, &path, "here");
    check(&mut agent, parent, &path, "here");
}

#[test]
fn libraries_that_follow_each_other_at_an_address_are_reported_apart_by_time() {
    let folder = Folder::new();
    let path = folder.compile("program", "-ldl");
    let libraries = [folder.library("a", ""), folder.library("b", "-DPADDING=3000")];
    let mut agent = Agent::start();
    let mut program = Program::start(&path);
    program.reported();
    let mut reported = Vec::new();
    for library in &libraries {
        program.say(&format!("open {library}"));
        reported.push(program.reported());
    }
    // Whether the loader takes the same address again is its affair; that of the mapping is fixed by the test.
    program.say(&format!("over {} {}", libraries[0], libraries[1]));
    let (first, second) = (program.reported(), program.reported());
    assert_eq!(first.address, second.address);
    let inode = |path: &str| fs::metadata(path).unwrap().ino();
    for (reported, library) in reported.into_iter().zip(&libraries) {
        check(&mut agent, reported, library, "in_library");
    }
    for (reported, library) in [(first, &libraries[0]), (second, &libraries[1])] {
        assert_eq!(agent.file(reported).1.identity.inode, inode(library), "{library}");
    }
}

#[test]
fn files_that_are_deleted_or_replaced_stay_readable() {
    let folder = Folder::new();
    let (path, other) = (folder.compile("program", ""), folder.compile("other", "-DPADDING=7000"));
    // Before the agent starts: its name is gone, and another file has it.
    let copy = folder.copy(&path, "replaced");
    let mut before = Program::start(&copy);
    let reported_before = before.reported();
    fs::remove_file(&copy).unwrap();
    fs::copy(&other, &copy).unwrap();
    let mut agent = Agent::start();
    let content = |agent: &mut Agent, reported| {
        let file = agent.file(reported).1;
        fs::read(ExecutableFile::link(&file.handle().unwrap())).unwrap()
    };
    assert!(content(&mut agent, reported_before) == fs::read(&path).unwrap());
    check(&mut agent, reported_before, &path, "here");
    // After.
    let copy = folder.copy(&path, "deleted");
    let mut after = Program::start(&copy);
    let reported = after.reported();
    check(&mut agent, reported, &path, "here");
    fs::remove_file(&copy).unwrap();
    after.end();
    agent.await_end(reported.tgid);
    assert!(content(&mut agent, reported) == fs::read(&path).unwrap());
    // A file that is written over in place, and runs again.
    let copy = folder.copy(&path, "written over");
    let mut first = Program::start(&copy);
    let reported_first = first.reported();
    check(&mut agent, reported_first, &path, "here");
    first.end();
    program::patiently(|| fs::copy(&other, &copy).is_ok());
    let mut second = Program::start(&copy);
    let reported = second.reported();
    agent.until(|agent| (agent.file(reported).0.elf_address() == Some(symbol(&other, "here"))).then_some(()));
    check(&mut agent, reported, &other, "here");
}

#[test]
fn other_mount_namespaces_and_roots_are_looked_into() {
    let folder = Folder::new();
    let path = folder.compile("program", "-static -DSTATIC");
    let other = folder.compile("other", "-static -DSTATIC -DPADDING=9000");
    // The same path inside and outside means different files.
    let root = folder.folder("root");
    fs::copy(&path, format!("{root}/program")).unwrap();
    let outside = "/program-of-obi-mappings-test";
    let mut agent = Agent::start();
    let mut program = Program::of(Command::new("unshare").args(["-m", "chroot", &root, "/program"]));
    let reported = program.reported();
    let file = check(&mut agent, reported, &path, "here");
    assert_eq!(&*file.path, "/program");
    assert!(!fs::exists(outside).unwrap());
    // Without its root, as a container of its own mounts sees it.
    let script = format!("mount --bind {other} {path} && exec {path}");
    let mut program = Program::of(Command::new("unshare").args(["-m", "sh", "-c", &script]));
    let reported = program.reported();
    check(&mut agent, reported, &other, "here");
}

#[test]
fn programs_of_other_users_are_looked_into() {
    let folder = Folder::new();
    let path = folder.compile("program", "");
    let mut agent = Agent::start();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o4711)).unwrap();
    let mut program = Program::of(Command::new(&path).uid(65534).gid(65534));
    let reported = program.reported();
    check(&mut agent, reported, &path, "here");
}

#[test]
fn a_process_that_has_gone_before_anybody_looks_is_known_by_its_file() {
    let folder = Folder::new();
    let path = folder.compile("program", "");
    let mut agent = Agent::start();
    let reported: Vec<_> = (0..3)
        .map(|_| {
            let mut program = Program::start(&path);
            let reported = program.reported();
            program.end();
            reported
        })
        .collect();
    for reported in reported {
        check(&mut agent, reported, &path, "here");
    }
}

#[test]
fn a_process_goes_on_without_its_first_thread() {
    let folder = Folder::new();
    let path = folder.compile("program", "-pthread -ldl");
    let library = folder.library("a", "");
    let mut agent = Agent::start();
    let mut program = Program::start(&path);
    program.reported();
    program.say("thread");
    let before = program.reported();
    agent.await_end(before.tgid);
    program.say(&format!("open {library}"));
    let after = program.reported();
    assert_eq!(before.tgid, after.tgid);
    check(&mut agent, after, &library, "in_library");
    check(&mut agent, before, &path, "here");
}

#[test]
fn the_kernels_code_in_a_process_and_code_made_at_run_time_are_reported() {
    let folder = Folder::new();
    let path = folder.compile("program", "");
    let mut agent = Agent::start();
    let mut program = Program::start(&path);
    program.reported();
    program.say("vdso");
    let reported = program.reported();
    let (place, file) = agent.file(reported);
    assert_eq!(place.mapping.backing.kind, Kind::Vdso);
    assert_eq!((&*file.path, place.elf_address()), ("[vdso]", Some(reported.address - place.mapping.start)));
    assert!(!file.build_ids.gnu.is_empty());
    program.say("anonymous");
    let reported = program.reported();
    let place = agent.place(reported);
    assert!(place.mapping.backing.is_made_at_run_time());
    assert!(place.mapping.file().is_none());
    // Nothing is at 1.
    let nowhere = program::Reported { address: 1, ..reported };
    agent.until(|agent| matches!(agent.resolve(nowhere), Resolved::Nowhere).then_some(()));
}

#[test]
fn what_is_sampled_is_reported_to_the_kernel_with_tables() {
    let folder = Folder::new();
    let path = folder.compile("program", "");
    let mut program = Program::start(&path);
    let reported = program.reported();
    let mut agent = Agent::start();
    assert!(agent.resolver.blocks().get(reported.tgid, 0).is_none(), "it was not sampled");
    agent.sample(reported);
    agent.place(reported);
    agent.until(|agent| {
        let block = agent.resolver.blocks().get(reported.tgid, 0)?;
        let entries = &block.entry[..block.n_entries as usize];
        let own = entries.iter().find(|entry| (entry.start..entry.end).contains(&reported.address))?;
        // Its own code, libc's, the loader's and the kernel's.
        (own.table > 0 && entries.iter().filter(|entry| entry.table > 0).count() >= 4).then_some(())
    });
    let counts = agent.resolver.counts();
    assert!(counts.table_bytes > 0 && counts.mapping_bytes >= 2048 && counts.table_files >= 4, "{counts:?}");
    program.end();
    agent.until(|agent| agent.resolver.blocks().get(reported.tgid, 0).is_none().then_some(()));
    // The same program, started again, is known before it is sampled.
    let mut again = Program::start(&path);
    let reported = again.reported();
    agent.until(|agent| agent.resolver.blocks().get(reported.tgid, 0));
}

/// In a thread of its own, since there is no way back.
#[test]
fn what_is_kept_after_the_start_is_enough() {
    let folder = Folder::new();
    let path = folder.compile("program", "-DPADDING=34567");
    let library = folder.library("a", "");
    let work = move || {
        let mut agent = Agent::start_with(|| {
            let kept = obi::privilege::reduce(false, || Ok::<_, std::io::Error>(())).unwrap().to_string();
            assert_eq!(kept, "CAP_CHECKPOINT_RESTORE, CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE");
        });
        let mut program = Program::start(&path);
        let reported = program.reported();
        check(&mut agent, reported, &path, "here");
        program.say(&format!("open {library}"));
        let in_library = program.reported();
        check(&mut agent, in_library, &library, "in_library");
        program.say("vdso");
        let in_vdso = program.reported();
        agent.file(in_vdso);
        // A deleted executable that began after the start.
        let copy = folder.copy(&path, "deleted");
        let mut deleted = Program::start(&copy);
        let reported_deleted = deleted.reported();
        fs::remove_file(&copy).unwrap();
        check(&mut agent, reported_deleted, &path, "here");
        agent.sample(reported);
        agent.until(|agent| {
            let block = agent.resolver.blocks().get(reported.tgid, 0)?;
            let entries = &block.entry[..block.n_entries as usize];
            (entries.iter().filter(|entry| entry.table > 0).count() >= 4).then_some(())
        });
    };
    std::thread::spawn(work).join().unwrap();
}

#[test]
fn everything_that_runs_is_known() {
    let mut agent = Agent::start();
    let mut missing = Vec::new();
    let mut n_found = 0;
    for tgid in program::running() {
        let Ok(text) = fs::read(format!("/proc/{tgid}/maps")) else { continue };
        for mapped in obi::capture::mapping::listing::executed(&text) {
            let reported = program::Reported { tgid, address: mapped.start, time: monotonic() };
            match agent.settled(reported) {
                // The loader maps a library whole and data over its end, which the side-band does not report.
                Resolved::Mapped(place) if place.mapping.end >= mapped.end => n_found += 1,
                // It may have ended or changed meanwhile.
                other => {
                    let now = fs::read(format!("/proc/{tgid}/maps")).unwrap_or_default();
                    if now == text {
                        missing.push(format!("{tgid} {:#x} {}: {other:?}", mapped.start, mapped.path));
                    }
                }
            }
        }
    }
    assert!(missing.is_empty(), "{} of {}: {missing:#?}", missing.len(), n_found + missing.len());
    assert!(n_found > 10);
    eprintln!("{n_found} mappings, {:?}", agent.resolver.counts());
}

#[test]
fn files_are_let_go_when_nobody_maps_them() {
    let folder = Folder::new();
    // Other tests run the same program: this one is another build.
    let path = folder.compile("program", "-DPADDING=12345");
    let mut agent = Agent::start();
    let mut program = Program::start(&path);
    let reported = program.reported();
    let file = check(&mut agent, reported, &path, "here");
    program.end();
    agent.until(|agent| agent.released.contains(&file.id).then_some(()));
    assert!(file.handle().is_none());
    // What runs on is held.
    let held: HashSet<u64> = agent.released.iter().copied().collect();
    let own =
        program::Reported { tgid: std::process::id(), address: check as *const () as u64, time: monotonic() };
    let own = agent.file(own).1;
    assert!(own.handle().is_some() && !held.contains(&own.id));
    // And it comes back.
    let mut program = Program::start(&path);
    let reported = program.reported();
    assert!(check(&mut agent, reported, &path, "here").handle().is_some());
}

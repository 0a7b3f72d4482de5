//! A network that fails: bytes between two sockets, as a fault allows.
//!
//! In: where to forward to, a fault that can be changed. Out: an address. Refuses to know what passes.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

/// What happens to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// They pass.
    None,
    /// The connection is reset (RST) when some of the request have passed.
    Reset,
    /// Nothing passes any more, and neither end learns it.
    Stall,
    /// Some bytes of the answer pass each second.
    Drip,
}

impl Fault {
    const ALL: [Self; 4] = [Self::None, Self::Reset, Self::Stall, Self::Drip];
}

/// A running proxy. Dropping it ends it.
#[derive(Debug)]
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    fault: Arc<AtomicU8>,
    ended: Arc<AtomicBool>,
}

/// Bytes of a request that pass before a reset.
const BEFORE_RESET: usize = 1_000;
/// Between two bytes that drip.
const DRIP: Duration = Duration::from_millis(200);
/// How often a thread looks whether the proxy has ended.
const LOOK: Duration = Duration::from_millis(20);

impl Proxy {
    /// Starts it on a free port.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(target: SocketAddr, fault: Fault) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let fault = Arc::new(AtomicU8::new(fault as u8));
        let ended = Arc::new(AtomicBool::new(false));
        let (at, end) = (Arc::clone(&fault), Arc::clone(&ended));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(server) = TcpStream::connect(target) else { continue };
                let pair = [(&client, &server), (&server, &client)];
                for (number, (from, to)) in pair.into_iter().enumerate() {
                    let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
                    let way = Way { from, to, is_answer: number == 1, fault: at.clone(), ended: end.clone() };
                    thread::spawn(move || way.pass());
                }
            }
        });
        Ok(Self { address, fault, ended })
    }

    /// Changes what happens, also on connections that exist.
    pub fn set(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes the one who accepts.
        drop(TcpStream::connect(self.address));
    }
}

/// One direction of one connection.
struct Way {
    from: TcpStream,
    to: TcpStream,
    is_answer: bool,
    fault: Arc<AtomicU8>,
    ended: Arc<AtomicBool>,
}

impl Way {
    fn pass(mut self) {
        let mut buffer = vec![0; 64 << 10];
        let mut n_passed = 0;
        if self.from.set_read_timeout(Some(LOOK)).is_err() {
            return;
        }
        loop {
            if self.ended.load(Ordering::Relaxed) {
                break;
            }
            let fault = Fault::ALL[usize::from(self.fault.load(Ordering::Relaxed))];
            if fault == Fault::Stall {
                thread::sleep(LOOK);
                continue;
            }
            let n = match self.from.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(_) => break,
            };
            n_passed += n;
            let passed = match fault {
                Fault::Reset if !self.is_answer && n_passed > BEFORE_RESET => {
                    for side in [&self.from, &self.to] {
                        // Without lingering, closing is a reset.
                        let _ = set_socket_linger(side, Some(Duration::ZERO));
                    }
                    Err(std::io::ErrorKind::ConnectionReset.into())
                }
                Fault::Drip if self.is_answer => buffer[..n].iter().try_for_each(|byte| {
                    thread::sleep(DRIP);
                    self.to.write_all(&[*byte])
                }),
                _ => self.to.write_all(&buffer[..n]),
            };
            if passed.is_err() {
                break;
            }
        }
        for side in [&self.from, &self.to] {
            let _ = side.shutdown(Shutdown::Both);
        }
    }
}

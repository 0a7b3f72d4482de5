//! One listening socket.
//!
//! In: an address. Out: accepted [`Stream`]s. Refuses to know HTTP.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, bind, getsockname, listen, sockopt};

use super::Stream;
use super::stream::socket_for;
use crate::plan::Address;

const BACKLOG: i32 = 1024;

/// A listening socket, TCP or unix.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    is_tcp: bool,
}

impl Listener {
    /// Listens at `address` (TCP port 0: any free one), sharing the port with others when `reuse_port`.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn bind(address: &Address, reuse_port: bool) -> io::Result<Self> {
        let socket = socket_for(address)?;
        match address {
            Address::Tcp(address) | Address::Multipath(address) => {
                sockopt::set_socket_reuseaddr(&socket, true)?;
                sockopt::set_socket_reuseport(&socket, reuse_port)?;
                bind(&socket, address)?;
            }
            Address::Unix(path) => bind(&socket, &SocketAddrUnix::new(path)?)?,
        }
        listen(&socket, BACKLOG)?;
        Ok(Self { socket, is_tcp: !matches!(address, Address::Unix(_)) })
    }

    /// Port that is listened on; 0 for unix sockets.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn port(&self) -> io::Result<u16> {
        if !self.is_tcp {
            return Ok(0);
        }
        let address = SocketAddr::try_from(getsockname(&self.socket)?)?;
        Ok(address.port())
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn accept(&self) -> io::Result<Stream> {
        Stream::from_socket(accept_with(&self.socket, SocketFlags::CLOEXEC)?, self.is_tcp)
    }
}

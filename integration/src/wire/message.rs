//! Heads and bodies over a [`Stream`].
//!
//! In: a stream and the system calls to use. Out: head bytes and body lengths. Parses framing, nothing more:
//! refuses to know methods, statuses and what a body means.

use std::io;

use super::{Outgoing, ReadMode, Stream, WriteMode, monotonic_ns};

/// A head longer than this is an error: no workload sends one.
const HEAD_LIMIT: usize = 1 << 20;
const READ_BYTES: usize = 16 * 1024;

/// A body, or what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    /// Bytes without chunk framing.
    pub bytes: u64,
    /// Why it is not whole.
    pub broken: Option<String>,
}

impl Body {
    fn new(bytes: u64, result: io::Result<()>) -> Self {
        Self { bytes, broken: result.err().map(|error| error.to_string()) }
    }
}

/// One connection with what was read ahead.
#[derive(Debug)]
pub struct Connection {
    /// The socket.
    pub stream: Stream,
    reads: Vec<ReadMode>,
    writes: Vec<WriteMode>,
    rng: fastrand::Rng,
    buffer: Vec<u8>,
    consumed: usize,
    /// When the bytes at the front of the buffer were read.
    read_ns: u64,
}

impl Connection {
    /// A connection that reads and writes in random turns by `reads` and `writes` (not empty).
    #[must_use]
    pub fn new(stream: Stream, reads: &[ReadMode], writes: &[WriteMode], seed: u64) -> Self {
        Self {
            stream,
            reads: reads.to_vec(),
            writes: writes.to_vec(),
            rng: fastrand::Rng::with_seed(seed),
            buffer: Vec::new(),
            consumed: 0,
            read_ns: 0,
        }
    }

    /// Whether bytes of the next message are here already.
    #[must_use]
    pub fn has_buffered(&self) -> bool {
        self.consumed < self.buffer.len()
    }

    /// The next head with its empty line, and when its first byte was read (monotonic ns); `None` at an orderly end.
    ///
    /// # Errors
    /// When the connection breaks or ends inside the head.
    pub fn head(&mut self) -> io::Result<Option<(Vec<u8>, u64)>> {
        let mut searched = 0;
        let mut begun = self.read_ns;
        loop {
            let bytes = &self.buffer[self.consumed..];
            if let Some(end) = find(bytes, b"\r\n\r\n", searched) {
                let head = bytes[..end + 4].to_vec();
                self.consumed += end + 4;
                return Ok(Some((head, begun)));
            }
            searched = bytes.len().saturating_sub(3);
            let was_empty = bytes.is_empty();
            if bytes.len() > HEAD_LIMIT {
                return Err(io::Error::other(format!("head of more than {HEAD_LIMIT} bytes")));
            }
            match self.fill()? {
                0 if was_empty => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ if was_empty => begun = self.read_ns,
                _ => {}
            }
        }
    }

    /// A body of a known length.
    pub fn length_body(&mut self, length: u64) -> Body {
        let mut taken = 0;
        let result = self.take(length, &mut taken);
        Body::new(taken, result)
    }

    /// A chunked body with its trailers.
    pub fn chunked_body(&mut self) -> Body {
        let mut taken = 0;
        let result = self.chunks(&mut taken);
        Body::new(taken, result)
    }

    /// A body that ends with the connection.
    pub fn rest(&mut self) -> Body {
        let mut taken = (self.buffer.len() - self.consumed) as u64;
        self.consumed = self.buffer.len();
        loop {
            match self.discard(usize::MAX) {
                Ok(0) => return Body::new(taken, Ok(())),
                Ok(more) => taken += more as u64,
                Err(error) => return Body::new(taken, Err(error)),
            }
        }
    }

    /// Reads until at least `count` unconsumed bytes are here.
    ///
    /// # Errors
    /// When the connection breaks or ends first.
    pub fn await_bytes(&mut self, count: u64) -> io::Result<()> {
        while ((self.buffer.len() - self.consumed) as u64) < count {
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Exactly `count` bytes, whatever they are.
    ///
    /// # Errors
    /// When the connection breaks or ends first.
    pub fn bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        self.await_bytes(count as u64)?;
        self.consumed += count;
        Ok(self.buffer[self.consumed - count..self.consumed].to_vec())
    }

    /// Writes all pieces by one of the connection's ways.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn write(&mut self, pieces: &[Outgoing]) -> io::Result<()> {
        let mode = self.rng.choice(&self.writes).copied().unwrap_or(WriteMode::Write);
        self.stream.write_all(mode, pieces, &mut self.rng)
    }

    fn chunks(&mut self, taken: &mut u64) -> io::Result<()> {
        loop {
            let line = self.line()?;
            let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
            let size = std::str::from_utf8(digits)
                .ok()
                .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
                .ok_or_else(|| io::Error::other(format!("bad chunk size {}", digits.escape_ascii())))?;
            if size == 0 {
                while !self.line()?.is_empty() {}
                return Ok(());
            }
            self.take(size, taken)?;
            self.line()?;
        }
    }

    /// The next line without its end.
    fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let bytes = &self.buffer[self.consumed..];
            if let Some(end) = find(bytes, b"\r\n", 0) {
                let line = bytes[..end].to_vec();
                self.consumed += end + 2;
                return Ok(line);
            }
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn take(&mut self, length: u64, taken: &mut u64) -> io::Result<()> {
        let here = (self.buffer.len() - self.consumed) as u64;
        let mut left = length;
        let buffered = here.min(left);
        self.consumed += usize::try_from(buffered).expect("no more than what is buffered");
        *taken += buffered;
        left -= buffered;
        while left > 0 {
            let got = self.discard(usize::try_from(left).unwrap_or(usize::MAX))? as u64;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            *taken += got;
            left -= got;
        }
        Ok(())
    }

    fn discard(&mut self, most: usize) -> io::Result<usize> {
        // A size that is not known must not be waited for.
        let mode = match self.read_mode() {
            ReadMode::WaitAll if most == usize::MAX => ReadMode::Recv,
            // Byte-sized reads are for heads; a large body would take for ever.
            ReadMode::Tiny if most > 4096 => ReadMode::Read,
            mode => mode,
        };
        self.stream.discard(mode, most, &mut self.rng)
    }

    fn fill(&mut self) -> io::Result<usize> {
        if self.consumed == self.buffer.len() {
            self.buffer.clear();
            self.consumed = 0;
        }
        let held = self.buffer.len();
        self.buffer.resize(held + READ_BYTES, 0);
        let mode = self.read_mode();
        let result = self.stream.read(mode, &mut self.buffer[held..], &mut self.rng);
        self.read_ns = monotonic_ns();
        self.buffer.truncate(held + result.as_ref().map_or(0, |count| *count));
        result
    }

    fn read_mode(&mut self) -> ReadMode {
        self.rng.choice(&self.reads).copied().unwrap_or(ReadMode::Read)
    }
}

/// Where `needle` begins in `bytes`, at `from` or later.
fn find(bytes: &[u8], needle: &[u8], from: usize) -> Option<usize> {
    let from = from.min(bytes.len());
    bytes[from..].windows(needle.len()).position(|window| window == needle).map(|at| at + from)
}

//! Messages out of a stream of bytes: each has its length before it.
//!
//! In: bytes, cut anywhere. Out: one message after the other. Refuses to know what a message says.

use super::Error;

/// Longest message that is taken. The largest object that a cluster's store takes has 1.5 MiB.
pub const MESSAGE_BYTES: usize = 4 << 20;

/// What stands before a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefix {
    /// Four bytes of length: the API server's watch.
    Length,
    /// A byte that says whether it is compressed, four bytes of length: gRPC.
    Grpc,
}

impl Prefix {
    fn bytes(self) -> usize {
        match self {
            Self::Length => 4,
            Self::Grpc => 5,
        }
    }
}

/// Bytes that have come and are no whole message yet.
#[derive(Debug)]
pub struct Frames {
    prefix: Prefix,
    held: Vec<u8>,
    /// Where the next message begins.
    at: usize,
}

impl Frames {
    /// Nothing has come yet.
    #[must_use]
    pub fn new(prefix: Prefix) -> Self {
        Self { prefix, held: Vec::new(), at: 0 }
    }

    /// More has come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.drain(..self.at);
        self.at = 0;
        self.held.extend_from_slice(bytes);
    }

    /// The next message; `None` when that has not come whole.
    ///
    /// # Errors
    /// When it is compressed or too long: nothing behind it can be found.
    pub fn message(&mut self) -> Result<Option<&[u8]>, Error> {
        let n_prefix = self.prefix.bytes();
        let Some(prefix) = self.held.get(self.at..self.at + n_prefix) else { return Ok(None) };
        if n_prefix == 5 && prefix[0] != 0 {
            return Err(Error::Compressed);
        }
        let length = prefix[n_prefix - 4..].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if length > MESSAGE_BYTES {
            return Err(Error::TooLong { bytes: length, most: MESSAGE_BYTES });
        }
        let begin = self.at + n_prefix;
        let Some(message) = self.held.get(begin..begin + length) else { return Ok(None) };
        self.at = begin + length;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(prefix: Prefix, messages: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for message in messages {
            bytes.extend(vec![0; prefix.bytes() - 4]);
            bytes.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
            bytes.extend(message);
        }
        bytes
    }

    #[test]
    fn what_cannot_be_followed_is_an_error() {
        fn check(prefix: Prefix, bytes: &[u8], expected: &str) {
            let mut frames = Frames::new(prefix);
            frames.push(bytes);
            assert!(frames.message().unwrap_err().to_string().contains(expected), "{bytes:?}");
        }
        check(Prefix::Grpc, &[1, 0, 0, 0, 0], "compressed");
        check(Prefix::Length, &[0, 64, 0, 1], "4194305");
        check(Prefix::Grpc, &[0, 255, 255, 255, 255], "4294967295");
    }

    proptest! {
        #[test]
        fn messages_come_whole_however_they_are_cut(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..8),
            cuts in proptest::collection::vec(1_usize..16, 1..40),
            is_grpc in any::<bool>(),
        ) {
            let prefix = if is_grpc { Prefix::Grpc } else { Prefix::Length };
            let bytes = written(prefix, &messages);
            let mut frames = Frames::new(prefix);
            let (mut found, mut rest, mut cuts) = (Vec::new(), &bytes[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let (now, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                frames.push(now);
                while let Some(message) = frames.message().unwrap() {
                    found.push(message.to_vec());
                }
                rest = later;
            }
            prop_assert_eq!(found, messages);
        }

        #[test]
        fn any_bytes_are_read(bytes in any::<Vec<u8>>(), is_grpc in any::<bool>()) {
            let mut frames = Frames::new(if is_grpc { Prefix::Grpc } else { Prefix::Length });
            frames.push(&bytes);
            while let Ok(Some(_)) = frames.message() {}
        }
    }
}

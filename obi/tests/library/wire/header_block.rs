//! A header-block encoder with every way of coding a field, for tests and benchmarks.
//!
//! In: fields and how to code them. Out: the bytes of a block. What an encoder of the wild does is a [`Coding`].

use std::collections::VecDeque;

/// How fields are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// Everything is put into the table, strings are Huffman coded: Go's `x/net`, grpc-go.
    Eager,
    /// Paths, lengths and dates stay out of the table: nghttp2 (curl, nginx as a client, Node).
    Selective,
    /// Nothing is put into the table, nothing is Huffman coded: nginx as a server.
    Plain,
    /// Any way that is allowed, by chance.
    Random,
}

/// One direction's encoder.
#[derive(Debug, Clone)]
pub struct Encoder {
    table: VecDeque<(String, String)>,
    size: usize,
    max_size: usize,
    resized: Option<usize>,
    inserted: usize,
    rng: fastrand::Rng,
}

impl Encoder {
    /// An encoder with the table that every connection begins with.
    pub fn new(seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        Self { table: VecDeque::new(), size: 0, max_size: 4096, resized: None, inserted: 0, rng }
    }

    /// Uses another table size from the next block on.
    pub fn resize(&mut self, bytes: usize) {
        self.resized = Some(bytes);
    }

    /// Bytes put into the table so far.
    pub fn inserted(&self) -> usize {
        self.inserted
    }

    /// The block of `fields`.
    pub fn encode<N: AsRef<str>, V: AsRef<str>>(&mut self, fields: &[(N, V)], coding: Coding) -> Vec<u8> {
        let mut block = Vec::new();
        if let Some(bytes) = self.resized.take() {
            integer(&mut block, bytes, 5, 0x20);
            self.max_size = bytes;
            self.evict_to(bytes);
        }
        for (name, value) in fields {
            self.field(&mut block, name.as_ref(), value.as_ref(), coding);
        }
        block
    }

    fn field(&mut self, block: &mut Vec<u8>, name: &str, value: &str, coding: Coding) {
        let is_random = coding == Coding::Random;
        let mut chance = |of: u32| is_random && self.rng.u32(..of) == 0;
        let (avoid_match, avoid_name, prefer_dynamic) = (chance(8), chance(4), chance(2));
        let is_huffman = if is_random { chance(2) } else { coding != Coding::Plain };
        let is_inserted = match coding {
            Coding::Eager => true,
            Coding::Selective => ![":path", "content-length", "date", "etag"].contains(&name),
            Coding::Plain => false,
            Coding::Random => !chance(3),
        };
        let never = u8::from(chance(2)) << 4;
        if let Some(index) =
            self.find(|entry| entry == (name, value), prefer_dynamic).filter(|_| !avoid_match)
        {
            return integer(block, index, 7, 0x80);
        }
        let index = self.find(|entry| entry.0 == name, prefer_dynamic).filter(|_| !avoid_name).unwrap_or(0);
        if is_inserted {
            integer(block, index, 6, 0x40);
        } else {
            integer(block, index, 4, never);
        }
        if index == 0 {
            text(block, name, is_huffman);
        }
        text(block, value, is_huffman);
        if is_inserted {
            self.insert(name, value);
        }
    }

    fn find(&self, is_it: impl Fn((&str, &str)) -> bool, prefer_dynamic: bool) -> Option<usize> {
        let in_static = STATIC.iter().find(|(_, entry)| is_it(*entry)).map(|(index, _)| *index);
        let in_dynamic =
            || self.table.iter().position(|(name, value)| is_it((name, value))).map(|at| at + 62);
        if prefer_dynamic { in_dynamic().or(in_static) } else { in_static.or_else(in_dynamic) }
    }

    fn insert(&mut self, name: &str, value: &str) {
        let size = name.len() + value.len() + 32;
        self.evict_to(self.max_size.saturating_sub(size));
        self.inserted += size;
        if size <= self.max_size {
            self.size += size;
            self.table.push_front((name.to_owned(), value.to_owned()));
        }
    }

    fn evict_to(&mut self, bytes: usize) {
        while self.size > bytes {
            let (name, value) = self.table.pop_back().unwrap();
            self.size -= name.len() + value.len() + 32;
        }
    }
}

/// The static entries that tests use.
const STATIC: [(usize, (&str, &str)); 22] = [
    (1, (":authority", "")),
    (2, (":method", "GET")),
    (3, (":method", "POST")),
    (4, (":path", "/")),
    (5, (":path", "/index.html")),
    (6, (":scheme", "http")),
    (7, (":scheme", "https")),
    (8, (":status", "200")),
    (9, (":status", "204")),
    (10, (":status", "206")),
    (11, (":status", "304")),
    (12, (":status", "400")),
    (13, (":status", "404")),
    (14, (":status", "500")),
    (16, ("accept-encoding", "gzip, deflate")),
    (23, ("authorization", "")),
    (28, ("content-length", "")),
    (31, ("content-type", "")),
    (32, ("cookie", "")),
    (33, ("date", "")),
    (38, ("host", "")),
    (58, ("user-agent", "")),
];

/// An integer with a prefix of so many bits.
pub fn integer(block: &mut Vec<u8>, mut value: usize, prefix: u32, mask: u8) {
    let limit = (1_usize << prefix) - 1;
    if value < limit {
        return block.push(mask | u8::try_from(value).unwrap());
    }
    block.push(mask | u8::try_from(limit).unwrap());
    value -= limit;
    while value >= 128 {
        block.push(0x80 | (value & 0x7f) as u8);
        value >>= 7;
    }
    block.push(value as u8);
}

fn text(block: &mut Vec<u8>, text: &str, is_huffman: bool) {
    if is_huffman {
        let mut coded = Vec::new();
        httlib_huffman::encode(text.as_bytes(), &mut coded).unwrap();
        integer(block, coded.len(), 7, 0x80);
        block.extend(coded);
    } else {
        integer(block, text.len(), 7, 0);
        block.extend(text.as_bytes());
    }
}

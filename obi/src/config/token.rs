//! `web.token`: a secret.
//!
//! In: text. Out: a token that nothing shows, or what was expected. Refuses to know who asks for it.

use std::fmt;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error};

use super::value;

const EXPECTED: &str = "16 to 4096 letters, digits and `-._~+/=`, or an empty text";

/// A token that HTTP can carry (RFC 6750), or none.
#[derive(Clone, PartialEq, Eq, Default, Serialize)]
pub struct Token(String);

impl Token {
    /// Its text; none where there is none.
    #[must_use]
    pub fn get(&self) -> Option<&str> {
        Some(self.0.as_str()).filter(|text| !text.is_empty())
    }
}

/// The error does not repeat what was written: it may be a secret all the same.
impl TryFrom<String> for Token {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_carried = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        let is_valid = text.is_empty() || (16..=4096).contains(&text.len()) && text.bytes().all(is_carried);
        if is_valid { Ok(Self(text)) } else { Err(format!("is not valid, expected {EXPECTED}")) }
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(value::text(deserializer, EXPECTED)?).map_err(D::Error::custom)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.0.is_empty() { "none" } else { "set" })
    }
}

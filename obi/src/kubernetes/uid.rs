//! The identity of a pod, as it stands in control groups and in the API.
//!
//! In: text. Out: [`PodUid`], 17 bytes that can be compared. Refuses to know where the text was found.

use std::fmt;

/// A pod's UID. That of a static pod is the hash of its manifest, written without dashes: the two never mean the same
/// pod, whatever their digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodUid {
    digits: u128,
    is_hash: bool,
}

/// Where dashes stand in a UUID.
const DASHES: [usize; 4] = [8, 13, 18, 23];

impl PodUid {
    /// `4f4f5e6e-…`, `4f4f5e6e_…` (as systemd's names have it), or 32 digits without dashes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let is_hash = bytes.len() == 32;
        if !is_hash && bytes.len() != 36 {
            return None;
        }
        let mut digits = 0;
        for (at, byte) in bytes.iter().enumerate() {
            if !is_hash && DASHES.contains(&at) {
                if !matches!(byte, b'-' | b'_') {
                    return None;
                }
                continue;
            }
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                _ => return None,
            };
            digits = digits << 4 | u128::from(digit);
        }
        Some(Self { digits, is_hash })
    }

    /// Whether it is the hash of a static pod's manifest.
    #[must_use]
    pub fn is_hash(self) -> bool {
        self.is_hash
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:032x}", self.digits);
        if self.is_hash {
            return formatter.write_str(&text);
        }
        let parts = [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]];
        formatter.write_str(&parts.join("-"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn uids() {
        fn check(text: &str, expected: Option<&str>) {
            assert_eq!(PodUid::parse(text).map(|uid| uid.to_string()).as_deref(), expected, "{text}");
        }
        let uid = "00f4e7a1-2222-3333-4444-5555555555ff";
        check(uid, Some(uid));
        check(&uid.replace('-', "_"), Some(uid));
        check("00f4e7a12222333344445555555555ff", Some("00f4e7a12222333344445555555555ff"));
        check("00F4E7A1-2222-3333-4444-5555555555FF", None);
        check("00f4e7a1-2222-3333-44445-555555555ff", None);
        check("", None);
        check("12", None);
        check(&"x".repeat(36), None);
        check(&"é".repeat(18), None);
    }

    #[test]
    fn a_hash_is_no_uid() {
        let uid = "00f4e7a1-2222-3333-4444-5555555555ff";
        assert_ne!(PodUid::parse(uid), PodUid::parse(&uid.replace('-', "")));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(digits in any::<u128>(), is_hash in any::<bool>()) {
            let uid = PodUid { digits, is_hash };
            prop_assert_eq!(PodUid::parse(&uid.to_string()), Some(uid));
        }

        #[test]
        fn any_text_is_read(text in any::<String>()) {
            let _ = PodUid::parse(&text);
        }
    }
}

//! Headers of gRPC and gRPC-Web to what they say.
//!
//! In: header values, lines of a response head. Out: kind of content, status, deadline. Refuses to know exchanges.

/// What the body of a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Content {
    /// Anything else.
    #[default]
    Other,
    /// `application/grpc`.
    Grpc,
    /// `application/grpc-web`: trailers are the last message of the body.
    GrpcWeb,
    /// `application/grpc-web-text`: the same in Base64, so its messages cannot be counted by their prefixes.
    GrpcWebText,
}

impl Content {
    /// By the value of `content-type`.
    pub(super) fn of(content_type: &[u8]) -> Self {
        const PREFIX: &[u8] = b"application/grpc";
        let Some((first, rest)) = content_type.split_at_checked(PREFIX.len()) else { return Self::Other };
        if !first.eq_ignore_ascii_case(PREFIX) {
            return Self::Other;
        }
        // `+proto` and parameters say how messages are coded.
        let end = rest.iter().position(|byte| b"+; \t".contains(byte)).unwrap_or(rest.len());
        match &rest[..end] {
            b"" => Self::Grpc,
            web if web.eq_ignore_ascii_case(b"-web") => Self::GrpcWeb,
            text if text.eq_ignore_ascii_case(b"-web-text") => Self::GrpcWebText,
            _ => Self::Other,
        }
    }

    /// A call of either kind.
    pub(super) fn is_rpc(self) -> bool {
        self != Self::Other
    }

    /// gRPC-Web of either kind.
    pub(super) fn is_web(self) -> bool {
        matches!(self, Self::GrpcWeb | Self::GrpcWebText)
    }
}

/// The value of `grpc-status`; `None` when it is no number.
pub(super) fn status(value: &[u8]) -> Option<u32> {
    number(value).and_then(|status| u32::try_from(status).ok())
}

/// The value of `grpc-timeout` in ns; `None` when it is none.
pub(super) fn timeout(value: &[u8]) -> Option<u64> {
    let (unit, digits) = value.split_last()?;
    let unit = match unit {
        b'H' => 3_600_000_000_000,
        b'M' => 60_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1_000,
        b'n' => 1,
        _ => return None,
    };
    // At most eight digits (PROTOCOL-HTTP2.md of gRPC); 584 years are for ever.
    number(digits).filter(|_| digits.len() <= 8).map(|number| number.saturating_mul(unit))
}

/// Longest `grpc-message` kept, bytes.
const MAX_MESSAGE_BYTES: usize = 256;

/// The value of `grpc-message`, percent-encoded as sent. Allocates nothing when it is empty.
pub(super) fn message(value: &[u8]) -> String {
    String::from_utf8_lossy(&value[..value.len().min(MAX_MESSAGE_BYTES)]).into_owned()
}

fn number(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.len() <= 10 && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// `grpc-status` and `grpc-message` in the lines of an HTTP/1 response head, or of a piece of one: trailers-only.
pub(super) fn head_status(head: &[u8]) -> Option<(u32, &[u8])> {
    let (mut found, mut message) = (None, &b""[..]);
    for line in head.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"grpc-status") {
            found = status(value);
        } else if name.eq_ignore_ascii_case(b"grpc-message") {
            message = value;
        }
    }
    found.map(|status| (status, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents() {
        let check = |value: &str, expected| assert_eq!(Content::of(value.as_bytes()), expected, "{value}");
        check("application/grpc", Content::Grpc);
        check("application/grpc+proto", Content::Grpc);
        check("Application/gRPC; charset=x", Content::Grpc);
        check("application/grpc-web", Content::GrpcWeb);
        check("application/grpc-web+proto", Content::GrpcWeb);
        check("application/grpc-web-text", Content::GrpcWebText);
        check("application/grpc-web-text+proto", Content::GrpcWebText);
        check("application/grpc-other", Content::Other);
        check("application/grpcx", Content::Other);
        check("application/json", Content::Other);
        check("", Content::Other);
    }

    #[test]
    fn timeouts() {
        let check = |value: &str, expected| assert_eq!(timeout(value.as_bytes()), expected, "{value}");
        check("1H", Some(3_600_000_000_000));
        check("2M", Some(120_000_000_000));
        check("3S", Some(3_000_000_000));
        check("4m", Some(4_000_000));
        check("5u", Some(5_000));
        check("99999999n", Some(99_999_999));
        check("99999999H", Some(u64::MAX));
        check("999999999n", None);
        check("S", None);
        check("1", None);
        check("-1S", None);
        check("", None);
    }

    #[test]
    fn statuses() {
        let check = |value: &str, expected| assert_eq!(status(value.as_bytes()), expected, "{value}");
        check("0", Some(0));
        check("16", Some(16));
        check("4294967295", Some(u32::MAX));
        check("4294967296", None);
        check("99999999999", None);
        check("OK", None);
        check("", None);
        let check = |head: &str, expected: Option<(u32, &str)>| {
            let expected = expected.map(|(status, message)| (status, message.as_bytes()));
            assert_eq!(head_status(head.as_bytes()), expected, "{head}");
        };
        check(
            "HTTP/1.1 200 OK\r\nGrpc-Status: 5\r\ngrpc-message: not%20here\r\n\r\n",
            Some((5, "not%20here")),
        );
        check("HTTP/1.1 200 OK\r\ngrpc-status:0\r\n\r\n", Some((0, "")));
        check("HTTP/1.1 200 OK\r\ngrpc-message: x\r\n\r\n", None);
        check("HTTP/1.1 200 OK\r\n\r\n", None);
    }
}

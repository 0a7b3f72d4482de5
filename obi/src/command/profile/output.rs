//! Files of profiles, by their endings.
//!
//! In: a path. Out: what it is to be, or the selection in it.

use std::io::Read as _;
use std::path::Path;

use super::UsageError;
use crate::export::{otlp, pprof};
use crate::profile::Selection;

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Svg,
    Pprof,
    Otlp,
    Folded,
}

/// A recording larger than this is none.
const MAX_BYTES: u64 = 256 << 20;

impl Kind {
    pub(super) fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let kinds =
            [(".svg", Self::Svg), (".pb.gz", Self::Pprof), (".otlp", Self::Otlp), (".folded", Self::Folded)];
        kinds
            .into_iter()
            .find(|(ending, _)| name.ends_with(ending) && name.len() > ending.len())
            .map(|(_, kind)| kind)
    }

    /// As the API calls it.
    pub(super) fn format(self) -> &'static str {
        match self {
            Self::Svg => "svg",
            Self::Pprof => "pprof",
            Self::Otlp => "otlp",
            Self::Folded => "folded",
        }
    }
}

/// Reads a recording.
///
/// # Errors
/// When it cannot be read, or is none.
pub(super) fn read(path: &Path) -> Result<Selection, UsageError> {
    let base = |reason: String| UsageError::Base { path: path.display().to_string(), reason };
    let kind = Kind::of(path).filter(|kind| matches!(kind, Kind::Pprof | Kind::Otlp));
    let kind = kind.ok_or_else(|| base("expected a recording that ends with .pb.gz or .otlp".to_owned()))?;
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| base(error.to_string()))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(base(format!("more than {MAX_BYTES} bytes")));
    }
    match kind {
        Kind::Pprof => pprof::decode(&bytes).map_err(|error| base(error.to_string())),
        _ => otlp::profile::decode(&bytes).map_err(|error| base(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{SampleKind, SampleType};

    #[test]
    fn endings_say_what_is_written() {
        let check = |name: &str, expected| assert_eq!(Kind::of(Path::new(name)), expected, "{name}");
        check("a.svg", Some(Kind::Svg));
        check("/tmp/x.pb.gz", Some(Kind::Pprof));
        check("x.otlp", Some(Kind::Otlp));
        check("x.folded", Some(Kind::Folded));
        check(".svg", None);
        check("a.png", None);
        check("svg", None);
        check("a.gz", None);
    }

    #[test]
    fn what_is_no_recording_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let check = |name: &str, content: Option<&[u8]>, expected: &str| {
            let path = directory.path().join(name);
            if let Some(content) = content {
                std::fs::write(&path, content).unwrap();
            }
            let error = read(&path).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--diff {}: ", path.display())), "{error}");
            assert!(error.contains(expected), "{error}");
        };
        check("a.svg", Some(b"<svg/>"), "expected a recording");
        check("none.pb.gz", None, "No such file");
        check("bad.pb.gz", Some(b"no gzip"), "");
        check("bad.otlp", Some(b"\xff\xff"), "");
    }

    #[test]
    fn what_was_written_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let types = vec![SampleType { kind: SampleKind::Cpu, period: 10_101_010 }];
        let selection = Selection { types, end: 1, ..Selection::default() };
        let path = directory.path().join("a.pb.gz");
        std::fs::write(&path, pprof::encode(&selection)).unwrap();
        assert_eq!(read(&path).unwrap(), selection);
    }
}

//! Query parameters to a [`Filter`]. Anything unknown, repeated or malformed is an error that names it.

use std::sync::LazyLock;

use jiff::Timestamp;

use crate::cause::context::parse_id;
use crate::export::flame::{Frames, Look, View};
use crate::profile::choose::{Filter, Pace};
use crate::profile::sample_type::{ROWS, SampleKind};
use crate::web::Error;

const UNKNOWN: &str = "unknown parameter, expected one of type, service, version, from, to, route, span, trace, pid, slow, frames, view, format";
/// Of a selection without `from`.
const USUAL_NANOSECONDS: u64 = 60_000_000_000;
static EXPECTED_TYPE: LazyLock<String> =
    LazyLock::new(|| format!("expected {}", ROWS.map(|row| row.name).join(" or ")));
const OF_MOMENT: &str = "expected neither from, to, route, span, trace nor slow beside it: it shows whole processes as they are now";
/// How the parameters of what is compared with begin.
const BASE: &str = "base_";

/// How a selection is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::web) enum Format {
    Svg,
    /// The same picture in a page of its own, for frames: there browsers make an SVG as small as the frame.
    Html,
    Pprof,
    Otlp,
    Json,
    Folded,
}

impl Format {
    fn of_name(name: &str) -> Result<Self, &'static str> {
        match name {
            "svg" => Ok(Self::Svg),
            "html" => Ok(Self::Html),
            "pprof" => Ok(Self::Pprof),
            "otlp" => Ok(Self::Otlp),
            "json" => Ok(Self::Json),
            "folded" => Ok(Self::Folded),
            _ => Err("expected svg, html, pprof, otlp, json or folded"),
        }
    }

    pub(super) fn of_media_type(media: &str) -> Option<Self> {
        match media {
            "image/svg+xml" | "text/html" => Some(Self::Svg),
            "application/octet-stream" | "application/gzip" => Some(Self::Pprof),
            "application/x-protobuf" | "application/protobuf" => Some(Self::Otlp),
            "application/json" => Some(Self::Json),
            "text/plain" => Some(Self::Folded),
            _ => None,
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::web) struct Request {
    /// Times are nanoseconds since the Unix epoch.
    pub(in crate::web) filter: Filter,
    pub(super) format: Option<Format>,
    pub(in crate::web) look: Look,
    /// In a few words.
    pub(in crate::web) title: String,
}

/// Parameters as they are given.
#[derive(Debug, Default, Clone)]
struct Parameters {
    kind: Option<SampleKind>,
    from: Option<u64>,
    to: Option<u64>,
    service: Option<String>,
    version: Option<String>,
    route: Option<String>,
    span: Option<[u8; 8]>,
    trace: Option<[u8; 16]>,
    pid: Option<u32>,
    slow: Option<bool>,
    frames: Option<Frames>,
    view: Option<View>,
    format: Option<Format>,
}

impl Request {
    /// One selection; it is `now`.
    pub(in crate::web) fn parse(pairs: Vec<(String, String)>, now: u64) -> Result<Self, Error> {
        let mut given = Parameters::default();
        for (name, value) in pairs {
            given.take(&name, &name, value)?;
        }
        given.request(now)
    }

    /// Two selections: what is asked for and what it is compared with. `None` if there is nothing to compare it with.
    pub(in crate::web) fn parse_both(
        pairs: Vec<(String, String)>,
        now: u64,
    ) -> Result<Option<(Self, Self)>, Error> {
        let (mut given, mut base) = (Parameters::default(), Parameters::default());
        let mut has_base = false;
        for (parameter, value) in pairs {
            match parameter.strip_prefix(BASE) {
                Some(name) => {
                    base.take(&parameter, name, value)?;
                    has_base = true;
                }
                None => given.take(&parameter, &parameter, value)?,
            }
        }
        if given.slow == Some(true) && !has_base {
            base = Parameters { slow: Some(false), ..given.clone() };
        } else if !has_base {
            return Ok(None);
        }
        // What is not said otherwise is the same; a span is a selection by itself.
        let is_span = base.span.is_some() || base.trace.is_some() || base.route.is_some();
        if base.slow.is_none() && !is_span {
            (base.route, base.pid, base.slow) = (given.route.clone(), given.pid, given.slow);
        }
        base.kind = base.kind.or(given.kind);
        base.service = base.service.or_else(|| given.service.clone());
        (base.from, base.to) = (base.from.or(given.from), base.to.or(given.to));
        Ok(Some((given.request(now)?, base.request(now)?)))
    }
}

impl Parameters {
    fn take(&mut self, parameter: &str, name: &str, value: String) -> Result<(), Error> {
        let result = match name {
            "type" => set(&mut self.kind, SampleKind::of_name(&value).ok_or(&**EXPECTED_TYPE)),
            "service" => set(&mut self.service, Ok(value.clone())),
            "version" => set(&mut self.version, Ok(value.clone())),
            "from" => set(&mut self.from, parse_time(&value)),
            "to" => set(&mut self.to, parse_time(&value)),
            "route" => set(&mut self.route, Ok(value.clone())),
            "span" => set(&mut self.span, parse_id(&value).ok_or("expected 16 hexadecimal digits")),
            "trace" => set(&mut self.trace, parse_id(&value).ok_or("expected 32 hexadecimal digits")),
            "pid" => set(&mut self.pid, value.parse().map_err(|_| "expected a process id")),
            "slow" => set(&mut self.slow, value.parse().map_err(|_| "expected true or false")),
            "frames" => set(&mut self.frames, Frames::of_name(&value).ok_or("expected program or all")),
            "view" => set(&mut self.view, View::of_name(&value).ok_or("expected flame, icicle or callers")),
            "format" => set(&mut self.format, Format::of_name(&value)),
            _ => Err(UNKNOWN),
        };
        result.map_err(|expected| Error::Parameter { parameter: parameter.to_owned(), value, expected })
    }

    fn request(self, now: u64) -> Result<Request, Error> {
        let kind = self.kind.unwrap_or_default();
        if kind.is_of_moment() && self.is_narrowed() {
            let (parameter, value) = ("type".to_owned(), kind.row().name.to_owned());
            return Err(Error::Parameter { parameter, value, expected: OF_MOMENT });
        }
        let end = self.to.unwrap_or(now);
        // A span or a trace is found however long ago it was.
        let usual = match self.span.is_some() || self.trace.is_some() {
            true => 0,
            false => end.saturating_sub(USUAL_NANOSECONDS),
        };
        let start = self.from.unwrap_or(usual);
        if start >= end {
            let (parameter, value) = ("from".to_owned(), shown(start));
            return Err(Error::Parameter { parameter, value, expected: "expected a time before `to`" });
        }
        let title = self.title(start, end);
        let pace = self.slow.map(|slow| if slow { Pace::Slow } else { Pace::Rest });
        let Self { service, version, route, span: span_id, trace: trace_id, pid, .. } = self;
        let filter = Filter { kind, start, end, service, version, route, span_id, trace_id, pid, pace };
        let look = Look { frames: self.frames.unwrap_or_default(), view: self.view.unwrap_or_default() };
        Ok(Request { filter, format: self.format, look, title })
    }

    /// A time or requests are asked for.
    fn is_narrowed(&self) -> bool {
        self.from.or(self.to).is_some()
            || self.route.is_some()
            || self.span.is_some()
            || self.trace.is_some()
            || self.slow.is_some()
    }

    fn title(&self, start: u64, end: u64) -> String {
        let mut words = Vec::new();
        match self.slow {
            Some(true) => words.push("slow requests".to_owned()),
            Some(false) => words.push("other requests".to_owned()),
            None => {}
        }
        words.extend(self.service.clone());
        words.extend(self.version.as_ref().map(|version| format!("version {version}")));
        words.extend(self.route.clone());
        words.extend(self.span.map(|id| format!("span {:016x}", u64::from_be_bytes(id))));
        words.extend(self.trace.map(|id| format!("trace {:032x}", u128::from_be_bytes(id))));
        words.extend(self.pid.map(|pid| format!("process {pid}")));
        if words.is_empty() {
            words.push("all processes".to_owned());
        }
        if self.kind.is_some_and(SampleKind::is_of_moment) {
            words.push(format!("at {}", shown(end)));
        } else if start > 0 {
            words.push(format!("{} s before {}", (end - start).div_ceil(1_000_000_000), shown(end)));
        }
        words.join(", ")
    }
}

fn set<T>(field: &mut Option<T>, value: Result<T, &'static str>) -> Result<(), &'static str> {
    match field.replace(value?) {
        None => Ok(()),
        Some(_) => Err("given more than once"),
    }
}

/// RFC 3339, or seconds since the Unix epoch.
pub(in crate::web) fn parse_time(text: &str) -> Result<u64, &'static str> {
    const EXPECTED: &str =
        "expected a time such as 2026-01-31T12:00:00Z or 1769860800.5 (seconds since the Unix epoch)";
    if let Ok(seconds) = text.parse::<f64>() {
        let is_time = seconds.is_finite() && (0.0..1e10).contains(&seconds);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "in range, as just seen"
        )]
        return if is_time { Ok((seconds * 1e9) as u64) } else { Err(EXPECTED) };
    }
    let time: Timestamp = text.parse().map_err(|_| EXPECTED)?;
    u64::try_from(time.as_nanosecond()).map_err(|_| EXPECTED)
}

fn shown(nanoseconds: u64) -> String {
    let seconds = i64::try_from(nanoseconds / 1_000_000_000).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| nanoseconds.to_string(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_769_860_800_000_000_000;

    fn pairs(query: &str) -> Vec<(String, String)> {
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').expect("test queries have pairs");
            (name.to_owned(), value.to_owned())
        });
        pairs.collect()
    }

    #[test]
    fn every_parameter_is_read() {
        fn check(query: &str, expected: Filter) {
            assert_eq!(
                Request::parse(pairs(query), NOW).map(|request| request.filter),
                Ok(expected),
                "{query}"
            );
        }
        let usual = || Filter { start: NOW - USUAL_NANOSECONDS, end: NOW, ..Filter::default() };
        check("", usual());
        check("service=shop&format=svg", Filter { service: Some("shop".to_owned()), ..usual() });
        check("version=1.2", Filter { version: Some("1.2".to_owned()), ..usual() });
        check("route=/a/{id}", Filter { route: Some("/a/{id}".to_owned()), ..usual() });
        check("pid=7", Filter { pid: Some(7), ..usual() });
        check("slow=true", Filter { pace: Some(Pace::Slow), ..usual() });
        check("slow=false", Filter { pace: Some(Pace::Rest), ..usual() });
        check(
            "span=00000000000000ff",
            Filter { start: 0, span_id: Some([0, 0, 0, 0, 0, 0, 0, 255]), ..usual() },
        );
        let trace_id = Some(std::array::from_fn(|index| index as u8));
        check("trace=000102030405060708090A0b0c0d0e0f", Filter { start: 0, trace_id, ..usual() });
        let times = Filter { start: 1_500_000_000, end: 3_000_000_000, ..Filter::default() };
        check("from=1.5&to=3", times.clone());
        check("from=1970-01-01T00:00:01.5Z&to=1970-01-01T01:00:03+01:00", times);
    }

    #[test]
    fn frames_of_a_runtime_are_asked_for() {
        for (query, expected) in
            [("", Frames::Program), ("frames=program", Frames::Program), ("frames=all", Frames::All)]
        {
            let request = Request::parse(pairs(query), NOW).unwrap();
            assert_eq!(request.look.frames, expected, "{query}");
        }
    }

    #[test]
    fn every_view_is_asked_for_by_its_name() {
        for (query, expected) in [
            ("", View::Flame),
            ("view=flame", View::Flame),
            ("view=icicle", View::Icicle),
            ("view=callers&frames=all", View::Callers),
        ] {
            let request = Request::parse(pairs(query), NOW).unwrap();
            assert_eq!(request.look.view, expected, "{query}");
        }
    }

    #[test]
    fn every_kind_of_sample_has_a_name() {
        for row in ROWS {
            let request = Request::parse(pairs(&format!("type={}", row.name)), NOW).unwrap();
            assert_eq!(request.filter.kind, row.kind);
        }
    }

    #[test]
    fn a_moment_is_shown_by_its_time() {
        let title = |query: &str| Request::parse(pairs(query), NOW).unwrap().title;
        assert_eq!(title("type=heap&service=shop"), "shop, at 2026-01-31T12:00:00Z");
        assert_eq!(title("service=shop"), "shop, 60 s before 2026-01-31T12:00:00Z");
    }

    #[test]
    fn errors_name_parameter_and_value() {
        fn check(query: &str, expected: &str) {
            let error = Request::parse(pairs(query), NOW).expect_err(query).to_string();
            assert!(error.contains(expected), "{query}: {error}");
        }
        check("servic=a", "servic=a: unknown parameter");
        check(
            "type=memory",
            "type=memory: expected cpu or off_cpu or wall or lock or page_faults or heap or alloc or goroutines",
        );
        check("type=heap&from=5", "type=heap: expected neither from, to, route");
        check("type=goroutines&route=/a", "type=goroutines: expected neither from, to, route");
        check("service=a&service=b", "service=b: given more than once");
        check("span=12", "span=12: expected 16 hexadecimal digits");
        check("span=+000000000000001", "expected 16 hexadecimal digits");
        check("trace=12", "trace=12: expected 32");
        check("pid=-1", "pid=-1: expected a process id");
        check("slow=1", "slow=1: expected true or false");
        check("frames=some", "frames=some: expected program or all");
        check("view=", "view=: expected flame, icicle or callers");
        check("view=Flame", "view=Flame: expected flame, icicle or callers");
        check("view=icicle&view=icicle", "view=icicle: given more than once");
        check("format=png", "format=png: expected svg, html, pprof, otlp, json or folded");
        check("from=yesterday", "from=yesterday: expected a time such as");
        check("from=-1", "from=-1: expected a time");
        check("from=NaN", "expected a time");
        check("from=5&to=5", "expected a time before `to`");
    }

    #[test]
    fn a_comparison_takes_what_is_not_said_otherwise_from_its_other_side() {
        let both = |query: &str| {
            let both =
                Request::parse_both(pairs(query), NOW).unwrap_or_else(|error| panic!("{query}: {error}"));
            both.map(|(request, base)| (request.filter, base.filter))
        };
        assert_eq!(both("service=shop"), None);
        let (slow, rest) = both("service=shop&route=/a&slow=true").unwrap();
        assert_eq!((slow.pace, rest.pace), (Some(Pace::Slow), Some(Pace::Rest)));
        assert_eq!(Filter { pace: None, ..slow }, Filter { pace: None, ..rest });
        let (now, before) = both("service=shop&route=/a&from=20&to=30&base_from=10&base_to=20").unwrap();
        assert_eq!((before.start, before.end), (10_000_000_000, 20_000_000_000));
        assert_eq!(Filter { start: 0, end: 0, ..now }, Filter { start: 0, end: 0, ..before });
        let (new, old) = both("service=shop&route=/a&version=2&base_version=1").unwrap();
        assert_eq!((new.version.as_deref(), old.version.as_deref()), (Some("2"), Some("1")));
        assert_eq!(Filter { version: None, ..new }, Filter { version: None, ..old });
        let (one, all) = both("service=shop&span=00000000000000ff&base_route=/a").unwrap();
        assert!(one.span_id.is_some() && one.route.is_none());
        assert_eq!(
            (all.span_id, all.route.as_deref(), all.service.as_deref()),
            (None, Some("/a"), Some("shop"))
        );
    }

    proptest::proptest! {
        #[test]
        fn any_pair_is_read_or_refused(name in "(base_)?(type|version|from|to|span|trace|pid|slow|frames|view|format|[a-z]{0,8})", value in "\\PC{0,40}") {
            let given = vec![(name.clone(), value.clone())];
            if let Err(error) = Request::parse_both(given, NOW) {
                assert!(matches!(error, Error::Parameter { .. }));
            }
        }
    }
}

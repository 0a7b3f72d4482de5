//! Numbers, times and names as people read them.
//!
//! In: values. Out: text, or markup where a reader may want to see more. Refuses to know whose values they are.
//!
//! A name may be anything that a program put on the wire. It is escaped by the template; here it is kept from being
//! long, from hiding characters and from turning the text around it.

use jiff::Timestamp;
use jiff::fmt::strtime;
use maud::{Markup, html};

/// What stands where there is no value.
pub(super) const NONE: &str = "–";
/// Letters of a name that are shown; of a longer one its beginning and its end.
const SHOWN: usize = 64;

/// A whole number, in groups of three digits.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 request`, `2 requests`.
pub(super) fn counted(n: u64, one: &str, more: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { more })
}

/// Three significant digits.
pub(super) fn significant(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size == 0.0 => "0".to_owned(),
        _ if size >= 99.95 => format!("{value:.0}"),
        _ if size >= 9.995 => format!("{value:.1}"),
        _ if size >= 0.9995 => format!("{value:.2}"),
        _ if size >= 0.000_1 => {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 2 to 6")]
            let digits = (2.0 - size.log10().floor()) as usize;
            format!("{value:.digits$}")
        }
        _ => "<0.0001".to_owned(),
    }
}

/// Seconds in a unit that suits them.
pub(super) fn duration(seconds: f64) -> String {
    const UNITS: [(f64, f64, &str); 6] = [
        (99.95e-9, 1e-9, "ns"),
        (999.5e-6, 1e-6, "µs"),
        (0.999_5, 1e-3, "ms"),
        (119.5, 1.0, "s"),
        (7_170.0, 60.0, "min"),
        (172_080.0, 3_600.0, "h"),
    ];
    if seconds == 0.0 {
        return "0 s".to_owned();
    }
    let (unit, name) = UNITS
        .into_iter()
        .find(|(below, _, _)| seconds.abs() < *below)
        .map_or((86_400.0, "d"), |(_, unit, name)| (unit, name));
    format!("{} {name}", significant(seconds / unit))
}

/// The same of a value that may not be known.
pub(super) fn maybe_duration(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| NONE.to_owned(), duration)
}

/// The same of a value from coarse buckets, with a sign that it is near the truth.
pub(super) fn near_duration(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| NONE.to_owned(), |seconds| format!("≈ {}", duration(seconds)))
}

/// Events per second, or per minute where they are few.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        0.0 => "0 /s".to_owned(),
        value if value < 0.5 => format!("{} /min", significant(value * 60.0)),
        value => format!("{} /s", significant(value)),
    }
}

/// A part of a whole, in percent. What is not nothing is never shown as nothing.
pub(super) fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => NONE.to_owned(),
        _ => percent(part as f64 / whole as f64),
    }
}

/// A ratio, in percent.
pub(super) fn percent(ratio: f64) -> String {
    match ratio * 100.0 {
        0.0 => "0 %".to_owned(),
        value if value > 0.0 && value < 0.01 => "<0.01 %".to_owned(),
        // 99.97 must not become 100.
        value if (99.0..100.0).contains(&value) => format!("{:.2} %", (value * 100.0).floor() / 100.0),
        value => format!("{} %", significant(value)),
    }
}

/// A target such as 99.9 %, all of its digits.
pub(super) fn target(ratio: f64) -> String {
    let text = format!("{:.6}", ratio * 100.0);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Bytes.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if n < 1_024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1_024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1_024.0;
        unit += 1;
    }
    format!("{} {}", significant(value), UNITS[unit])
}

/// A moment, nanoseconds since the Unix epoch: in UTC; the page's script shows it in the reader's zone.
pub(super) fn moment(nanoseconds: u64) -> Markup {
    let Ok(time) = Timestamp::from_nanosecond(nanoseconds.into()) else {
        return html! { (NONE) };
    };
    let shown = strtime::format("%Y-%m-%d %H:%M:%S UTC", time).unwrap_or_default();
    html! { time datetime=(time) { (shown) } }
}

/// The time of day of a moment, in a picture: in UTC, and as the page's script shows it in the reader's zone. The
/// zone is said where it is asked for.
pub(super) fn clock(nanoseconds: u64, (x, y): (f64, f64), says_zone: bool) -> Markup {
    let Ok(time) = Timestamp::from_nanosecond(nanoseconds.into()) else { return html! {} };
    let shown =
        strtime::format(if says_zone { "%H:%M:%S UTC" } else { "%H:%M:%S" }, time).unwrap_or_default();
    html! { text x=(x) y=(y) text-anchor="middle" data-clock=(time) data-zone=[says_zone.then_some("true")] { (shown) } }
}

/// The day of a moment that is text, as RFC 3339 has it, and its zone.
pub(super) fn day(text: &str) -> String {
    let day = text.get(..10).unwrap_or(text);
    format!("{day} UTC")
}

/// A moment that is text already, as RFC 3339 has it.
pub(super) fn moment_of(text: &str) -> Markup {
    unix_of(text).map_or_else(|| html! { (text) }, moment)
}

/// The same as nanoseconds since the Unix epoch; `None` where it is no moment, or one before that.
pub(super) fn unix_of(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<Timestamp>().ok()?.as_nanosecond()).ok()
}

/// A name in running text: in a direction of its own, in full where it is pointed at.
pub(super) fn name(text: &str) -> Markup {
    name_to(text, SHOWN)
}

/// The same with room for so many letters.
pub(super) fn name_to(text: &str, letters: usize) -> Markup {
    let plain = plain(text);
    match shorten(&plain, letters) {
        Some(short) => html! { bdi title=(plain) { (short) } },
        None => html! { bdi { (plain) } },
    }
}

/// A name for a place that takes no markup, as a title.
pub(super) fn short(text: &str) -> String {
    short_to(text, SHOWN)
}

/// A text of so many letters at most.
pub(super) fn short_to(text: &str, letters: usize) -> String {
    let plain = plain(text);
    shorten(&plain, letters).unwrap_or(plain)
}

/// A name in which nothing is hidden: what has no width, or turns what follows, is written out.
pub(super) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_hidden(letter) { out.extend(letter.escape_unicode()) } else { out.push(letter) }
    }
    out
}

fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{061c}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Without its middle, if it is too long.
fn shorten(text: &str, room: usize) -> Option<String> {
    let letters = text.chars().count();
    if letters <= room {
        return None;
    }
    let (head, tail) = (room * 2 / 3, room / 3 - 1);
    let begin: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(letters - tail).collect();
    Some(format!("{begin}…{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let check = |shown: String, expected: &str| assert_eq!(shown, expected);
        check(count(0), "0");
        check(count(999), "999");
        check(count(1_000), "1,000");
        check(count(12_345_678), "12,345,678");
        check(counted(1, "span", "spans"), "1 span");
        check(counted(0, "span", "spans"), "0 spans");
        check(significant(0.0), "0");
        check(significant(1234.5), "1234");
        check(significant(99.96), "100");
        check(significant(12.345), "12.3");
        check(significant(1.234), "1.23");
        check(significant(0.012_34), "0.0123");
        check(significant(0.000_001), "<0.0001");
        check(significant(f64::NAN), "<0.0001");
    }

    #[test]
    fn durations_have_units() {
        let check = |seconds: f64, expected: &str| assert_eq!(duration(seconds), expected);
        check(0.0, "0 s");
        check(5e-8, "50.0 ns");
        check(1.5e-6, "1.50 µs");
        check(0.000_999_6, "1.00 ms");
        check(0.25, "250 ms");
        check(1.0, "1.00 s");
        check(90.0, "90.0 s");
        check(600.0, "10.0 min");
        check(7_200.0, "2.00 h");
        check(864_000.0, "10.0 d");
    }

    #[test]
    fn shares_never_hide_a_part() {
        let check = |part, whole, expected: &str| assert_eq!(share(part, whole), expected);
        check(0, 0, NONE);
        check(0, 5, "0 %");
        check(1, 1_000_000, "<0.01 %");
        check(1, 1_000, "0.100 %");
        check(999_999, 1_000_000, "99.99 %");
        check(5, 5, "100 %");
        assert_eq!(
            (target(0.999), target(0.5), target(0.999_95)),
            ("99.9 %".into(), "50 %".into(), "99.995 %".into())
        );
        assert_eq!(percent(-0.5), "-50.0 %");
    }

    #[test]
    fn rates_and_bytes() {
        assert_eq!((rate(0.0), rate(0.1), rate(20.0)), ("0 /s".into(), "6.00 /min".into(), "20.0 /s".into()));
        assert_eq!(
            (bytes(1_023), bytes(1_536), bytes(1 << 30)),
            ("1023 B".into(), "1.50 KiB".into(), "1.00 GiB".into())
        );
    }

    #[test]
    fn moments_are_utc() {
        let shown = "<time datetime=\"1970-01-01T00:00:01.5Z\">1970-01-01 00:00:01 UTC</time>";
        assert_eq!(moment(1_500_000_000).into_string(), shown);
        assert_eq!(moment_of("1970-01-01T00:00:01.5Z").into_string(), shown);
        assert_eq!(moment_of("<b>").into_string(), "&lt;b&gt;");
    }

    #[test]
    fn names_are_shown_as_they_are() {
        let check = |text: &str, expected: &str| assert_eq!(name(text).into_string(), expected);
        check("shop", "<bdi>shop</bdi>");
        check("<b>\"", "<bdi>&lt;b&gt;&quot;</bdi>");
        check("a\u{202e}b\n", "<bdi>a\\u{202e}b\\u{a}</bdi>");
        check("שלום", "<bdi>שלום</bdi>");
        let long = "x".repeat(65_536);
        let shown = name(&long).into_string();
        assert!(
            shown.contains(&format!("title=\"{long}\"")) && shown.len() < long.len() + 200,
            "{}",
            shown.len()
        );
        assert_eq!(short(&long).chars().count(), SHOWN * 2 / 3 + SHOWN / 3);
    }

    proptest::proptest! {
        #[test]
        fn whatever_a_name_is_it_stays_short_and_visible(text in "(?s).{0,300}") {
            let short = short(&text);
            assert!(short.chars().count() <= SHOWN && !short.chars().any(is_hidden), "{short}");
        }
    }
}

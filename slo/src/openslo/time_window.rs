//! `timeWindow` items.
//!
//! In: an item of v1, v2alpha or v1alpha. Out: [`Window`]. Refuses periods that cannot be counted.

use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::alerting::DURATION;
use super::cursor::{Cursor, Findings};
use crate::duration::{Short, parse_shorthand};
use crate::window::{Calendar, Unit, Window};

/// Longest period.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);
/// Shorter ones are probably not meant.
const SHORT: Duration = Duration::from_secs(3600);
/// Shortest period, so that it has some slots.
const SHORTEST: Duration = Duration::from_secs(60);

/// `{duration, isRolling, calendar}`.
pub(super) fn time_window(item: &Cursor<'_>, findings: &mut Findings) -> Option<Window> {
    item.only(&["duration", "isRolling", "calendar"], findings);
    let written = item.required("duration", "28d", findings)?;
    let text = written.scalar(findings)?;
    let Some(length) = parse_shorthand(&text) else {
        findings.push(written.error(format!("{text:?} is no duration"), DURATION));
        return None;
    };
    window(item, length, findings)
}

/// v1alpha: `{unit, count, isRolling, calendar}`.
pub(super) fn alpha_window(item: &Cursor<'_>, findings: &mut Findings) -> Option<Window> {
    item.only(&["unit", "count", "isRolling", "calendar"], findings);
    let written = item.required("unit", "Day", findings)?;
    let count = item.required("count", "28", findings)?;
    let number = count.scalar(findings)?.parse::<u32>().ok().filter(|count| *count > 0);
    let Some(number) = number else {
        findings.push(count.error(format!("is {}", count.node.describe()), "write a positive integer"));
        return None;
    };
    let unit = match written.scalar(findings)?.as_str() {
        "Day" => Unit::Day,
        "Week" => Unit::Week,
        "Month" => Unit::Month,
        "Quarter" => Unit::Quarter,
        // Seconds are counted in minutes, the least that a period can be.
        "Second" if number.is_multiple_of(60) => return window(item, (number / 60, Unit::Minute), findings),
        other => {
            let instead = "write one of Day, Week, Month, Quarter (Second with a multiple of 60)";
            findings.push(written.error(format!("is {other:?}"), instead));
            return None;
        }
    };
    window(item, (number, unit), findings)
}

fn window(item: &Cursor<'_>, (count, unit): (u32, Unit), findings: &mut Findings) -> Option<Window> {
    let length = unit.duration().saturating_mul(count);
    if !(SHORTEST..=LONGEST).contains(&length) {
        findings.push(item.error(format!("lasts {} days", length.as_secs() / 86_400), "write 1m to 1Y"));
        return None;
    }
    if length < SHORT {
        // The specification's own example writes `1m` for a month.
        let what = format!("lasts {}", Short(length));
        findings.push(item.warning(what, "write M for months (1M), m is for minutes"));
    }
    let calendar = item.child("calendar");
    // Absent, it is false where a calendar is given, and cannot be anything but true elsewhere.
    let rolling = item.boolean("isRolling", findings).unwrap_or(calendar.is_none());
    match (rolling, calendar) {
        (true, None) => Some(Window::Rolling(length)),
        (false, Some(calendar)) => {
            let (start, zone) = start(&calendar, findings)?;
            Some(Window::Calendar(Calendar { start, zone, count, unit }))
        }
        (true, Some(calendar)) => {
            findings.push(
                calendar
                    .error("stands beside isRolling: true", "write isRolling: false, or leave calendar out"),
            );
            None
        }
        (false, None) => {
            let instead =
                "write calendar: {startTime: 2026-01-01 00:00:00, timeZone: UTC}, or isRolling: true";
            findings.push(item.error("is not rolling and has no calendar", instead));
            None
        }
    }
}

fn start(calendar: &Cursor<'_>, findings: &mut Findings) -> Option<(DateTime, TimeZone)> {
    calendar.only(&["startTime", "timeZone"], findings);
    let time = calendar.required("startTime", "2026-01-01 00:00:00", findings);
    let zone = calendar.required("timeZone", "UTC", findings);
    let (time, zone) = (time?, zone?);
    let time_text = time.scalar(findings)?;
    let zone_text = zone.scalar(findings)?;
    let parsed = DateTime::strptime("%Y-%m-%d %H:%M:%S", &time_text).ok();
    if parsed.is_none() {
        let instead = "write a date and time without zone such as 2026-01-01 00:00:00";
        findings.push(time.error(format!("{time_text:?} is no start"), instead));
    }
    let known = TimeZone::get(&zone_text).ok();
    if known.is_none() {
        let instead = "write a name of the IANA database such as UTC or Europe/Warsaw";
        findings.push(zone.error(format!("{zone_text:?} is no time zone"), instead));
    }
    Some((parsed?, known?))
}

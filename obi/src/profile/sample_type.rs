//! Kinds of samples: the one table of what each is called, in which unit it is measured, and how it is asked for.
//!
//! In: `enum sample_kind` of a record, names from files and parameters. Out: a [`SampleKind`], its [`Row`], and the
//! arithmetic between a value and the samples that it stands for. Refuses to know who takes samples, and formats.
//!
//! A value is in the unit of its kind: CPU time is nanoseconds, also where the clock's period has changed in between,
//! or samples were lost before. The period of a [`SampleType`] only says how many samples such a value stands for.
//! A new kind is a program that makes its records, a row here, and what switches it on.

use super::{Sample, Selection};

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum SampleKind {
    /// Time on a CPU.
    #[default]
    Cpu,
}

/// What a value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SampleUnit {
    /// Time.
    Nanoseconds,
}

/// A value type as OTLP and pprof have it: type and unit.
pub type ValueName = (&'static str, &'static str);

/// All that is said of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The kind.
    pub kind: SampleKind,
    /// In records: `enum sample_kind`.
    pub record: u32,
    /// Value of the parameter `type` of `/api/v1/profiles`, and of `obi profile --type`.
    pub name: &'static str,
    /// In messages: what samples these are.
    pub label: &'static str,
    /// In titles: what the values are.
    pub quantity: &'static str,
    /// In titles, behind the period: what is looked at so often.
    pub looked_at: &'static str,
    /// In JSON: the sum of values.
    pub field: &'static str,
    /// Of values.
    pub unit: SampleUnit,
    /// In OTLP and pprof: how many samples there are.
    pub count: ValueName,
    /// In OTLP and pprof: the values, and what the period is of.
    pub value: ValueName,
}

/// The table.
pub const ROWS: [Row; 1] = [Row {
    kind: SampleKind::Cpu,
    record: obi_ebpf::SAMPLE_CPU,
    name: "cpu",
    label: "CPU",
    quantity: "CPU time",
    looked_at: "each CPU",
    field: "cpu_seconds",
    unit: SampleUnit::Nanoseconds,
    count: ("samples", "count"),
    value: ("cpu", "nanoseconds"),
}];

impl SampleKind {
    /// What is said of it.
    #[must_use]
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The kind of a record.
    #[must_use]
    pub fn of_record(kind: u8) -> Option<Self> {
        ROWS.iter().find(|row| row.record == u32::from(kind)).map(|row| row.kind)
    }

    /// The kind that is asked for by this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        ROWS.iter().find(|row| row.name == name).map(|row| row.kind)
    }
}

impl SampleUnit {
    /// As people read a value: in seconds.
    #[must_use]
    pub fn shown(self, value: f64) -> f64 {
        match self {
            Self::Nanoseconds => value / 1e9,
        }
    }
}

/// What samples of one kind in a selection are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SampleType {
    /// What was measured.
    pub kind: SampleKind,
    /// What one sample of a clock stands for, in the kind's unit; 0 if each value is one of its own.
    pub period: u64,
}

/// Values beyond are not written: both formats have 63 bits.
const MOST: u64 = i64::MAX as u64;

impl SampleType {
    /// Periods beyond this are those of no clock.
    pub const LONGEST_PERIOD: u64 = 1 << 40;

    /// Samples that a value stands for, to the nearest; none only for a value of 0.
    #[must_use]
    pub fn count(self, value: u64) -> u64 {
        match (value, self.period) {
            (0, _) => 0,
            (_, 0) => 1,
            (value, period) => {
                let (whole, rest) = (value / period, value % period);
                (whole + u64::from(rest >= period - rest)).max(1)
            }
        }
    }

    /// The value of so many samples; at most as many as formats can hold.
    #[must_use]
    pub fn value(self, count: u64) -> u64 {
        let period = self.period.max(1);
        count.min(MOST / period) * period
    }

    /// What is said of its kind.
    #[must_use]
    pub fn row(self) -> &'static Row {
        self.kind.row()
    }
}

impl Selection {
    /// The type that pictures and sums are of: its first. Samples that are to be shown are asked for by kind.
    #[must_use]
    pub fn shown_type(&self) -> SampleType {
        self.types.first().copied().unwrap_or_default()
    }

    /// Samples of that type.
    pub fn shown(&self) -> impl Iterator<Item = &Sample> + Clone {
        let kind = self.shown_type().kind;
        self.samples.iter().filter(move |sample| sample.kind == kind)
    }

    /// The type of a sample's value.
    #[must_use]
    pub fn type_of(&self, kind: SampleKind) -> SampleType {
        let known = self.types.iter().find(|known| known.kind == kind);
        known.copied().unwrap_or(SampleType { kind, period: 0 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_kind_of_record_has_a_row_in_its_place() {
        for (place, row) in ROWS.iter().enumerate() {
            assert_eq!((row.kind as usize, row.kind.row().name), (place, row.name));
            assert_eq!(SampleKind::of_name(row.name), Some(row.kind));
        }
        let known = |kind: u32| SampleKind::of_record(u8::try_from(kind).unwrap()).is_some();
        assert!((1..obi_ebpf::SAMPLE_KINDS).all(known));
        assert!(!known(0) && !known(obi_ebpf::SAMPLE_KINDS) && SampleKind::of_name("").is_none());
    }

    /// Otherwise a file does not say which kind its values are.
    #[test]
    fn names_of_values_are_distinct() {
        let mut names: Vec<_> = ROWS.iter().flat_map(|row| [row.count, row.value]).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }

    #[test]
    fn values_are_counted_by_their_period() {
        let check = |period: u64, value: u64, expected: u64| {
            let of = SampleType { period, ..SampleType::default() };
            assert_eq!(of.count(value), expected, "{value} by {period}");
        };
        check(10_101_010, 10_101_010, 1);
        check(10_101_010, 30_303_030, 3);
        // From before the clock was set to another period.
        check(20_000_000, 10_101_010, 1);
        check(20_000_000, 1, 1);
        check(20_000_000, 31_000_000, 2);
        check(20_000_000, 0, 0);
        check(0, 31_000_000, 1);
        check(u64::MAX, u64::MAX, 1);
        check(1, u64::MAX, u64::MAX);
    }

    proptest! {
        #[test]
        fn counts_lead_back(period in 0..=SampleType::LONGEST_PERIOD, count in 1_u64..1 << 23) {
            let of = SampleType { period: period.max(1), ..SampleType::default() };
            prop_assert_eq!(of.count(of.value(count)), count);
            prop_assert!(i64::try_from(of.value(u64::MAX)).is_ok());
        }
    }
}

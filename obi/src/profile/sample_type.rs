//! Kinds of samples: the one table of what each is called, in which unit it is measured, and how it is asked for.
//!
//! In: `enum sample_kind` of a record, names from files and parameters. Out: a [`SampleKind`], its [`Row`], and the
//! arithmetic between a value and the samples that it stands for. Refuses to know who takes samples, and formats.
//!
//! A value is in the unit of its kind: CPU time is nanoseconds, also where the clock's period has changed in between,
//! or samples were lost before. The period of a [`SampleType`] only says how many samples such a value stands for.
//! A new kind is a program that makes its records, a row here, and what switches it on. Two kinds are other views of
//! samples that are there: [`SampleKind::Wall`] of CPU time and waits in one, [`SampleKind::Lock`] of waits for other
//! threads. Three are read from processes when a caller asks, and show that moment: [`SampleKind::Heap`],
//! [`SampleKind::Alloc`] and [`SampleKind::Goroutines`].

use super::{Sample, Selection};

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum SampleKind {
    /// Time on a CPU.
    #[default]
    Cpu,
    /// Waits of threads that serve requests, for something else than a CPU.
    OffCpu,
    /// CPU time and such waits.
    Wall,
    /// Such waits for another thread. What is held of this kind is who has ended them.
    Lock,
    /// Memory that was touched and not there.
    PageFaults,
    /// Memory that a Go program has allocated and still uses, as its runtime knows it.
    Heap,
    /// Memory that a Go program has allocated since it began, freed or not.
    Alloc,
    /// Goroutines of a Go program.
    Goroutines,
}

/// What a value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SampleUnit {
    /// Time.
    Nanoseconds,
    /// Times that something has happened, or how many there are.
    Count,
    /// Memory.
    Bytes,
}

/// A value type as OTLP and pprof have it: type and unit.
pub type ValueName = (&'static str, &'static str);

/// All that is said of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The kind.
    pub kind: SampleKind,
    /// In records: `enum sample_kind`; 0: no record is of this kind.
    pub record: u32,
    /// Value of the parameter `type` of `/api/v1/profiles`, and of `obi profile --type`.
    pub name: &'static str,
    /// In messages: what samples these are.
    pub label: &'static str,
    /// In titles: what the values are.
    pub quantity: &'static str,
    /// In titles, behind the period: what is looked at so often; empty if nothing is.
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
pub const ROWS: [Row; 8] = [
    Row {
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
    },
    Row {
        kind: SampleKind::OffCpu,
        record: obi_ebpf::SAMPLE_OFF_CPU,
        name: "off_cpu",
        label: "off-CPU",
        quantity: "waiting",
        looked_at: "",
        field: "off_cpu_seconds",
        unit: SampleUnit::Nanoseconds,
        count: ("off_cpu_samples", "count"),
        value: ("off_cpu", "nanoseconds"),
    },
    Row {
        kind: SampleKind::Wall,
        record: 0,
        name: "wall",
        label: "wall-clock",
        quantity: "running and waiting",
        looked_at: "",
        field: "wall_seconds",
        unit: SampleUnit::Nanoseconds,
        count: ("wall_samples", "count"),
        value: ("wall", "nanoseconds"),
    },
    Row {
        kind: SampleKind::Lock,
        record: obi_ebpf::SAMPLE_RELEASE,
        name: "lock",
        label: "lock",
        quantity: "waiting for other threads",
        looked_at: "",
        field: "lock_seconds",
        unit: SampleUnit::Nanoseconds,
        count: ("contention_samples", "count"),
        value: ("delay", "nanoseconds"),
    },
    Row {
        kind: SampleKind::PageFaults,
        record: obi_ebpf::SAMPLE_PAGE_FAULTS,
        name: "page_faults",
        label: "page-fault",
        quantity: "page faults",
        looked_at: "each CPU",
        field: "page_faults",
        unit: SampleUnit::Count,
        count: ("page_fault_samples", "count"),
        value: ("page_faults", "count"),
    },
    Row {
        kind: SampleKind::Heap,
        record: 0,
        name: "heap",
        label: "heap",
        quantity: "memory in use",
        looked_at: "allocated memory",
        field: "heap_bytes",
        unit: SampleUnit::Bytes,
        count: ("heap_samples", "count"),
        value: ("inuse_space", "bytes"),
    },
    Row {
        kind: SampleKind::Alloc,
        record: 0,
        name: "alloc",
        label: "allocation",
        quantity: "memory allocated",
        looked_at: "it",
        field: "alloc_bytes",
        unit: SampleUnit::Bytes,
        count: ("alloc_samples", "count"),
        value: ("alloc_space", "bytes"),
    },
    Row {
        kind: SampleKind::Goroutines,
        record: 0,
        name: "goroutines",
        label: "goroutine",
        quantity: "goroutines",
        looked_at: "",
        field: "goroutines",
        unit: SampleUnit::Count,
        count: ("goroutine_samples", "count"),
        value: ("goroutine", "count"),
    },
];

/// Bytes between two allocations that Go's runtime notes, unless the program sets another number.
pub const HEAP_PERIOD: u64 = 512 * 1024;

impl SampleKind {
    /// What is said of it.
    #[must_use]
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The kind of a record.
    #[must_use]
    pub fn of_record(kind: u8) -> Option<Self> {
        let kind = u32::from(kind);
        ROWS.iter().find(|row| row.record == kind && kind != 0).map(|row| row.kind)
    }

    /// The kind that is asked for by this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        ROWS.iter().find(|row| row.name == name).map(|row| row.kind)
    }

    /// Whether it is made of samples of a kind, as they are held.
    #[must_use]
    pub fn is_made_of(self, held: Self) -> bool {
        match self {
            Self::Wall => matches!(held, Self::Cpu | Self::OffCpu),
            Self::Lock => held == Self::OffCpu,
            kind => kind == held,
        }
    }

    /// Whether something is looked at now and then: then each sample stands for a period, and sums are off by chance.
    #[must_use]
    pub fn has_clock(self) -> bool {
        !self.row().looked_at.is_empty()
    }

    /// Whether it shows one moment of whole processes: it is read when a caller asks, and belongs to no request.
    #[must_use]
    pub fn is_of_moment(self) -> bool {
        matches!(self, Self::Heap | Self::Alloc | Self::Goroutines)
    }

    /// Whether samples of it are held, and go to destinations by themselves.
    #[must_use]
    pub fn is_held(self) -> bool {
        !matches!(self, Self::Wall | Self::Lock) && !self.is_of_moment()
    }
}

impl SampleUnit {
    /// As people read a value: in seconds, or as it is.
    #[must_use]
    pub fn shown(self, value: f64) -> f64 {
        match self {
            Self::Nanoseconds => value / 1e9,
            Self::Count | Self::Bytes => value,
        }
    }

    /// How a shown value's name ends in JSON.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Nanoseconds => "_seconds",
            Self::Count => "_count",
            Self::Bytes => "_bytes",
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

    /// Whether a value is off by chance, and by as much as itself: that of a clock is, and that of a wait
    /// which was sampled for others as short, to the length of a threshold (`Waits::set_threshold`). A wait
    /// that was longer is what it is; that one is a power of two of milliseconds to the nanosecond happens
    /// once in many thousands.
    #[must_use]
    pub fn is_by_chance(self, value: u64) -> bool {
        let is_threshold = value.is_multiple_of(MILLISECOND) && (value / MILLISECOND).is_power_of_two();
        match self.kind {
            SampleKind::Cpu | SampleKind::PageFaults | SampleKind::Heap | SampleKind::Alloc => {
                self.period > 0
            }
            SampleKind::Goroutines => false,
            SampleKind::OffCpu | SampleKind::Lock => is_threshold,
            SampleKind::Wall => is_threshold || (self.period > 0 && value.is_multiple_of(self.period)),
        }
    }

    /// Samples that stand behind a value as it is held: one, unless a site's are put together.
    #[must_use]
    pub fn samples(self, value: u64) -> u64 {
        if self.kind.is_of_moment() { self.count(value) } else { 1 }
    }

    /// What is said of its kind.
    #[must_use]
    pub fn row(self) -> &'static Row {
        self.kind.row()
    }
}

const MILLISECOND: u64 = 1_000_000;

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
    fn what_stands_for_others_is_off_by_chance() {
        let check = |kind, value: u64, expected: bool| {
            let of = SampleType { kind, period: 10_101_010 };
            assert_eq!(of.is_by_chance(value), expected, "{kind:?} {value}");
        };
        check(SampleKind::Cpu, 7, true);
        check(SampleKind::PageFaults, 7, true);
        check(SampleKind::OffCpu, 8_000_000, true);
        check(SampleKind::OffCpu, 8_000_001, false);
        check(SampleKind::Lock, 12_000_000, false);
        check(SampleKind::Wall, 20_202_020, true);
        check(SampleKind::Wall, 64_000_000, true);
        check(SampleKind::Wall, 64_000_003, false);
        check(SampleKind::Heap, 7, true);
        check(SampleKind::Goroutines, 7, false);
    }

    #[test]
    fn what_is_put_together_stands_for_several_samples() {
        let check = |kind, value: u64, expected: u64| {
            assert_eq!(SampleType { kind, period: 10 }.samples(value), expected, "{kind:?} {value}");
        };
        check(SampleKind::Cpu, 30, 1);
        check(SampleKind::OffCpu, 30, 1);
        check(SampleKind::Heap, 30, 3);
        check(SampleKind::Heap, 1, 1);
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

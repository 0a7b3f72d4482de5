//! What sampling does and costs, in numbers.
//!
//! In: the sampler and all that it owns. Out: a [`View`]. Changes nothing.

use obi_ebpf::{
    GUEST_APART, GUEST_NO_BLOB, GUEST_NO_CALLER, GUEST_NO_CODE, GUEST_NO_FUNCTION, GUEST_NO_METHOD,
    GUEST_NO_THREAD, GUEST_NO_V8, GUEST_UNLINKED, GUEST_UNREADABLE,
};

use super::super::symbolizer::FIDELITIES;
use super::Sampler;
use crate::capture::mapping::interpreter::Fares;
use crate::capture::program::profile::Waits;
use crate::profile::Runtime;
use crate::profile::naming::truncation;
use crate::profile::view::{Interpreter, View};

impl Sampler {
    pub(super) fn look(&self) -> View {
        let (seen, state) = (self.state.seen, &self.state);
        let (named, mappings, counts) = (self.named.load(), self.resolver.counts(), self.store.counts());
        let (held, store_bytes) = self.store.size();
        let (kept_bytes, kept_refused) = self.store.kept_usage();
        let symbols = named.symbols;
        let truncated = (0_u8..).zip(state.ends).filter_map(|(end, n)| Some((truncation(end)?, n)));
        View {
            frequency: self.rhythm.hertz,
            samples: state.samples,
            skipped: vec![
                ("idle", seen.cpu.idle),
                ("agent", seen.cpu.own + seen.page_faults.own),
                ("ignored_process", seen.cpu.ignored + seen.page_faults.ignored),
            ],
            types: self.rhythm.types.clone(),
            wait_threshold: self.profiler.waits.as_ref().map_or(0, Waits::threshold),
            lost: vec![
                ("ring_full", seen.cpu.lost + seen.waits.lost + seen.page_faults.lost),
                ("walk_busy", seen.waits.busy),
                ("undecodable", state.undecodable),
                ("evicted_unexported", counts.unexported),
                ("export_busy", named.unexported),
            ],
            truncated: truncated.collect(),
            frames: FIDELITIES.iter().zip(named.frames).map(|((word, _), n)| (*word, n)).collect(),
            links: vec![
                ("linked", counts.linked),
                ("outside_span", counts.outside),
                ("ambiguous", counts.ambiguous),
            ],
            failures: vec![
                ("job_refused", state.jobs_refused),
                ("places_late", state.late),
                ("side_band_lost", mappings.records_lost),
                ("mappings_full", mappings.mappings_full),
                ("processes_full", mappings.processes_full),
                ("blocks_full", mappings.blocks_full),
                ("tables_evicted", mappings.evicted),
                ("tables_full", mappings.tables_full),
                ("tables_refused", mappings.tables_refused),
                ("not_looked_at", mappings.not_asked),
                ("frames_unnamed", symbols.unnamed),
                ("names_late", named.late),
                ("functions_replaced", self.guests.counts.replaced),
                ("functions_full", self.guests.counts.refused),
                ("release_unmatched", self.releases.unmatched),
                ("evidence_full", kept_refused),
                ("python_no_thread", state.marks[GUEST_NO_THREAD as usize]),
                ("python_unreadable", state.marks[GUEST_UNREADABLE as usize]),
                ("python_no_code", state.marks[GUEST_NO_CODE as usize]),
                ("python_unlinked", state.marks[GUEST_UNLINKED as usize]),
                ("python_apart", state.marks[GUEST_APART as usize]),
                ("java_no_method", state.marks[GUEST_NO_METHOD as usize]),
                ("java_no_code", state.marks[GUEST_NO_BLOB as usize]),
                ("java_no_caller", state.marks[GUEST_NO_CALLER as usize]),
                ("node_no_function", state.marks[GUEST_NO_FUNCTION as usize]),
                ("node_not_known", state.marks[GUEST_NO_V8 as usize]),
            ],
            memory: vec![
                ("samples", store_bytes as u64),
                ("evidence", kept_bytes as u64),
                ("names", symbols.cache_bytes),
                ("functions", self.guests.counts.bytes),
                ("symbol_files", symbols.file_bytes),
                ("made_code", symbols.code_bytes),
                ("kernel_names", symbols.kernel_bytes),
            ],
            map_bytes: mappings.table_bytes + mappings.mapping_bytes + mappings.ring_bytes + self.fixed_bytes,
            files: mappings.files,
            tables: mappings.table_files,
            held: held as u64,
            interpreters: self.resolver.interpreters().map(interpreter).collect(),
        }
    }
}

fn interpreter(fares: Fares) -> Interpreter {
    let Fares { tgid, kind, version, off } = fares;
    let runtime = kind.map_or(Runtime::Native, Runtime::from);
    Interpreter { pid: tgid, runtime, version: version.to_string(), off: off.map(|unfit| unfit.to_string()) }
}

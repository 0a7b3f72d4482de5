//! pprof: selections of samples to the format that profiling tools read, and back.
//!
//! In: a [`crate::profile::Selection`], or a file from anywhere, compressed or not. Out: the same the other way round.
//! Refuses to know where files go.
//!
//! [`encode`] loses nothing: each sample is one of pprof's, with its moment as label `timestamp_ns` (pprof itself has
//! no times). Values are two of each kind, by the names in [`crate::profile::sample_type`]: `samples`/`count` and
//! `cpu`/`nanoseconds`; labels `thread_id`, `thread`, `cpu`, `process_id`,
//! `service`, `route` and, for samples of a span, `trace_id` and `span_id` as Pyroscope knows them. What pprof has no
//! place for is in the last text of the table (`note`), to which nothing refers, so that no tool prints it: attributes
//! of resources, further build ids, kinds of frames. A comment says how many samples are missing, if any are. Tools
//! that write a profile anew leave it out, or renumber locations, which is noticed; the rest is still read. The first
//! mapping is that of the program.
//!
//! [`merged`] is for stores: samples of one stack and span are one, without times and threads.
//!
//! [`decode`] gives back what [`encode`] was given, with the exceptions of [`super::otlp::profile`], and times beyond
//! those that fit into 63 bits.

mod decode;
mod encode;
mod message;
mod note;

pub use self::decode::{DecodeError, decode};
pub use self::encode::{encode, merged};

const TIMESTAMP: &str = "timestamp_ns";
const THREAD_ID: &str = "thread_id";
const THREAD: &str = "thread";
const CPU: &str = "cpu";
const PROCESS_ID: &str = "process_id";
const SERVICE: &str = "service";
const ROUTE: &str = "route";
const TRACE_ID: &str = "trace_id";
const SPAN_ID: &str = "span_id";
/// Which resource of the note, counted from 1; absent where there is only one.
const RESOURCE: &str = "resource";

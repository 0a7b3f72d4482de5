//! OTLP profiles: selections of samples to export requests, and back.
//!
//! In: a [`crate::profile::Selection`], or the bytes of a request from anywhere. Out: the same the other way round.
//! Refuses to know where requests go, and who took the samples.
//!
//! The layout is that of opentelemetry-proto v1.10 and v1.11, of which this is a careful subset that Collector,
//! Pyroscope, Parca and the official conformance checker all accept:
//!
//! - One resource per process, with the attributes of its spans as plain text. All tables in one dictionary per request.
//! - Each kind of samples is a profile of its own, by the names in [`crate::profile::sample_type`]: `samples`/`count` by
//!   `cpu`/`nanoseconds`. A sample of a clock says when it was taken; one that stands for several periods says so as
//!   often, and one of very many is in a profile of its own, with its value: receivers are not at one about values
//!   beside timestamps. What has no clock has values.
//! - Samples of a span link to it, and carry its route as `http.route`, or its method as `rpc.method`.
//! - Mappings have all build ids known. A location's address is that of the instruction or the call, and its attributes
//!   are `profile.frame.type`, [`FIDELITY`] and, behind calls, [`IS_RETURN`].
//! - A frame without a name has a line that says file and offset in it; a marker has the words it is shown with.
//!
//! `decode` gives back what `encode` was given, but for: attributes of service and instance, which come back as the
//! instance's; the number of the service; samples of one thread, stack and moment, which come back as one with their
//! values added; the order of samples of one moment.

mod decode;
mod dictionary;
mod encode;

pub use self::decode::{DecodeError, decode};
pub use self::encode::{Request, encode, encode_within};

/// Largest request: gRPC servers take 4 MiB by default, of which some is left for framing and for what is on the way.
pub const REQUEST_BYTES: usize = 7 << 19;

/// `profile.frame.type` (semantic conventions, registry of profiles).
const FRAME_TYPE: &str = "profile.frame.type";
/// Attribute of locations: `lines`, `function`, `address` or `marker`.
pub const FIDELITY: &str = "obi.frame.fidelity";
/// Attribute of locations: true where the stack held the address behind the call.
pub const IS_RETURN: &str = "obi.frame.is_return";
/// Attribute of the first profile of a request: samples of its time that are missing.
pub const LOST_SAMPLES: &str = "obi.lost_samples";
const THREAD_ID: &str = "thread.id";
const THREAD_NAME: &str = "thread.name";
const CPU: &str = "cpu.logical_number";
const ROUTE: &str = "http.route";
const METHOD: &str = "rpc.method";
const BUILD_ID_GNU: &str = "process.executable.build_id.gnu";
const BUILD_ID_GO: &str = "process.executable.build_id.go";
const BUILD_ID_HTLHASH: &str = "process.executable.build_id.htlhash";

//! Names of the pods of this node: from the kubelet, from the API server, or from names of log folders.
//!
//! In: what these sources send. Out: [`Pods`], a table that every thread reads. Refuses to know processes: the caller
//! that has found a pod's UID in a control group asks for it here.
//!
//! ```text
//! kubelet's socket ──┐
//! API server ────────┼─▶ source ──Pod──▶ Pods ◀── which pod has this UID, this address?
//! names of folders ──┘
//! ```
//!
//! - [`pod`]: what is kept of a pod, bounded. [`workload`]: what owns it.
//! - [`message`], [`frame`]: bytes to pods, pure.
//! - [`table`]: the pods that are known, and since when which address is whose. [`services`]: the same of services.
//! - [`source`]: how they are asked, in which order, and how often again.
#![forbid(unsafe_code)]

pub mod frame;
pub mod message;
pub mod pod;
pub mod services;
pub mod source;
pub mod table;
mod uid;
pub mod view;
pub mod workload;

use thiserror::Error;

pub use self::pod::Pod;
pub use self::table::Pods;
pub use self::uid::PodUid;

/// Why what a source sent could not be used.
#[derive(Debug, Error)]
pub enum Error {
    /// Not a message of the kind that was asked for.
    #[error("a message cannot be decoded: {0}")]
    Message(#[from] prost::DecodeError),
    /// Not what the API server marks as such.
    #[error("a message is not in Kubernetes' protobuf format")]
    NotProtobuf,
    /// Compression was not asked for.
    #[error("a message is compressed")]
    Compressed,
    /// Longer than any object may be.
    #[error("a message has {bytes} bytes, more than {most}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        most: usize,
    },
}

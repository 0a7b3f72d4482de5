//! The kernel's own type information (BTF): what its structures, functions and tracepoints look like.
//!
//! In: `/sys/kernel/btf/vmlinux`, or a file in its place. Out: [`KernelTypes`] for those who load programs or want to
//! know whether the kernel has something. Refuses to compare versions.
#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};

use aya::{Btf, BtfError, Endianness};
use aya_obj::btf::BtfKind;
use thiserror::Error;

use super::btf::{BtfFormat, Types};

/// Where kernels with `CONFIG_DEBUG_INFO_BTF=y` show theirs.
pub use crate::config::KERNEL_BTF;

/// Why the type information could not be read.
#[derive(Debug, Error)]
pub enum KernelTypesError {
    /// The file could not be opened or read.
    #[error("failed to read `{path}`: {reason}")]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// The library does not understand it.
    #[error("failed to understand `{path}`: {reason}")]
    Parse {
        /// Which.
        path: PathBuf,
        /// What the library said.
        reason: BtfError,
    },
    /// We do not understand it.
    #[error("failed to understand `{path}`: {reason}")]
    Format {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        reason: BtfFormat,
    },
}

/// Types, functions and tracepoints of the running kernel. Some 20 MB: to be dropped after loading.
#[derive(Debug)]
pub struct KernelTypes {
    /// Where it came from.
    pub path: PathBuf,
    /// For the library.
    pub btf: Btf,
    bytes: Vec<u8>,
}

impl KernelTypes {
    /// Reads the kernel's, or the file given.
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub fn read(file: Option<&Path>) -> Result<Self, KernelTypesError> {
        let path = file.unwrap_or(Path::new(KERNEL_BTF)).to_owned();
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(reason) => return Err(KernelTypesError::Read { path, reason }),
        };
        if let Err(reason) = Types::parse(&bytes) {
            return Err(KernelTypesError::Format { path, reason });
        }
        match Btf::parse(&bytes, Endianness::default()) {
            Ok(btf) => Ok(Self { path, btf, bytes }),
            Err(reason) => Err(KernelTypesError::Parse { path, reason }),
        }
    }

    /// Number of the signature type of a tracepoint: the kernel has the tracepoint exactly if it has the type.
    #[must_use]
    pub fn tracepoint(&self, name: &str) -> Option<u32> {
        self.btf.id_by_type_name_kind(&format!("btf_trace_{name}"), BtfKind::Typedef).ok()
    }

    /// Number of a function's type: inlined functions have none, nor have those of modules.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<u32> {
        self.btf.id_by_type_name_kind(name, BtfKind::Func).ok()
    }

    /// Whether the kernel has a structure of this name.
    #[must_use]
    pub fn has_structure(&self, name: &str) -> bool {
        self.btf.id_by_type_name_kind(name, BtfKind::Struct).is_ok()
    }

    /// Whether the kernel has a variable of this name, of those that are per processor: others have no type.
    #[must_use]
    pub fn has_variable(&self, name: &str) -> bool {
        self.btf.id_by_type_name_kind(name, BtfKind::Var).is_ok()
    }

    /// Which parameter of a function has this name, from 0.
    #[must_use]
    pub fn parameter(&self, function: &str, parameter: &str) -> Option<u32> {
        Types::parse(&self.bytes).ok()?.parameter(function, parameter)
    }
}

//! The processors that kernels are booted for, and what each means to Debian and to QEMU.
//!
//! In: an architecture. Out: names of packages, of Rust's target and of the emulator, with what it needs to be given.
//! Refuses to know what runs there.

/// What a kernel was built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// This machine's, so that guests see its files.
    Amd64,
    /// Guests see a Debian tree of that architecture instead.
    Arm64,
}

/// Newer models are slower to emulate.
const AMD64: &str = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt";
/// Without pointers that are signed, which take most of an emulator's time. It has no atomic instructions either, so
/// the kernel takes its other way to each of them.
const ARM64: &str = "cortex-a72";

impl Architecture {
    /// As Debian calls it.
    #[must_use]
    pub fn debian(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// As Rust calls a machine of it that needs no C library.
    #[must_use]
    pub fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-musl",
            Self::Arm64 => "aarch64-unknown-linux-musl",
        }
    }

    /// The package that always depends on the newest image: cloud kernels are small and have virtio.
    #[must_use]
    pub fn newest_image(self) -> String {
        format!("linux-image-cloud-{}", self.debian())
    }

    /// QEMU's program.
    #[must_use]
    pub fn emulator(self) -> &'static str {
        match self {
            Self::Amd64 => "qemu-system-x86_64",
            Self::Arm64 => "qemu-system-aarch64",
        }
    }

    /// The kernel's name of the serial port that QEMU gives it.
    #[must_use]
    pub fn console(self) -> &'static str {
        match self {
            Self::Amd64 => "ttyS0",
            Self::Arm64 => "ttyAMA0",
        }
    }

    /// The processor to emulate. QEMU before 8.1 returns wrong flags from `cmpxchg16b`: only where there is no way
    /// without (`needs_cx16`).
    #[must_use]
    pub fn processor(self, needs_cx16: bool) -> String {
        match self {
            Self::Amd64 => format!("{AMD64},{}cx16", if needs_cx16 { '+' } else { '-' }),
            Self::Arm64 => ARM64.to_owned(),
        }
    }

    /// The machine around it.
    #[must_use]
    pub fn machine(self) -> &'static str {
        match self {
            Self::Amd64 => "q35,memory-backend=mem",
            Self::Arm64 => "virt,gic-version=3,memory-backend=mem",
        }
    }
}

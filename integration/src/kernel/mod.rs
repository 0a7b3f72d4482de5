//! Other kernels than this machine's: Debian's, booted in virtual machines.
//!
//! In: the name of a kernel series and a command. Out: what the command said there and how it ended.
//!
//! - [`architecture`]: for which processors; [`release`]: which kernels, and where Debian has them.
//! - [`archive`]: fetched and unpacked; [`image`]: one of them on disk.
//! - [`tree`]: a Debian of another architecture, from packages.
//! - [`initramfs`], [`share`]: how a guest starts and sees this machine's files, or that tree.
//! - [`machine`]: one virtual machine, from boot to the command's exit status.
//! - [`program`], [`system_call`], [`verifier`]: every kernel program of ours, given to the running kernel's verifier.
//! - [`stack`]: what each of them takes of the stack, where this kernel is more generous than others.
//! - [`type_information`]: every object against a kernel's BTF, without booting it.
//! - [`matrix`]: all of it for each kernel, as one table.

pub mod architecture;
pub mod archive;
pub mod image;
pub mod initramfs;
pub mod machine;
pub mod matrix;
pub mod program;
pub mod release;
pub mod share;
pub mod stack;
pub mod system_call;
pub mod tree;
pub mod type_information;
pub mod verifier;

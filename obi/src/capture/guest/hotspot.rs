//! HotSpot: from its file to what the kernel's walk and the thread that reads names need of a process.
//!
//! In: `libjvm`; a process's memory. Out: [`Build`], [`Known`]. The JVM describes itself, for debuggers: exported
//! variables lead to tables of its types, their fields and its constants, all by name ([`table`]). So one way holds for
//! all versions whose frames look alike. What is missing there, or is implausible, switches Java's functions off.

mod code;
mod compiled;
mod table;

use obi_ebpf::jvm;
use object::elf::EM_X86_64;

pub use self::compiled::{Compiled, Parts};
use self::table::{Tables, Vm};
use super::{Memory, Unfit, symbol};
use crate::capture::executable::elf::Elf;
use crate::capture::tls::elf::Source;

/// HotSpot in a file; addresses are of the file's own layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    tables: Tables,
}

/// What is needed of a process.
#[derive(Debug, Clone)]
pub struct Known {
    /// As it calls itself.
    pub version: String,
    /// For the kernel's walk; `tgid` is to be set.
    pub jvm: jvm,
    /// For the thread that reads names.
    pub layout: Layout,
}

/// How methods, their classes and names lie in memory. Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// In a method: what of it never changes.
    pub const_method: u16,
    /// There: the constants of its class.
    pub constants: u16,
    /// There: flags.
    pub flags: u16,
    /// Of these, the one that says that a table of lines is there.
    pub has_lines: u32,
    /// There: bytes of bytecode.
    pub code_size: u16,
    /// There: which constant its name is.
    pub name: u16,
    /// There: which constant its signature is.
    pub signature: u16,
    /// There: the bytecode, behind which the lines are.
    pub bytecode: u16,
    /// In constants: their kinds.
    pub tags: u16,
    /// In constants: their class.
    pub holder: u16,
    /// In constants: how many.
    pub length: u16,
    /// In constants, or in their class: which of them is the name of the source's file.
    pub source: u16,
    /// In their class (before 12).
    pub source_is_of_class: bool,
    /// In constants: the first of them.
    pub first: u16,
    /// In a class: its name.
    pub class_name: u16,
    /// In a symbol: its length, and its bytes.
    pub symbol_length: u16,
    /// There: its bytes.
    pub symbol_bytes: u16,
    /// In an array of bytes: the first.
    pub array_bytes: u16,
    /// Numbers of the table of lines have no byte that is 0 (since 20).
    pub excludes_zero: bool,
    /// Of compiled methods; `None`: what they have inlined is not known.
    pub compiled: Option<Compiled>,
}

/// The versions whose frames are known: 11 and those behind it.
const FIRST: u32 = 11;

/// As [`super::recognise`].
pub(super) fn recognise(source: &dyn Source) -> Option<Result<Build, Unfit>> {
    let elf = Elf::read(source).ok()?;
    let mut found = [None; table::NAMES.len()];
    symbol::linked(&elf, source, |name, symbol| {
        if let Some(index) = table::NAMES.iter().position(|wanted| wanted.as_bytes() == name) {
            found[index].get_or_insert(symbol.address);
        }
    });
    // What has no table of structures is no JVM.
    found[0]?;
    if elf.machine != EM_X86_64 {
        return Some(Err(Unfit::Processor));
    }
    Some(Tables::of(&found).map(|tables| Build { tables }))
}

impl Build {
    /// As [`super::Build::examine`].
    ///
    /// # Errors
    /// When something does not prove itself, or has not begun.
    pub fn examine(&self, memory: &dyn Memory, bias: u64) -> Result<Known, Unfit> {
        let vm = Vm::read(&self.tables, memory, bias)?;
        let (major, version) = version(&vm)?;
        if major < FIRST {
            return Err(Unfit::OldJava(version));
        }
        let layout = layout(&vm, major)?;
        let jvm = code::places(&vm, &layout)?;
        let compiled = compiled::of(&vm, &jvm).ok();
        Ok(Known { version, jvm, layout: Layout { compiled, ..layout } })
    }
}

/// The number of the release, and the whole text.
fn version(vm: &Vm<'_>) -> Result<(u32, String), Unfit> {
    const RELEASE: &str = "Abstract_VM_Version._s_vm_release";
    let text = vm.text(vm.value(RELEASE)?, 64).ok_or(Unfit::Proof(RELEASE))?;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    let major = text.split(|sign: char| !sign.is_ascii_digit()).next().and_then(|digits| digits.parse().ok());
    major.filter(|_| is_plain).map(|major| (major, text)).ok_or(Unfit::Proof(RELEASE))
}

fn layout(vm: &Vm<'_>, major: u32) -> Result<Layout, Unfit> {
    let flags = vm.offset("ConstMethod._flags").or_else(|_| vm.offset("ConstMethod._flags._flags"))?;
    let has_lines = vm.constant("ConstMethod::_has_linenumber_table");
    let has_lines = has_lines.or_else(|_| vm.constant("ConstMethodFlags::_misc_has_linenumber_table"))?;
    // Since 9 a symbol's bytes have the second name, before it the first.
    let bytes = vm.offset("Symbol._body").or_else(|_| vm.offset("Symbol._body[0]"))?;
    let source = vm.offset("ConstantPool._source_file_name_index").map(|offset| (offset, false));
    let of_class = || vm.offset("InstanceKlass._source_file_name_index").map(|offset| (offset, true));
    let (source, source_is_of_class) = source.or_else(|_| of_class())?;
    Ok(Layout {
        const_method: vm.word_offset("Method._constMethod")?,
        constants: vm.offset("ConstMethod._constants")?,
        flags,
        has_lines: u32::try_from(has_lines).map_err(|_| Unfit::Proof("ConstMethod._flags"))?,
        code_size: vm.offset("ConstMethod._code_size")?,
        name: vm.offset("ConstMethod._name_index")?,
        signature: vm.offset("ConstMethod._signature_index")?,
        bytecode: vm.size("ConstMethod")?,
        tags: vm.offset("ConstantPool._tags")?,
        holder: vm.offset("ConstantPool._pool_holder")?,
        length: vm.offset("ConstantPool._length")?,
        source,
        source_is_of_class,
        first: vm.size("ConstantPool")?,
        class_name: vm.offset("Klass._name")?,
        symbol_length: vm.offset("Symbol._length")?,
        symbol_bytes: bytes,
        array_bytes: vm.offset("Array<u1>._data")?,
        excludes_zero: major >= 20,
        compiled: None,
    })
}

#[cfg(test)]
mod tests;

//! Which addresses of held samples lie in files that are about to be closed.
//!
//! In: files, stacks. Out: addresses in each file's own layout, once each. Looks at every stack once, whatever the
//! number of files: after many short programs many are closed together, and the ring is not read meanwhile. Refuses to
//! know names.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::super::frame_address::{FrameAddress, Within};
use crate::capture::mapping::file::ExecutableFile;
use crate::profile::store::Places;

/// By the files' numbers; a file that no stack goes through has none.
pub(super) fn addresses_in<'a>(
    files: &[Arc<ExecutableFile>],
    stacks: impl Iterator<Item = &'a Places<FrameAddress>>,
) -> HashMap<u64, Vec<u64>, RandomState> {
    let mut found: HashMap<u64, Vec<u64>, RandomState> =
        files.iter().map(|file| (file.id, Vec::new())).collect();
    for place in stacks.flat_map(|stack| &stack.places) {
        let Within::Mapped(mapping, is_return) = &place.within else { continue };
        let Some(file) = mapping.file() else { continue };
        let Some(addresses) = found.get_mut(&file.id) else { continue };
        let address = place.address.wrapping_sub(u64::from(*is_return));
        addresses.extend(file.address(mapping.file_offset(address)));
    }
    for addresses in found.values_mut() {
        addresses.sort_unstable();
        addresses.dedup();
    }
    found
}

//! Where the frames of a sample are.
//!
//! In: a sample's words, what processes map, what is known of interpreters. Out: a [`FrameAddress`] for each frame.
//! Refuses to know what places are called.

use super::frame_address::{FrameAddress, Within, mark};
use super::guests::Guests;
use crate::capture::mapping::resolver::{Resolved, Resolver, Sampled};
use crate::capture::stack::{StackSample, UserFrame};
use crate::profile::symbol::function::Object;
use crate::profile::symbol::java;

/// Finds the places of all addresses. True when some are being looked for.
pub(super) fn find(
    (resolver, guests): (&mut Resolver, &mut Guests),
    sample: &StackSample<'_>,
    places: &mut Vec<FrameAddress>,
) -> bool {
    places.clear();
    let header = &sample.event.header;
    let mut is_first = true;
    for address in sample.kernel() {
        places.push(FrameAddress { address: *address, within: Within::Kernel(!is_first) });
        is_first = false;
    }
    let (mut is_pending, serves) = (false, header.exchange != 0);
    let mut words = sample.user().peekable();
    while let Some(user) = words.next() {
        let user = match user {
            UserFrame::Native(user) => user,
            UserFrame::Function { kind, address, position } => {
                let compiled = words.peek().and_then(compiled);
                let function = guests.see(header.tgid, Object { kind, address, compiled }, header.time);
                let address = position.map_or(u64::MAX, u64::from);
                places.push(FrameAddress { address, within: Within::Function(function) });
                continue;
            }
            // Taken together with the word before it.
            UserFrame::Code { .. } => continue,
            UserFrame::Mark(failure) => {
                places.push(FrameAddress { address: mark(failure, sample.event.end), within: Within::Mark });
                continue;
            }
        };
        let (address, is_return) = (user.address, !user.is_exact);
        let sampled = Sampled { tgid: header.tgid, address, is_return, serves, time: header.time };
        let within = match resolver.resolve(sampled) {
            Resolved::Mapped(place) => Within::Mapped(place.mapping, is_return),
            Resolved::Pending => {
                is_pending = true;
                Within::Nothing(is_return)
            }
            Resolved::Nowhere => Within::Nothing(is_return),
        };
        places.push(FrameAddress { address, within });
    }
    is_pending
}

/// Where in compiled code the frame before this word is.
fn compiled(word: &UserFrame) -> Option<java::CompiledFrame> {
    let UserFrame::Code { address, compilation } = *word else { return None };
    Some(java::CompiledFrame { address: address.address, compilation, is_exact: address.is_exact })
}

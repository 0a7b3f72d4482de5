//! Bodies of requests: read as they come, inflated, never more than there is room for.
//!
//! In: a body. Out: its bytes with their share of the budget, or why not. Refuses to know what they mean.

use std::io::Read as _;

use flate2::read::MultiGzDecoder;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Buf};

use super::budget::{Budget, Share};
use super::view::Refused;

/// Largest body as it comes, as gRPC servers take it by default.
pub(super) const WIRE_BYTES: usize = 4 << 20;
/// Largest body inflated.
pub(super) const INFLATED_BYTES: usize = 16 << 20;
/// What inflating takes at a time.
const STEP: usize = 64 << 10;

/// Bytes, and the memory that counts for them.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) bytes: Vec<u8>,
    pub(super) share: Share,
}

/// Reads all of a body. It may end early by its sender; then it is malformed.
pub(super) async fn read<B: Body + Unpin>(mut body: B, budget: &Budget) -> Result<Held, Refused> {
    let mut held = Held { bytes: Vec::new(), share: budget.share() };
    if body.size_hint().lower() > WIRE_BYTES as u64 {
        return Err(Refused::TooLarge);
    }
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Refused::Malformed)?;
        let Ok(mut part) = frame.into_data() else { continue };
        if held.bytes.len() + part.remaining() > WIRE_BYTES {
            return Err(Refused::TooLarge);
        }
        while part.has_remaining() {
            let n_bytes = part.chunk().len();
            held.append(part.chunk(), budget)?;
            part.advance(n_bytes);
        }
    }
    Ok(held)
}

impl Held {
    fn append(&mut self, more: &[u8], budget: &Budget) -> Result<(), Refused> {
        let wanted = self.bytes.len() + more.len();
        if wanted > self.bytes.capacity() {
            // Grown by half, so that few bytes at a time are not copied again and again.
            let capacity = wanted.max(self.bytes.capacity() * 3 / 2).next_multiple_of(4 << 10);
            if !budget.extend(&mut self.share, capacity - self.bytes.capacity()) {
                return Err(Refused::Busy);
            }
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(more);
        Ok(())
    }

    /// What it inflates to.
    pub(super) fn inflated(self, budget: &Budget) -> Result<Self, Refused> {
        let mut inflated = Self { bytes: Vec::new(), share: budget.share() };
        let mut decoder = MultiGzDecoder::new(&*self.bytes);
        let mut step = vec![0; STEP];
        loop {
            let n_bytes = decoder.read(&mut step).map_err(|_| Refused::Malformed)?;
            if n_bytes == 0 {
                return Ok(inflated);
            }
            if inflated.bytes.len() + n_bytes > INFLATED_BYTES {
                return Err(Refused::TooLarge);
            }
            inflated.append(&step[..n_bytes], budget)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::write::GzEncoder;
    use http_body_util::Full;
    use prost::bytes::Bytes;

    use super::*;

    fn packed(n_bytes: usize) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&vec![0; n_bytes]).unwrap();
        encoder.finish().unwrap().into()
    }

    async fn taken(body: Bytes, is_packed: bool, budget: &Budget) -> Result<usize, Refused> {
        let held = read(Full::new(body), budget).await?;
        let held = if is_packed { held.inflated(budget)? } else { held };
        assert!(budget.used() as usize >= held.bytes.len());
        Ok(held.bytes.len())
    }

    #[tokio::test]
    async fn nothing_larger_than_allowed_is_held() {
        let budget = Budget::new(40 << 20);
        let check = async |body: Bytes, is_packed, expected| {
            assert_eq!(taken(body, is_packed, &budget).await, expected);
            assert_eq!(budget.used(), 0, "everything is given back");
        };
        check(Bytes::new(), false, Ok(0)).await;
        check(vec![7; WIRE_BYTES].into(), false, Ok(WIRE_BYTES)).await;
        check(vec![7; WIRE_BYTES + 1].into(), false, Err(Refused::TooLarge)).await;
        check(packed(1_000_000), true, Ok(1_000_000)).await;
        check(packed(INFLATED_BYTES), true, Ok(INFLATED_BYTES)).await;
        // A bomb: a few KiB that become 100 MiB.
        check(packed(100 << 20), true, Err(Refused::TooLarge)).await;
        check(Bytes::from_static(b"no gzip"), true, Err(Refused::Malformed)).await;
        check(packed(1_000).slice(..20), true, Err(Refused::Malformed)).await;
        let small = Budget::new(100_000);
        assert_eq!(taken(packed(1_000_000), true, &small).await, Err(Refused::Busy));
        assert_eq!(taken(vec![7; 200_000].into(), false, &small).await, Err(Refused::Busy));
        assert_eq!(small.used(), 0);
    }
}

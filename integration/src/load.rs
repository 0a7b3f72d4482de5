//! Random exchanges.
//!
//! In: what a server honours, what a client can do, a seeded generator. Out: calls. Refuses to know processes.

use crate::client::Kind;
use crate::plan::Call;
use crate::server::Features;
use crate::shape::{Ending, Framing, RequestFraming, Shape};

/// `count` calls that end whole, of shapes that both sides can make.
#[must_use]
pub fn calls(rng: &mut fastrand::Rng, features: &Features, client: Kind, count: usize) -> Vec<Call> {
    (0..count).map(|_| Call::new(shape(rng, features, client))).collect()
}

/// One random shape that ends whole.
#[must_use]
pub fn shape(rng: &mut fastrand::Rng, features: &Features, client: Kind) -> Shape {
    let pick = "every server honours at least one";
    let mut shape = Shape {
        method: (*rng.choice(features.methods).expect(pick)).to_owned(),
        status: *rng.choice(features.statuses).expect(pick),
        framing: *rng.choice(features.framings).expect(pick),
        response_bytes: size(rng, features.sizes),
        ..Shape::default()
    };
    if !matches!(shape.method.as_str(), "GET" | "HEAD" | "OPTIONS") {
        shape.request_framing = *rng.choice(features.request_framings).expect(pick);
        if shape.request_framing != RequestFraming::None {
            shape.request_bytes = size(rng, &[]);
            if !features.has_body_always {
                shape.status = 200;
            }
        }
    }
    // A 204 or 304 has no framing at all; only a HEAD may promise what it does not send.
    if shape.is_bodiless() && (shape.framing == Framing::Close || matches!(shape.status, 204 | 304)) {
        shape.framing = Framing::Length;
    }
    if features.has_clock {
        if rng.u8(..10) == 0 {
            shape.delay = rng.u32(1_000..20_000);
        }
        if rng.u8(..5) == 0 && !shape.is_bodiless() {
            shape.pieces = rng.u32(2..6);
            shape.gap = rng.u32(0..1_000);
        }
    }
    debug_assert!(client.can(&shape), "all clients can make plain exchanges");
    shape
}

/// One random shape of what only the raw client and server can do together: interim responses, trailers, heads in
/// pieces and beyond limits, HTTP/1.0, absolute targets, unknown methods, upgrades.
#[must_use]
pub fn odd_shape(rng: &mut fastrand::Rng, features: &Features) -> Shape {
    let mut shape = shape(rng, features, Kind::Shape);
    shape.trailers = rng.bool();
    match rng.u8(..8) {
        0 => shape.interim = rng.u32(1..4),
        1 => shape.head_pieces = rng.u32(2..9),
        2 => shape.head_pieces = 0,
        3 => shape.filler = rng.u32(100..6_000),
        4 => shape.absolute = true,
        5 if shape.request_framing == RequestFraming::None && shape.method == "GET" => {
            shape.method = "BREW".into()
        }
        6 if shape.framing != Framing::Chunked && shape.request_framing != RequestFraming::Chunked => {
            shape.old = true;
        }
        7 if shape.request_framing == RequestFraming::None && shape.method == "GET" => {
            (shape.status, shape.ending, shape.pieces) = (101, Ending::Upgrade, 1);
            shape.framing = Framing::Length;
        }
        _ => {}
    }
    shape
}

/// Mostly small, sometimes large.
fn size(rng: &mut fastrand::Rng, sizes: &[u64]) -> u64 {
    if let Some(size) = rng.choice(sizes) {
        return *size;
    }
    match rng.u8(..20) {
        0..=2 => 0,
        3..=14 => rng.u64(1..2_000),
        15..=18 => rng.u64(2_000..70_000),
        _ => rng.u64(70_000..1_500_000),
    }
}

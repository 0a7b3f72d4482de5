//! What pages are made of beside their HTML: one stylesheet, one script, an icon.
//!
//! In: a name with a hash of what it stands for. Out: bytes that never change under that name.

use std::fmt::Write as _;
use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

use crate::web::Error;

/// One file.
#[derive(Debug)]
pub(super) struct Asset {
    /// Its path on the listener.
    pub(super) path: String,
    media: &'static str,
    text: &'static str,
}

/// Colours, sizes.
pub(super) static STYLE: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("page", "css", "text/css; charset=utf-8", include_str!("style.css")));
/// What makes pages more convenient; they work without.
pub(super) static SCRIPT: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("page", "js", "text/javascript; charset=utf-8", include_str!("script.js")));
/// In tabs.
pub(super) static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon", "svg", "image/svg+xml", include_str!("icon.svg")));

impl Asset {
    fn new(name: &str, extension: &str, media: &'static str, text: &'static str) -> Self {
        let hash = Sha256::digest(text.as_bytes());
        let digits = hash.iter().take(8).fold(String::new(), |mut digits, byte| {
            write!(digits, "{byte:02x}").expect("writing to a string cannot fail");
            digits
        });
        Self { path: format!("/assets/{name}-{digits}.{extension}"), media, text }
    }
}

/// The asset of this name. One of an earlier version is not there any more.
pub(super) async fn serve(Path(name): Path<String>) -> Result<Response, Error> {
    let path = format!("/assets/{name}");
    let asset = [&STYLE, &SCRIPT, &ICON].into_iter().find(|asset| asset.path == path);
    let asset = asset.ok_or(Error::NoRoute(path))?;
    let headers = [(CONTENT_TYPE, asset.media), (CACHE_CONTROL, "public, max-age=31536000, immutable")];
    Ok((headers, asset.text).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_small_and_asks_nobody_else() {
        assert!(SCRIPT.text.len() < 10_000, "{}", SCRIPT.text.len());
        for asset in [&STYLE, &SCRIPT] {
            assert!(!asset.text.contains("//") && !asset.text.contains("url("), "{}", asset.path);
        }
    }
}

//! The certificate of a listener, and which clients it lets in.
//!
//! In: paths of PEM files. Out: what a handshake needs: read at the start, while that is allowed, and again when the
//! files have changed. Refuses to know what is said over the connection.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Changed files are found within this time, once something connects.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// PEM files of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// Our certificate, and those above it.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Certificates of which one must have signed the client's; none: every client is let in.
    pub client_ca: Option<PathBuf>,
}

/// TLS of one listener.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    files: Files,
    current: ArcSwap<ServerConfig>,
    stamp: ArcSwap<Stamp>,
    begun: Instant,
    /// When the files were last looked at, milliseconds after `begun`.
    looked: AtomicU64,
}

/// By what a file that was replaced, or written anew, is known: inode, time in nanoseconds, length.
type Stamp = Vec<Option<(u64, i128, u64)>>;

impl Files {
    fn all(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    fn stamp(&self) -> Stamp {
        let of = |file: &Path| {
            let file = fs::metadata(file).ok()?;
            let changed = i128::from(file.mtime()) * 1_000_000_000 + i128::from(file.mtime_nsec());
            Some((file.ino(), changed, file.len()))
        };
        self.all().map(of).collect()
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong, with the file.
    pub fn read(files: Files) -> Result<Self, String> {
        let stamp = ArcSwap::from_pointee(files.stamp());
        let current = ArcSwap::from(configuration(&files)?);
        let (begun, looked) = (Instant::now(), AtomicU64::new(0));
        Ok(Self(Arc::new(Shared { files, current, stamp, begun, looked })))
    }

    /// For one handshake, with the newest certificate known. Must be called inside a tokio runtime.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let now = u64::try_from(self.0.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let looked = self.0.looked.load(Relaxed);
        let is_due = now.saturating_sub(looked) >= LOOK_AGAIN.as_millis() as u64;
        if is_due && self.0.looked.compare_exchange(looked, now, Relaxed, Relaxed).is_ok() {
            let tls = self.clone();
            tokio::task::spawn_blocking(move || tls.renew());
        }
        TlsAcceptor::from(self.0.current.load_full())
    }

    /// Reads the files again if they have changed. What cannot be used is said, once, and the certificate in use stays.
    fn renew(&self) {
        let Shared { files, current, stamp, .. } = &*self.0;
        let now = files.stamp();
        if now == **stamp.load() {
            return;
        }
        stamp.store(Arc::new(now));
        match configuration(files) {
            Ok(configuration) => {
                current.store(configuration);
                tracing::info!(file = %files.cert.display(), "the listener's certificate was read again");
            }
            Err(error) => tracing::warn!("the listener's certificate stays what it was: {error}"),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Tls").field(&self.0.files).finish()
    }
}

fn configuration(files: &Files) -> Result<Arc<ServerConfig>, String> {
    let certificates = certificates(&files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| failed(&files.key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider knows the versions it was made for");
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in self::certificates(file)? {
                roots.add(certificate).map_err(|error| failed(file, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|error| failed(file, &error))?)
        }
    };
    let mut tls = builder.with_single_cert(certificates, key).map_err(|error| failed(&files.cert, &error))?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(tls))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(read) if read.is_empty() => Err(failed(file, &"it has no certificate")),
        read => read.map_err(|error| failed(file, &error)),
    }
}

fn failed(file: &Path, error: &dyn fmt::Display) -> String {
    format!("failed to use `{}`: {error}", file.display())
}

#[cfg(test)]
mod tests;

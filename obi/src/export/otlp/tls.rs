//! PEM files to a TLS configuration.
//!
//! In: paths of certificates and keys. Out: what rustls needs, read once, before privileges are given up. Refuses to
//! know URLs, and to turn verification off: a destination without TLS has an `http` URL.

use std::path::{Path, PathBuf};

use http::Uri;
use hyper_rustls::ConfigBuilderExt as _;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

use crate::config::export::OtlpDestination;

/// Why a destination cannot have TLS.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file is missing or holds something else.
    #[error("failed to read `{}`: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system's certificates could not be read.
    #[error("failed to read the certificates of this system: {0}; name a `ca_file`")]
    System(std::io::Error),
    /// Certificate and key do not belong together, or are of a kind that TLS does not take.
    #[error("failed to use `{}`: {reason}", path.display())]
    Identity {
        /// The certificate's file.
        path: PathBuf,
        /// What rustls says.
        reason: rustls::Error,
    },
}

/// The TLS configuration of a destination; one that trusts no certificate for a URL without TLS.
pub(super) fn configuration(destination: &OtlpDestination, url: &Uri) -> Result<ClientConfig, TlsError> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider knows the versions it was made for");
    let builder = match &destination.ca_file {
        _ if url.scheme_str() == Some("http") => builder.with_root_certificates(RootCertStore::empty()),
        Some(path) => builder.with_root_certificates(authorities(path)?),
        None => match builder.clone().with_native_roots() {
            Ok(builder) => builder,
            // An image without files has no authorities: those of Mozilla are in the binary.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => builder.with_webpki_roots(),
            Err(error) => return Err(TlsError::System(error)),
        },
    };
    let (Some(cert_file), Some(key_file)) = (&destination.cert_file, &destination.key_file) else {
        return Ok(builder.with_no_client_auth());
    };
    let key = PrivateKeyDer::from_pem_file(key_file).map_err(|error| unreadable(key_file, &error))?;
    builder
        .with_client_auth_cert(certificates(cert_file)?, key)
        .map_err(|reason| TlsError::Identity { path: cert_file.clone(), reason })
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store
            .add(certificate)
            .map_err(|error| TlsError::File { path: path.to_owned(), reason: error.to_string() })?;
    }
    Ok(store)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| unreadable(path, &error))?.collect();
    let found = found.map_err(|error| unreadable(path, &error))?;
    if found.is_empty() {
        return Err(TlsError::File { path: path.to_owned(), reason: "no certificate in it".to_owned() });
    }
    Ok(found)
}

fn unreadable(path: &Path, error: &rustls_pki_types::pem::Error) -> TlsError {
    TlsError::File { path: path.to_owned(), reason: error.to_string() }
}

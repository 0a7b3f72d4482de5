//! The certificate of the listeners.
//!
//! In: paths. Out: what TLS needs, read once, before privileges are given up.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// TLS with this certificate; on failure what is wrong, with the file.
pub(super) fn configuration(cert_file: &Path, key_file: &Path) -> Result<Arc<ServerConfig>, String> {
    let fail =
        |path: &Path, error: &dyn std::fmt::Display| format!("failed to use `{}`: {error}", path.display());
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(cert_file).and_then(Iterator::collect);
    let certificates = certificates.map_err(|error| fail(cert_file, &error))?;
    let key = PrivateKeyDer::from_pem_file(key_file).map_err(|error| fail(key_file, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider knows the versions it was made for");
    let mut tls = builder
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|error| fail(cert_file, &error))?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(tls))
}

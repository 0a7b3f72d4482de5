//! Handshakes of real clients with certificates that `openssl` has made.

use std::net::SocketAddr;

use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use integration::otlp::certificate::Certificates;
use prost::bytes::Bytes;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::listener::{Answer, Bounds, Listening, Peer, TurnedAway};

/// Says how it was asked.
#[derive(Clone)]
struct Echo;

impl Answer for Echo {
    type Body = Full<Bytes>;

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let peer = request.extensions().get::<Peer>().unwrap();
        Response::new(Full::from(format!("over TLS: {}", peer.over_tls)))
    }

    fn turned_away(&self, _: TurnedAway) {}
}

fn files(of: &Certificates, client_ca: bool) -> Files {
    let client_ca = client_ca.then(|| of.path("ca.pem"));
    Files { cert: of.path("server.pem"), key: of.path("server.key"), client_ca }
}

/// A client that trusts this authority, and shows its certificate when it is to.
fn client(of: &Certificates, shows: bool) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(of.path("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(if shows {
        let key = PrivateKeyDer::from_pem_file(of.path("client.key")).unwrap();
        builder.with_client_auth_cert(certificates(&of.path("client.pem")).unwrap(), key).unwrap()
    } else {
        builder.with_no_client_auth()
    })
}

/// The answer, or nothing where there is none.
async fn ask(address: SocketAddr, client: Arc<ClientConfig>) -> String {
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connected = tokio_rustls::TlsConnector::from(client).connect(name, stream).await;
    let Ok(mut stream) = connected else { return String::new() };
    let mut answer = Vec::new();
    // With TLS 1.3 a client learns of its refusal when it reads.
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

async fn listen(tls: Tls) -> (SocketAddr, Listening) {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let bounds = Bounds { connections: 8, head_bytes: 16_384 };
    (socket.local_addr().unwrap(), Listening::start(socket, Some(tls), bounds, Echo))
}

#[tokio::test]
async fn replaced_certificates_are_used() {
    let (old, new) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let tls = Tls::read(files(&old, false)).unwrap();
    let (address, listening) = listen(tls.clone()).await;
    assert!(ask(address, client(&old, false)).await.ends_with("over TLS: true"));
    assert_eq!(ask(address, client(&new, false)).await, "");

    // Half of a change: the old pair goes on.
    fs::copy(new.path("server.pem"), old.path("server.pem")).unwrap();
    tls.renew();
    assert!(ask(address, client(&old, false)).await.ends_with("over TLS: true"));
    fs::copy(new.path("server.key"), old.path("server.key")).unwrap();
    tls.renew();
    assert!(ask(address, client(&new, false)).await.ends_with("over TLS: true"));
    assert_eq!(ask(address, client(&old, false)).await, "");

    fs::remove_file(old.path("server.key")).unwrap();
    tls.renew();
    assert!(ask(address, client(&new, false)).await.ends_with("over TLS: true"));
    listening.finish(Duration::from_secs(5)).await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn clients_show_a_certificate_where_one_is_asked_for() {
    let (ours, others) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let (address, _listening) = listen(Tls::read(files(&ours, true)).unwrap()).await;
    assert!(ask(address, client(&ours, true)).await.ends_with("over TLS: true"));
    assert_eq!(ask(address, client(&ours, false)).await, "");
    let mut stranger = (*client(&ours, false)).clone();
    stranger.client_auth_cert_resolver = client(&others, true).client_auth_cert_resolver.clone();
    assert_eq!(ask(address, Arc::new(stranger)).await, "");
}

#[test]
fn what_cannot_be_used_is_said_with_its_file() {
    let made = Certificates::new().unwrap();
    fs::write(made.path("empty.pem"), "").unwrap();
    let check = |change: &dyn Fn(&mut Files), expected: &str| {
        let mut files = files(&made, true);
        change(&mut files);
        let error = Tls::read(files).unwrap_err();
        assert!(
            error.starts_with(&format!("failed to use `{}/", made.path("").display()).replace("//", "/")),
            "{error}"
        );
        assert!(error.contains(expected), "{error}");
    };
    check(&|files| files.cert = made.path("none.pem"), "none.pem`");
    check(&|files| files.cert = made.path("empty.pem"), "it has no certificate");
    check(&|files| files.key = made.path("client.key"), "server.pem`: ");
    check(&|files| files.key = made.path("ca.pem"), "ca.pem`: ");
    check(&|files| files.client_ca = Some(made.path("empty.pem")), "it has no certificate");
}

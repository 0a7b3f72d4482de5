//! Who may read page and API.
//!
//! In: a request, the address it came from, section `web`. Out: whether it is answered, or what it lacks. Refuses to
//! know what is asked for, beyond what stays open to everyone.
//!
//! Without a token this machine's own programs may read, and others may not. With one, all need it: a reverse proxy on
//! this machine makes every request a local one. Secrets are compared by their hashes, so that how long it takes says
//! nothing of them.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State as FromState};
use axum::http::header::{AUTHORIZATION, COOKIE, FORWARDED, HeaderName, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use sha2::{Digest as _, Sha256};

use super::{Error, State, page};
use crate::config::Web as Config;
use crate::listener::Peer;

/// How long a login lasts.
pub(super) const SESSION: Duration = Duration::from_secs(12 * 3_600);
/// Logins at the same time; the oldest gives way.
const MAX_SESSIONS: usize = 64;
/// Name of the cookie of a login.
const COOKIE_NAME: &str = "obi_session";
/// Added by proxies. They are believed in one thing: that the client is not on this machine.
const FORWARDED_FOR: [HeaderName; 3] =
    [FORWARDED, HeaderName::from_static("x-forwarded-for"), HeaderName::from_static("x-real-ip")];

type Hash = [u8; 32];

/// What a request must have.
pub struct Access {
    token: Option<Hash>,
    open: bool,
    /// The listener has let in only clients whose certificates it knows.
    clients_are_known: bool,
    protects_metrics: bool,
    sessions: Mutex<VecDeque<(Hash, Instant)>>,
}

/// Nothing of a secret.
impl fmt::Debug for Access {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Access").field("token", &self.token.is_some()).field("open", &self.open).finish()
    }
}

/// What a request lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// There is a token, and it came with none or another.
    Token,
    /// It comes from elsewhere, and there is no token that it could have.
    Configuration,
}

impl Access {
    /// Everyone may read everything.
    #[must_use]
    pub fn everyone() -> Self {
        Self {
            token: None,
            open: true,
            clients_are_known: false,
            protects_metrics: false,
            sessions: Mutex::default(),
        }
    }

    /// As `web.token`, `web.open`, `web.client_ca_file` and `web.protect_metrics` say.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let token = config.token.get().map(hash);
        Self {
            token,
            open: config.open,
            clients_are_known: config.client_ca_file.is_some(),
            protects_metrics: config.protect_metrics,
            ..Self::everyone()
        }
    }

    /// What is missing, if anything.
    fn lack(&self, path: &str, headers: &HeaderMap, peer: Option<SocketAddr>) -> Option<Lack> {
        let is_open = match path {
            "/healthz" | "/readyz" | "/login" => true,
            "/metrics" => !self.protects_metrics,
            // Style and script: the form of the login has them.
            _ => path.starts_with("/assets/"),
        };
        match self.token {
            _ if is_open => None,
            Some(_) if self.has_token(headers) || self.has_session(headers) => None,
            Some(_) => Some(Lack::Token),
            None if self.open || self.clients_are_known || is_local(headers, peer) => None,
            None => Some(Lack::Configuration),
        }
    }

    fn has_token(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        given
            .and_then(|given| given.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .is_some_and(|(_, token)| self.is_token(token.trim()))
    }

    fn is_token(&self, given: &str) -> bool {
        self.token.is_some_and(|token| same(&token, &hash(given)))
    }

    fn has_session(&self, headers: &HeaderMap) -> bool {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(name, id)| name == COOKIE_NAME && self.is_session(id))
    }

    fn is_session(&self, id: &str) -> bool {
        let (id, now) = (hash(id), Instant::now());
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|(_, ends)| *ends > now);
        sessions.iter().fold(false, |found, (known, _)| found | same(known, &id))
    }

    /// A cookie for a client that has the token, for paths below `prefix`. Browsers send it with links from elsewhere,
    /// such as those of alerts: nothing that can be asked for changes anything.
    pub(super) fn login(&self, token: &str, prefix: &str, over_tls: bool) -> Option<HeaderValue> {
        if !self.is_token(token) {
            return None;
        }
        let id = random()?;
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() == MAX_SESSIONS {
            sessions.pop_front();
        }
        sessions.push_back((hash(&id), Instant::now() + SESSION));
        let (seconds, secure) = (SESSION.as_secs(), if over_tls { "; Secure" } else { "" });
        let cookie =
            format!("{COOKIE_NAME}={id}; Path={prefix}/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
        HeaderValue::try_from(cookie).ok()
    }
}

/// Whether a program of this machine asks, without a proxy that says it asks for another client.
fn is_local(headers: &HeaderMap, peer: Option<SocketAddr>) -> bool {
    peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback())
        && !FORWARDED_FOR.iter().any(|name| headers.contains_key(name))
}

fn hash(text: &str) -> Hash {
    Sha256::digest(text.as_bytes()).into()
}

/// In a time that does not depend on where they differ.
fn same(one: &Hash, other: &Hash) -> bool {
    one.iter().zip(other).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

/// 128 bits that cannot be guessed, as digits; none when the system has none.
fn random() -> Option<String> {
    let mut bytes = [0; 16];
    rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes).ok()?;
    Some(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// Lets a request pass that may read what it asks for.
pub(super) async fn check(FromState(state): FromState<State>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().map(|peer| peer.address);
    let Some(lack) = state.access.lack(request.uri().path(), request.headers(), peer) else {
        return next.run(request).await;
    };
    let mut response = match page::wants_page(request.headers()) {
        true => page::login::refused(lack, request.uri(), false),
        false => Error::Access(lack).into_response(),
    };
    if lack == Lack::Token {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"obi\""));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Token;

    const TOKEN: &str = "correct-horse-battery";

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap())
        };
        list.iter().map(pair).collect()
    }

    #[test]
    fn what_is_open_to_whom() {
        let token = Token::try_from(TOKEN.to_owned()).unwrap();
        let closed = Config::default();
        let open = Config { open: true, ..Config::default() };
        let with_token = Config { token: token.clone(), ..Config::default() };
        let with_metrics = Config { token, protect_metrics: true, ..Config::default() };
        let check =
            |config: &Config, peer: &str, path: &str, given: &[(&str, &str)], expected: Option<Lack>| {
                let lack = Access::new(config).lack(path, &headers(given), peer.parse().ok());
                assert_eq!(lack, expected, "{path} from {peer} with {given:?}");
            };
        let (here, there) = ("127.0.0.1:5", "10.0.0.7:5");
        let bearer = format!("Bearer {TOKEN}");
        for path in
            ["/", "/spans", "/api/v1/status", "/nothing", "/metrics/", "/assetsx", "/api/v1/../healthz"]
        {
            check(&closed, here, path, &[], None);
            check(&closed, "[::1]:5", path, &[], None);
            check(&closed, "[::ffff:127.0.0.1]:5", path, &[], None);
            check(&closed, there, path, &[], Some(Lack::Configuration));
            check(&closed, "no address", path, &[], Some(Lack::Configuration));
            check(&closed, there, path, &[("authorization", "Bearer ")], Some(Lack::Configuration));
            check(&closed, there, path, &[("x-forwarded-for", "127.0.0.1")], Some(Lack::Configuration));
            for name in ["x-forwarded-for", "forwarded", "x-real-ip"] {
                check(&closed, here, path, &[(name, "10.0.0.7")], Some(Lack::Configuration));
            }
            check(&open, there, path, &[], None);
            for peer in [here, there] {
                check(&with_token, peer, path, &[], Some(Lack::Token));
                check(&with_token, peer, path, &[("authorization", &bearer)], None);
                check(&with_token, peer, path, &[("authorization", &bearer.to_lowercase())], None);
                for wrong in
                    ["", "Bearer", "Bearer ", TOKEN, "Basic correct-horse-battery", "Bearer correct-horse"]
                {
                    check(&with_token, peer, path, &[("authorization", wrong)], Some(Lack::Token));
                }
                check(&with_token, peer, path, &[("cookie", "obi_session=0")], Some(Lack::Token));
            }
        }
        for path in ["/healthz", "/readyz", "/metrics", "/login", "/assets/page-0.css"] {
            check(&closed, there, path, &[], None);
            check(&with_token, there, path, &[], None);
            let expected = (path == "/metrics").then_some(Lack::Token);
            check(&with_metrics, there, path, &[], expected);
            check(&with_metrics, there, path, &[("authorization", &bearer)], None);
        }
    }

    #[test]
    fn a_login_is_a_cookie_and_the_oldest_gives_way() {
        let token = Token::try_from(TOKEN.to_owned()).unwrap();
        let access = Access::new(&Config { token, ..Config::default() });
        for wrong in ["", "correct", &TOKEN.to_uppercase(), &format!("{TOKEN} ")] {
            assert_eq!(access.login(wrong, "", false), None, "{wrong}");
        }
        let login = |prefix: &str, over_tls: bool| {
            access.login(TOKEN, prefix, over_tls).unwrap().to_str().unwrap().to_owned()
        };
        let first = login("/obi", true);
        let (id, rest) = first.split_once(';').unwrap();
        assert_eq!(rest, " Path=/obi/; Max-Age=43200; HttpOnly; SameSite=Lax; Secure");
        let passes = |cookie: &str| access.lack("/", &headers(&[("cookie", cookie)]), None).is_none();
        assert!(passes(id) && passes(&format!("theme=dark; {id}; x")));
        assert!(!passes(&id[..id.len() - 1]) && !passes(&id.replace("obi_", "")));
        let others: Vec<String> = (0..MAX_SESSIONS).map(|_| login("", false)).collect();
        assert!(!passes(id), "the oldest of {} stays", MAX_SESSIONS + 1);
        for other in &others {
            assert!(passes(other.split(';').next().unwrap()) && !other.contains("Secure"), "{other}");
        }
    }
}

//! The shopper: keeps the frontend busy at a steady rate, whatever the answers are.
//!
//! In: the frontend's address and a rate. Out: requests, each the root of a trace. Some ask for what does not
//! exist, some give up early and reset the connection. An open loop: a slow shop is not spared, but what is in
//! flight is bounded.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::caller::{Call, Caller};
use super::inventory::{Line, PRODUCTS};

const IN_FLIGHT_LIMIT: usize = 200;
/// Carts that are filled at the same time.
const OPEN_CARTS: usize = 8;
/// Long enough for the request to be read, shorter than any answer from the inventory.
const PATIENCE: Duration = Duration::from_micros(800);

/// Every tenth request is a search, but no more than these: once they are slow, each keeps the catalog busy for a
/// while.
const SEARCHES_APART: Duration = Duration::from_millis(500);
const WORDS: [&str; 6] = ["copper", "porcelain", "enamel", "Dresden", "Delft", "spout"];

/// Sends until the process ends.
pub(super) async fn shop(frontend: SocketAddr, rate: f64) -> anyhow::Result<()> {
    let caller = Caller::new();
    let in_flight = Arc::new(Semaphore::new(IN_FLIGHT_LIMIT));
    let mut carts: [String; OPEN_CARTS] = std::array::from_fn(|_| uuid(fastrand::u128(..)));
    let mut ticks = interval(Duration::from_secs_f64(1.0 / rate));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let between_searches = SEARCHES_APART.max(Duration::from_secs_f64(10.0 / rate));
    let mut next_search = Instant::now() + between_searches;
    loop {
        ticks.tick().await;
        let cart = &mut carts[fastrand::usize(..OPEN_CARTS)];
        let is_search = next_search <= Instant::now();
        let step = if is_search { Step::Search } else { step(fastrand::f64()) };
        if is_search {
            next_search = Instant::now() + between_searches;
        }
        let request = step.request(cart);
        if step == Step::CheckOut {
            *cart = uuid(fastrand::u128(..));
        }
        let Ok(permit) = Arc::clone(&in_flight).try_acquire_owned() else { continue };
        let caller = caller.clone();
        tokio::spawn(async move {
            send(&caller, frontend, request, step).await;
            drop(permit);
        });
    }
}

/// What a shopper does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Home,
    Product,
    UnknownProduct,
    Search,
    ShowCart,
    AddItem,
    CheckOut,
    GiveUp,
}

/// `dice` from 0 to 1.
fn step(dice: f64) -> Step {
    const UP_TO: [(f64, Step); 6] = [
        (0.15, Step::Home),
        (0.55, Step::Product),
        (0.59, Step::UnknownProduct),
        (0.71, Step::ShowCart),
        (0.89, Step::AddItem),
        (0.98, Step::CheckOut),
    ];
    UP_TO.iter().find(|(limit, _)| dice < *limit).map_or(Step::GiveUp, |(_, step)| *step)
}

/// Path, and the item to post if it is a post.
#[derive(Debug)]
struct Request {
    path: String,
    post: Option<Bytes>,
}

impl Step {
    fn request(self, cart: &str) -> Request {
        let get = |path| Request { path, post: None };
        let product = fastrand::u32(1..=PRODUCTS);
        match self {
            Self::Home => get("/".to_owned()),
            Self::Product | Self::GiveUp => get(format!("/products/{product}")),
            Self::UnknownProduct => get(format!("/products/{}", PRODUCTS + product)),
            Self::Search => get(format!("/search?q={}", WORDS[fastrand::usize(..WORDS.len())])),
            Self::ShowCart => get(format!("/cart/{cart}")),
            Self::AddItem => {
                // Every fiftieth product is sold out, which a checkout learns as 409.
                let item =
                    serde_json::to_vec(&Line { product, quantity: 1 }).expect("numbers are valid JSON");
                Request { path: format!("/cart/{cart}/items"), post: Some(item.into()) }
            }
            Self::CheckOut => Request { path: format!("/cart/{cart}/checkout"), post: Some(Bytes::new()) },
        }
    }
}

async fn send(caller: &Caller, frontend: SocketAddr, request: Request, step: Step) {
    // An error is part of the show: the agent reports it, not we.
    if step == Step::GiveUp {
        let _ = give_up(frontend, &request.path).await;
        return;
    }
    let mut call = match request.post {
        Some(item) => Call::post(frontend, request.path, item),
        None => Call::get(frontend, request.path),
    };
    call.traceparent = traceparent(fastrand::u128(1..), fastrand::u64(1..)).parse().ok();
    let _ = caller.call(call).await;
}

/// Sends a request and resets the connection instead of waiting for the answer.
async fn give_up(frontend: SocketAddr, path: &str) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(frontend).await?;
    stream.set_zero_linger()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {frontend}\r\n\r\n").as_bytes()).await?;
    sleep(PATIENCE).await;
    Ok(())
}

/// W3C Trace Context, version 00, sampled.
fn traceparent(trace: u128, span: u64) -> String {
    format!("00-{trace:032x}-{span:016x}-01")
}

/// A version 4 uuid (RFC 9562) of these random bits.
fn uuid(random: u128) -> String {
    let bits = random & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;

    use super::*;
    use crate::command::demo::service::test_support::Running;

    #[test]
    fn dice_choose_the_step() {
        let check = |dice, expected| assert_eq!(step(dice), expected, "{dice}");
        check(0.0, Step::Home);
        check(0.15, Step::Product);
        check(0.58, Step::UnknownProduct);
        check(0.70, Step::ShowCart);
        check(0.88, Step::AddItem);
        check(0.97, Step::CheckOut);
        check(0.99, Step::GiveUp);
        check(1.0, Step::GiveUp);
    }

    #[test]
    fn ids_have_their_standard_shape() {
        assert_eq!(uuid(0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(traceparent(1, 2), "00-00000000000000000000000000000001-0000000000000002-01");
    }

    #[test]
    fn requests_fit_their_step() {
        let check = |step: Step, path: &str, posts: bool| {
            let request = step.request("c1");
            assert!(request.path.starts_with(path), "{step:?} {request:?}");
            assert_eq!(request.post.is_some(), posts, "{step:?}");
        };
        check(Step::Home, "/", false);
        check(Step::Product, "/products/", false);
        check(Step::Search, "/search?q=", false);
        check(Step::ShowCart, "/cart/c1", false);
        check(Step::AddItem, "/cart/c1/items", true);
        check(Step::CheckOut, "/cart/c1/checkout", true);
        let unknown = Step::UnknownProduct.request("c1").path;
        let number: u32 = unknown.strip_prefix("/products/").unwrap().parse().unwrap();
        assert!(number > PRODUCTS);
    }

    #[tokio::test]
    async fn giving_up_resets_the_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (given_up, accepted) = tokio::join!(give_up(address, "/products/17"), listener.accept());
        given_up.unwrap();
        let mut peer = accepted.unwrap().0;
        let mut received = Vec::new();
        let end = tokio::io::AsyncReadExt::read_to_end(&mut peer, &mut received).await;
        assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn the_shop_is_visited_at_the_given_rate() {
        let (sender, mut visits) = tokio::sync::mpsc::channel(64);
        let visit = move |headers: axum::http::HeaderMap| async move {
            let _ = sender.try_send(headers.contains_key("traceparent"));
        };
        let frontend = Running::start(Router::new().fallback(get(visit.clone()).post(visit))).await;
        let shopping = tokio::spawn(shop(frontend.address, 1000.0));
        let mut traced = 0;
        for _ in 0..50 {
            traced += u32::from(visits.recv().await.unwrap());
        }
        shopping.abort();
        assert!(traced >= 25, "{traced} of 50 visits carried a trace");
    }
}

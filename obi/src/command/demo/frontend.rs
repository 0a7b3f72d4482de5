//! The frontend: the shop's face; every page is made of what catalog and cart say.
//!
//! In: requests of shoppers. Out: the answer of the service behind, or 502 or 504 when there is none.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};

use super::caller::{Call, Caller};

#[derive(Clone)]
struct Shop {
    caller: Caller,
    catalog: SocketAddr,
    cart: SocketAddr,
}

pub(super) fn router(catalog: SocketAddr, cart: SocketAddr) -> Router {
    Router::new()
        .route("/", get(home))
        .route("/products/{id}", get(product))
        .route("/search", get(search))
        .route("/cart/{cart}", get(show_cart))
        .route("/cart/{cart}/items", post(add_item))
        .route("/cart/{cart}/checkout", post(check_out))
        .with_state(Shop { caller: Caller::new(), catalog, cart })
}

impl Shop {
    async fn hand_on(&self, call: Call, headers: &HeaderMap) -> Response {
        match self.caller.call(call.in_trace_of(headers)).await {
            Ok(reply) => reply.into_response(),
            Err(error) => error.into_response(),
        }
    }
}

async fn home(State(shop): State<Shop>, headers: HeaderMap) -> Response {
    shop.hand_on(Call::get(shop.catalog, "/products".to_owned()), &headers).await
}

async fn product(State(shop): State<Shop>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    shop.hand_on(Call::get(shop.catalog, format!("/products/{id}")), &headers).await
}

async fn search(State(shop): State<Shop>, uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path_and_query().map_or("/search", |it| it.as_str());
    shop.hand_on(Call::get(shop.catalog, path.to_owned()), &headers).await
}

async fn show_cart(State(shop): State<Shop>, Path(cart): Path<String>, headers: HeaderMap) -> Response {
    shop.hand_on(Call::get(shop.cart, format!("/carts/{cart}")), &headers).await
}

async fn add_item(
    State(shop): State<Shop>,
    Path(cart): Path<String>,
    headers: HeaderMap,
    item: Bytes,
) -> Response {
    shop.hand_on(Call::post(shop.cart, format!("/carts/{cart}/items"), item), &headers).await
}

async fn check_out(State(shop): State<Shop>, Path(cart): Path<String>, headers: HeaderMap) -> Response {
    shop.hand_on(Call::post(shop.cart, format!("/carts/{cart}/checkout"), Bytes::new()), &headers).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::demo::inventory::{self, Tempers};
    use crate::command::demo::service::test_support::{Running, status};
    use crate::command::demo::{cart, catalog};

    #[tokio::test]
    async fn every_page_reaches_the_service_behind_it() {
        let inventory = Running::start(inventory::router(Tempers::default())).await;
        let catalog = Running::start(catalog::router(inventory.address)).await;
        let cart = Running::start(cart::router(inventory.address)).await;
        let frontend = Running::start(router(catalog.address, cart.address)).await;
        let steps = [
            ("GET", "/", "", 200),
            ("GET", "/products/17", "", 200),
            ("GET", "/products/4711", "", 404),
            ("GET", "/search?q=copper", "", 200),
            ("GET", "/search", "", 400),
            ("GET", "/cart/abc", "", 404),
            ("POST", "/cart/abc/items", r#"{"product":17,"quantity":1}"#, 201),
            ("POST", "/cart/abc/items", r#"{"product":"#, 400),
            ("GET", "/cart/abc", "", 200),
            ("POST", "/cart/abc/checkout", "", 200),
            ("GET", "/nowhere", "", 404),
            ("POST", "/", "", 405),
        ];
        for (method, path, body, expected) in steps {
            assert_eq!(status(&frontend.send((method, path, body)).await), expected, "{method} {path}");
        }
    }

    #[tokio::test]
    async fn the_trace_is_passed_on_unchanged() {
        let echo = |headers: HeaderMap| async move {
            headers.get("traceparent").map_or_else(String::new, |value| value.to_str().unwrap().to_owned())
        };
        let behind = Running::start(Router::new().route("/products", get(echo))).await;
        let frontend = Running::start(router(behind.address, behind.address)).await;
        let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let mut call = Call::get(frontend.address, "/".to_owned());
        call.traceparent = Some(traceparent.parse().unwrap());
        assert_eq!(Caller::new().call(call).await.unwrap().body, traceparent);
        assert_eq!(frontend.send(("GET", "/", "")).await.unwrap().body, "");
    }
}

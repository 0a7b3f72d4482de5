//! The catalog: names and prices, with the stock asked of the inventory.
//!
//! In: requests of the frontend. Out: products as JSON; unknown ones are 404, an inventory in trouble is 503.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::caller::{Call, Caller};
use super::inventory::{PRODUCTS, Stock};
use super::search::Index;
use super::similar::similar;

#[derive(Clone)]
struct Catalog {
    caller: Caller,
    inventory: SocketAddr,
    index: Arc<Index>,
}

#[derive(Debug, Deserialize)]
struct Wanted {
    q: String,
}

#[derive(Debug, Serialize)]
struct Product {
    id: u32,
    name: String,
    cents: u32,
}

#[derive(Debug, Serialize)]
struct Offer {
    #[serde(flatten)]
    product: Product,
    available: u32,
    /// Numbers of products like it.
    similar: Vec<u32>,
}

pub(super) fn router(inventory: SocketAddr) -> Router {
    Router::new()
        .route("/products", get(list))
        .route("/products/{id}", get(offer))
        .route("/search", get(search))
        .with_state(Catalog { caller: Caller::new(), inventory, index: Arc::new(Index::new()) })
}

async fn list() -> Json<Vec<Product>> {
    Json((1..=PRODUCTS).step_by(20).map(product).collect())
}

async fn search(State(catalog): State<Catalog>, Query(Wanted { q }): Query<Wanted>) -> Json<Vec<Product>> {
    Json(catalog.index.search(&q).into_iter().map(product).collect())
}

async fn offer(State(catalog): State<Catalog>, Path(id): Path<u32>, headers: HeaderMap) -> Response {
    let call = Call::get(catalog.inventory, format!("/stock/{id}")).in_trace_of(&headers);
    match catalog.caller.call(call).await {
        Ok(reply) if reply.status.is_server_error() => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Ok(reply) if !reply.status.is_success() => reply.into_response(),
        Ok(reply) => match serde_json::from_slice::<Stock>(&reply.body) {
            Ok(stock) => {
                let (product, similar) = (product(id), similar(id));
                Json(Offer { product, available: stock.available, similar }).into_response()
            }
            Err(_) => StatusCode::BAD_GATEWAY.into_response(),
        },
        Err(error) => error.into_response(),
    }
}

fn product(id: u32) -> Product {
    Product { id, name: format!("teapot no. {id}"), cents: 900 + id % 17 * 150 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::demo::inventory::{self, Tempers};
    use crate::command::demo::service::test_support::{Running, status};
    use crate::command::demo::temper::Temper;

    async fn check(stock: Temper, path: &str, expected: u16) {
        let inventory = Running::start(inventory::router(Tempers { stock, ..Tempers::default() })).await;
        let catalog = Running::start(router(inventory.address)).await;
        assert_eq!(status(&catalog.send(("GET", path, "")).await), expected, "{path}");
    }

    #[tokio::test]
    async fn products_are_found_or_not() {
        let calm = Temper::default();
        check(calm, "/products", 200).await;
        check(calm, "/products/17", 200).await;
        check(calm, "/products/4711", 404).await;
        check(calm, "/products/teapot", 400).await;
        check(calm, "/search?q=copper", 200).await;
        check(calm, "/search", 400).await;
    }

    #[tokio::test]
    async fn trouble_behind_is_service_unavailable() {
        check(Temper { broken: 1.0, ..Temper::default() }, "/products/17", 503).await;
    }

    #[tokio::test]
    async fn an_offer_joins_product_and_stock() {
        let inventory = Running::start(inventory::router(Tempers::default())).await;
        let catalog = Running::start(router(inventory.address)).await;
        let reply = catalog.send(("GET", "/products/17", "")).await.unwrap();
        let offer: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(offer["available"], 17);
        assert_eq!(offer["name"], "teapot no. 17");
        assert_eq!(offer["similar"].as_array().map(Vec::len), Some(3));
    }

    #[tokio::test]
    async fn without_an_inventory_it_is_a_bad_gateway() {
        let closed = Running::closed_address().await;
        let catalog = Running::start(router(closed)).await;
        assert_eq!(status(&catalog.send(("GET", "/products/17", "")).await), 502);
    }
}

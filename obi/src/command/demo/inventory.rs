//! The inventory: how many of each product there are. The back of the shop, and the moody one.
//!
//! In: requests of catalog and cart. Out: stock as JSON, reservations; it calls no one.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::temper::Temper;

/// Products are numbered from 1 to this.
pub(super) const PRODUCTS: u32 = 400;

/// How many of a product are on the shelf.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stock {
    pub(super) product: u32,
    pub(super) available: u32,
}

/// Some of one product, as carts hold them and reservations ask for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) product: u32,
    pub(super) quantity: u32,
}

/// Moods of reading and of reserving.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tempers {
    pub(super) stock: Temper,
    pub(super) reservation: Temper,
}

/// What the demo runs with.
pub(super) const DEMO_TEMPERS: Tempers = Tempers {
    stock: Temper { slow: 0.03, broken: 0.01, busy: 0.0 },
    reservation: Temper { slow: 0.05, broken: 0.01, busy: 0.05 },
};

pub(super) fn router(tempers: Tempers) -> Router {
    Router::new()
        .route("/stock/{product}", get(stock))
        .route("/reservations/{cart}", post(reserve))
        .with_state(tempers)
}

async fn stock(State(tempers): State<Tempers>, Path(product): Path<u32>) -> Result<Json<Stock>, StatusCode> {
    tempers.stock.work().await?;
    available(product).map(|available| Json(Stock { product, available })).ok_or(StatusCode::NOT_FOUND)
}

async fn reserve(
    State(tempers): State<Tempers>,
    Path(_cart): Path<String>,
    Json(lines): Json<Vec<Line>>,
) -> Result<StatusCode, StatusCode> {
    tempers.reservation.work().await?;
    let in_stock = |line: &Line| available(line.product).is_some_and(|available| line.quantity <= available);
    if lines.iter().all(in_stock) { Ok(StatusCode::CREATED) } else { Err(StatusCode::CONFLICT) }
}

/// The shelves are refilled overnight: the number depends on the product alone.
fn available(product: u32) -> Option<u32> {
    (1..=PRODUCTS).contains(&product).then_some(product % 50)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::demo::service::test_support::{Running, status};

    const SURE: fn(f64, f64) -> Temper = |broken, busy| Temper { slow: 0.0, broken, busy };

    async fn check(tempers: Tempers, request: (&str, &str, &str), expected: u16) {
        let service = Running::start(router(tempers)).await;
        assert_eq!(status(&service.send(request).await), expected, "{request:?}");
    }

    #[tokio::test]
    async fn stock_is_known_per_product() {
        let calm = Tempers::default();
        let service = Running::start(router(calm)).await;
        let reply = service.send(("GET", "/stock/17", "")).await.unwrap();
        let stock: Stock = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(stock, Stock { product: 17, available: 17 });
        check(calm, ("GET", "/stock/401", ""), 404).await;
        check(calm, ("GET", "/stock/0", ""), 404).await;
        check(calm, ("GET", "/stock/many", ""), 400).await;
    }

    #[tokio::test]
    async fn reservations_need_stock() {
        let calm = Tempers::default();
        check(calm, ("POST", "/reservations/a", r#"[{"product":17,"quantity":2}]"#), 201).await;
        check(calm, ("POST", "/reservations/a", r#"[{"product":17,"quantity":99}]"#), 409).await;
        check(calm, ("POST", "/reservations/a", "[{"), 400).await;
    }

    #[tokio::test]
    async fn moods_show_as_status() {
        let broken = Tempers { stock: SURE(1.0, 0.0), reservation: SURE(0.0, 1.0) };
        check(broken, ("GET", "/stock/17", ""), 500).await;
        check(broken, ("POST", "/reservations/a", "[]"), 503).await;
    }
}

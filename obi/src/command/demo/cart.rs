//! The cart service: what a shopper has chosen so far, and the checkout.
//!
//! In: requests of the frontend; carts are named by uuid. Out: carts as JSON; a checkout asks the inventory for a
//! reservation and hands on its refusal. Carts live in memory and are bounded in number and size.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};

use super::caller::{Call, Caller};
use super::inventory::Line;

const CART_LIMIT: usize = 1000;
const LINE_LIMIT: usize = 20;

type Carts = HashMap<String, Vec<Line>>;

#[derive(Clone)]
struct Till {
    caller: Caller,
    inventory: SocketAddr,
    carts: Arc<Mutex<Carts>>,
}

impl Till {
    fn with<T>(&self, change: impl FnOnce(&mut Carts) -> T) -> T {
        change(&mut self.carts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) fn router(inventory: SocketAddr) -> Router {
    Router::new()
        .route("/carts/{cart}", get(show))
        .route("/carts/{cart}/items", post(add))
        .route("/carts/{cart}/checkout", post(check_out))
        .with_state(Till { caller: Caller::new(), inventory, carts: Arc::default() })
}

async fn show(State(till): State<Till>, Path(cart): Path<String>) -> Result<Json<Vec<Line>>, StatusCode> {
    till.with(|carts| carts.get(&cart).cloned()).map(Json).ok_or(StatusCode::NOT_FOUND)
}

async fn add(State(till): State<Till>, Path(cart): Path<String>, Json(line): Json<Line>) -> StatusCode {
    till.with(|carts| {
        if carts.len() >= CART_LIMIT && !carts.contains_key(&cart) {
            // Some forgotten cart makes room.
            if let Some(forgotten) = carts.keys().next().cloned() {
                carts.remove(&forgotten);
            }
        }
        let lines = carts.entry(cart).or_default();
        if lines.len() >= LINE_LIMIT {
            return StatusCode::UNPROCESSABLE_ENTITY;
        }
        lines.push(line);
        StatusCode::CREATED
    })
}

async fn check_out(State(till): State<Till>, Path(cart): Path<String>, headers: HeaderMap) -> Response {
    let Some(lines) = till.with(|carts| carts.get(&cart).cloned()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let body = match serde_json::to_vec(&lines) {
        Ok(body) => Bytes::from(body),
        Err(_) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    let call = Call::post(till.inventory, format!("/reservations/{cart}"), body).in_trace_of(&headers);
    match till.caller.call(call).await {
        Ok(reply) if reply.status.is_success() => {
            till.with(|carts| carts.remove(&cart));
            StatusCode::OK.into_response()
        }
        Ok(reply) => reply.into_response(),
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::demo::inventory::{self, Tempers};
    use crate::command::demo::service::test_support::{Running, status};
    use crate::command::demo::temper::Temper;

    const CART: &str = "/carts/0c8f1e5a-6a8e-4a52-9a05-2f6e1c9b7d10";
    const LINE: &str = r#"{"product":17,"quantity":1}"#;

    async fn check(tempers: Tempers, steps: &[(&str, &str, &str, u16)]) {
        let inventory = Running::start(inventory::router(tempers)).await;
        let cart = Running::start(router(inventory.address)).await;
        for (method, action, body, expected) in steps {
            let reply = cart.send((method, &format!("{CART}{action}"), body)).await;
            assert_eq!(status(&reply), *expected, "{method} {action} {body}");
        }
    }

    #[tokio::test]
    async fn a_cart_lives_from_first_item_to_checkout() {
        let steps = [
            ("GET", "", "", 404),
            ("POST", "/items", LINE, 201),
            ("GET", "", "", 200),
            ("POST", "/checkout", "", 200),
            ("GET", "", "", 404),
            ("POST", "/checkout", "", 404),
        ];
        check(Tempers::default(), &steps).await;
    }

    #[tokio::test]
    async fn a_refused_checkout_keeps_the_cart() {
        let busy = Temper { busy: 1.0, ..Temper::default() };
        let steps = [("POST", "/items", LINE, 201), ("POST", "/checkout", "", 503), ("GET", "", "", 200)];
        check(Tempers { reservation: busy, ..Tempers::default() }, &steps).await;
        let greedy = r#"{"product":17,"quantity":1000}"#;
        check(Tempers::default(), &[("POST", "/items", greedy, 201), ("POST", "/checkout", "", 409)]).await;
    }

    #[tokio::test]
    async fn a_cart_does_not_grow_without_bound() {
        let mut steps = vec![("POST", "/items", LINE, 201); LINE_LIMIT];
        steps.push(("POST", "/items", LINE, 422));
        check(Tempers::default(), &steps).await;
    }
}

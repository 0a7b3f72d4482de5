//! `/api/v1/slos` and `/api/v1/alerts`.
//!
//! In: a view of the objectives. Out: JSON. Refuses to compute anything.

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::Error;
use crate::objective::notify::PeerStats;
use crate::objective::view::{AlertView, ObjectiveView, StoreView, View};

/// What `/api/v1/slos` says.
#[derive(Debug, Serialize)]
pub(super) struct Slos {
    slos: Vec<ObjectiveView>,
    store: StoreView,
}

/// What `/api/v1/alerts` says.
#[derive(Debug, Serialize)]
pub(super) struct Alerts {
    alerts: Vec<AlertView>,
    peers: Vec<PeerStats>,
}

pub(super) async fn slos(State(state): State<super::State>) -> Result<Json<Slos>, Error> {
    let view = view(state).await?;
    Ok(Json(Slos { slos: view.objectives, store: view.store }))
}

pub(super) async fn alerts(State(state): State<super::State>) -> Result<Json<Alerts>, Error> {
    let view = view(state).await?;
    Ok(Json(Alerts { alerts: view.alerts, peers: view.peers }))
}

/// Answering may take as long as a round of evaluation. Without objectives there is nothing to show, and that is said.
pub(super) async fn view(state: super::State) -> Result<View, Error> {
    let _permit = state.answers.acquire().await.map_err(|_| Error::Unanswered)?;
    let objectives = state.objectives.clone();
    if !objectives.has_objectives() {
        return Ok(View::default());
    }
    let view = tokio::task::spawn_blocking(move || objectives.view()).await;
    view.ok().flatten().ok_or(Error::Unanswered)
}

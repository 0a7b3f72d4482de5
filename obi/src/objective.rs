//! Objectives of the running agent: spans to exact budgets, burn rates and alerts.
//!
//! In: spans, OpenSLO files. Out: alerts to Alertmanagers and webhooks, views for the API and the metrics, counts on disk.
//! Refuses to know how a burn rate is computed: that is the crate `slo`.
//!
//! Three threads take part, and none of them waits for the next:
//!
//! ```text
//! pipeline ──counts, evidence──▶ objectives ──alerts──▶ a task per peer (notify)
//! (record)                       (keeper)  ──chunks──▶ objectives-disk (writer)
//! ```
//!
//! - [`files`]: OpenSLO files to objectives. [`classify`]: which objectives a span counts for, and as what.
//! - [`record`]: the pipeline's end. [`evidence`]: worst route and traces.
//! - [`alert`]: what is sent when. [`notify`]: how it gets there.
//! - [`state`], [`writer`], [`identity`]: what survives, and what it is a count of. [`view`]: what readers see.
#![forbid(unsafe_code)]

pub mod alert;
pub mod classify;
pub mod evidence;
pub mod files;
pub mod identity;
pub mod notify;
pub mod record;
pub mod state;
pub mod view;
pub mod writer;

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use self::view::View;

/// What the keeper is told and asked.
#[derive(Debug)]
pub(crate) enum Message {
    /// Events of the pipeline.
    Batch(record::Batch),
    /// What an earlier run has left, found late.
    Left(Box<state::Left>),
    /// How does it look?
    Ask(SyncSender<View>),
    /// Write everything and end.
    Finish,
}

/// How long a view may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Asks for views, from any thread.
#[derive(Debug, Clone, Default)]
pub struct Handle {
    keeper: Option<SyncSender<Message>>,
}

impl Handle {
    /// How it looks now; `None` when there are no objectives, or no answer comes in time. May wait.
    #[must_use]
    pub fn view(&self) -> Option<View> {
        let (reply, answer) = sync_channel(1);
        self.keeper.as_ref()?.try_send(Message::Ask(reply)).ok()?;
        answer.recv_timeout(TIMEOUT).ok()
    }
}

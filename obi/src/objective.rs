//! Objectives of the running agent: spans to exact budgets, burn rates and alerts.
//!
//! In: spans, OpenSLO files. Out: alerts to Alertmanagers and webhooks, views for the API and the metrics, counts on
//! disk. Refuses to know how a burn rate is computed: that is the crate `slo`.
//!
//! Three threads take part, and none of them waits for the next:
//!
//! ```text
//! pipeline ──counts, evidence──▶ objectives ──alerts──▶ a task per peer (notify)
//! (record)                       (evaluator)  ──chunks──▶ objectives-disk (writer)
//! ```
//!
//! - [`files`]: OpenSLO files to objectives. [`classify`]: which objectives a span counts for, and as what.
//! - [`record`]: the pipeline's end. [`evidence`]: worst route and traces.
//! - `evaluator`: owns the engine; evaluates every second.
//! - [`alert`]: what is sent when. [`notify`]: how it gets there.
//! - [`state`], [`writer`], [`identity`]: what survives, and what it is a count of. [`view`]: what readers see.
#![forbid(unsafe_code)]

pub mod alert;
pub mod classify;
mod evaluator;
pub mod evidence;
pub mod files;
pub mod identity;
pub mod notify;
pub mod record;
pub mod state;
pub mod view;
pub mod writer;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slo::{Engine, Objective, Time};

use self::evaluator::{Evaluator, Ingredients};
use self::notify::Notifier;
use self::record::Recorder;
use self::view::View;
use self::writer::Writer;
use crate::config::Slo;
use crate::privilege;

/// What the evaluator is sent and asked.
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
    evaluator: Option<SyncSender<Message>>,
}

impl Handle {
    /// Whether there is anything to ask for.
    #[must_use]
    pub fn has_objectives(&self) -> bool {
        self.evaluator.is_some()
    }

    /// How it looks now; `None` when there are no objectives, or no answer comes in time. May wait.
    #[must_use]
    pub fn view(&self) -> Option<View> {
        let (reply, answer) = sync_channel(1);
        self.evaluator.as_ref()?.try_send(Message::Ask(reply)).ok()?;
        answer.recv_timeout(TIMEOUT).ok()
    }
}

#[cfg(test)]
impl Handle {
    /// Always answers with this view.
    pub(crate) fn answering(view: View) -> Self {
        let (sender, messages) = sync_channel(MESSAGES);
        std::thread::spawn(move || {
            for message in messages {
                if let Message::Ask(reply) = message {
                    let _ = reply.send(view.clone());
                }
            }
        });
        Self { evaluator: Some(sender) }
    }
}

/// The threads of objectives. Dropping it leaves them alone; [`Running::finish`] ends them.
#[derive(Debug)]
pub struct Running {
    sender: SyncSender<Message>,
    thread: JoinHandle<Notifier>,
}

/// What [`start`] needs.
#[derive(Debug)]
pub struct Start<'a> {
    /// Section `slo` of the configuration.
    pub config: &'a Slo,
    /// What is promised; objectives over other systems' metrics are left to the fleet.
    pub objectives: Vec<Objective>,
    /// Name of this machine, a label of its alerts.
    pub instance: String,
    /// Where this agent can be asked, for links in alerts.
    pub url: String,
}

/// Batches and questions on their way to the evaluator.
const MESSAGES: usize = 64;

/// Reads what an earlier run has left and starts the threads. Needs a tokio runtime for the peers.
///
/// # Errors
/// When a thread cannot be started, or there are no TLS roots to be had.
pub fn start(start: Start<'_>) -> anyhow::Result<(Recorder, Handle, Running)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, alert::nanos);
    let engine = Engine::new(start.objectives, Time::from_nanos(i64::try_from(now).unwrap_or(i64::MAX)));
    let objectives: Vec<Objective> = engine.accounts().map(|account| account.objective().clone()).collect();
    let (sender, messages) = sync_channel(MESSAGES);
    let firing: Arc<[AtomicBool]> = objectives.iter().map(|_| AtomicBool::new(false)).collect();
    let recorder = Recorder::new(&objectives, sender.clone(), Arc::clone(&firing));
    let late = sender.clone();
    let (writer, left) = Writer::start(
        &start.config.state,
        Box::new(move |left, batch| {
            evaluator::add_up(&left, batch);
            // When the evaluator has ended meanwhile, it is on disk all the same.
            let _ = late.send(Message::Left(Box::new(left)));
        }),
    )?;
    let notifier = Notifier::start(&start.config.alertmanagers, &start.config.webhooks, &start.url)?;
    let instance = start.instance;
    let ingredients = Ingredients { engine, notifier, writer, firing, instance, messages };
    let mut evaluator = Evaluator::new(ingredients);
    evaluator.restore(left);
    let thread = std::thread::Builder::new().name("objectives".to_owned()).spawn(move || {
        privilege::give_up().expect("giving up needs no privilege");
        evaluator.run()
    })?;
    let handle = Handle { evaluator: Some(sender.clone()) };
    Ok((recorder, handle, Running { sender, thread }))
}

impl Running {
    /// Writes everything, delivers what can be delivered soon, and ends.
    pub async fn finish(self) {
        let Self { sender, thread } = self;
        let ended = tokio::task::spawn_blocking(move || {
            // An evaluator that has ended needs no message.
            let _ = sender.send(Message::Finish);
            thread.join()
        });
        match ended.await {
            Ok(Ok(notifier)) => notifier.finish().await,
            _ => tracing::error!("the objectives' thread panicked"),
        }
    }
}

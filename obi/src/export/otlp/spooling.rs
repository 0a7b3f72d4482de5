//! A lane with a spool: what its destination does not take soon waits on the disk, and goes out in order.
//!
//! In: payloads of its queue, requests of its shelf. Out: requests; every item ends as sent, lost with a reason, or on
//! the disk. Refuses to know files.
//!
//! While a request is under way, or a pause is waited for, the queue is emptied all the same: so a destination that
//! hangs fills the disk and not the memory.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::time::Duration;

use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::lane::{Lane, Settings};
use super::meter::{Lost, Meter};
use super::queue::{PAYLOAD_BYTES, Payload, Receiver, release};
use super::retry::{Answer, Backoff};
use crate::export::spool::{Encoding, Kept, Slot};

/// How long a destination is tried before everything for it goes to the disk.
const TRIED: Duration = Duration::from_secs(5);
/// How long the end of the lane may send; the rest is for the disk.
const LAST: Duration = Duration::from_secs(3);
/// How long what is meant for the disk lies in memory.
const LOOK: Duration = Duration::from_secs(1);

/// How long a lane without work leaves the disk alone, where something may become too old.
const QUIET: Duration = Duration::from_secs(60);

/// How a lane uses the spool.
#[derive(Debug)]
pub(super) struct Spooling {
    pub(super) slot: Slot,
    /// Everything goes over the disk.
    pub(super) always: bool,
    /// Bytes per second that leave it at most.
    pub(super) drain: u32,
    /// Whether the destination refuses what is older than what it has.
    pub(super) in_order: bool,
    /// Whether bodies are worth compressing.
    pub(super) is_packed: bool,
    /// Memory of what waits, above which it goes to the disk.
    pub(super) memory: u64,
}

/// What has come and is not settled.
struct Intake {
    spooling: Spooling,
    held: VecDeque<Payload>,
    /// More may come.
    is_open: bool,
    /// Until when requests are sent, once no more comes.
    ends: Option<Instant>,
    /// Since when the destination takes nothing.
    failing: Option<Instant>,
}

/// What came of an attempt.
enum Outcome {
    /// Every item has been counted.
    Settled,
    /// To be tried again.
    Again(Option<Duration>, String),
}

/// A request of the disk in the hands of this lane; it is put back unless it is settled, also when the lane is given
/// up.
struct Taken(Option<Slot>);

impl Taken {
    fn from(slot: Slot) -> Option<(Kept, Self)> {
        let kept = slot.take()?;
        Some((kept, Self(Some(slot))))
    }

    async fn settle(mut self, how: fn(&Slot)) {
        if let Some(slot) = self.0.take() {
            // At the end of the runtime the record stays: it comes again.
            let _ = spawn_blocking(move || how(&slot)).await;
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.put_back();
        }
    }
}

/// Where the next request comes from.
enum Next {
    Disk,
    Memory,
    Nothing,
}

struct Sending {
    lane: Lane,
    intake: Intake,
    backoff: Backoff,
    /// The last request came from memory: the next one comes from the disk.
    turn: bool,
}

/// Sends until the queue is closed and empty; what cannot be sent then is on the disk.
pub(super) async fn run(lane: Lane, spooling: Spooling) {
    let intake = Intake { spooling, held: VecDeque::new(), is_open: true, ends: None, failing: None };
    let mut sending = Sending { lane, intake, backoff: Backoff::new(), turn: true };
    while sending.step().await {}
    let slot = sending.intake.spooling.slot;
    // At the end of the runtime the file is closed by itself.
    let _ = spawn_blocking(move || slot.close()).await;
}

impl Sending {
    /// `false` at the end.
    async fn step(&mut self) -> bool {
        self.intake.take_in(&mut self.lane.receiver);
        let is_over = self.intake.ends.is_some_and(|ends| Instant::now() >= ends);
        if is_over || self.intake.is_for_disk(&self.lane.meter) {
            self.intake.spill(&self.lane.settings, &self.lane.meter).await;
        }
        if is_over {
            return false;
        }
        match self.next() {
            Next::Disk => self.send_kept().await,
            Next::Memory => self.send_held().await,
            Next::Nothing if self.intake.is_open => self.wait().await,
            Next::Nothing => return false,
        }
        true
    }

    /// Old and new take turns where that is allowed: so the present is there soon after an outage.
    fn next(&self) -> Next {
        let Intake { held, failing, .. } = &self.intake;
        let is_kept = self.intake.is_kept();
        if is_kept && (held.is_empty() || failing.is_some() || self.turn) {
            return Next::Disk;
        }
        if held.is_empty() { Next::Nothing } else { Next::Memory }
    }

    /// Waits for the first payload, and for others that go with it.
    async fn wait(&mut self) {
        let Lane { receiver, settings, .. } = &mut self.lane;
        let first = tokio::select! {
            first = receiver.recv() => first,
            () = sleep(QUIET) => {
                let slot = self.intake.spooling.slot.clone();
                // What is missed comes the next time.
                let _ = spawn_blocking(move || slot.expire()).await;
                return;
            }
        };
        let Some(first) = first else { return self.intake.close() };
        let deadline = Instant::now() + settings.batch_delay;
        let mut n_items = first.n_items;
        self.intake.held.push_back(first);
        while n_items < settings.batch_items {
            match timeout_at(deadline, receiver.recv()).await {
                Ok(Some(payload)) => {
                    n_items += payload.n_items;
                    self.intake.held.push_back(payload);
                }
                Ok(None) => return self.intake.close(),
                Err(_) => return,
            }
        }
    }

    async fn send_held(&mut self) {
        self.turn = true;
        let batch = self.intake.batch(&self.lane.settings);
        match self.attempt(&batch).await {
            Outcome::Settled => batch.iter().for_each(|payload| release(&self.lane.meter, payload)),
            Outcome::Again(asked, why) => {
                batch.into_iter().rev().for_each(|payload| self.intake.held.push_front(payload));
                self.again(asked, &why).await;
            }
        }
    }

    async fn send_kept(&mut self) {
        self.turn = false;
        let slot = self.intake.spooling.slot.clone();
        let Ok(Some((kept, taken))) = spawn_blocking(move || Taken::from(slot)).await else {
            // It was expired or damaged, or a former lane has it.
            return self.pause(LOOK).await;
        };
        let n_bytes = kept.body.len() as f64;
        let Some(payload) = unpacked(kept) else { return taken.settle(Slot::spoil).await };
        match self.attempt(&[payload]).await {
            Outcome::Settled => {
                taken.settle(Slot::done).await;
                self.pause(Duration::from_secs_f64(n_bytes / f64::from(self.intake.spooling.drain))).await;
            }
            Outcome::Again(asked, why) => {
                drop(taken);
                self.again(asked, &why).await;
            }
        }
    }

    async fn attempt(&mut self, batch: &[Payload]) -> Outcome {
        let n_items: u64 = batch.iter().map(|payload| payload.n_items).sum();
        if self.lane.is_resting() {
            self.lane.meter.lose(Lost::Unsupported, n_items);
            return Outcome::Settled;
        }
        let limit = self.lane.settings.timeout;
        let Lane { transport, meter, settings, receiver, .. } = &mut self.lane;
        let sending = tokio::time::timeout(limit, transport.send(batch, meter));
        let answer = self.intake.beside(receiver, settings, meter, sending).await;
        let outcome = match answer {
            Some(Ok(Answer::Again(asked, why))) => return Outcome::Again(asked, why),
            Some(Ok(answer)) => {
                self.lane.settle(n_items, answer);
                Outcome::Settled
            }
            Some(Err(_)) => {
                self.lane.transport.reset();
                return Outcome::Again(None, format!("no answer within {limit:?}"));
            }
            None => return Outcome::Again(None, "no answer before the end".to_owned()),
        };
        (self.intake.failing, self.backoff) = (None, Backoff::new());
        outcome
    }

    async fn again(&mut self, asked: Option<Duration>, why: &str) {
        let intake = &mut self.intake;
        intake.failing.get_or_insert_with(Instant::now);
        if intake.ends.is_some() {
            intake.ends = Some(Instant::now());
            return;
        }
        self.lane.warn(&format!("trying again: {why}"));
        self.lane.meter.retry();
        let pause = self.backoff.pause(asked);
        self.pause(pause).await;
    }

    async fn pause(&mut self, pause: Duration) {
        let _ = self.beside(sleep(pause)).await;
    }

    async fn beside<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let Lane { receiver, settings, meter, .. } = &mut self.lane;
        self.intake.beside(receiver, settings, meter, work).await
    }
}

impl Intake {
    fn is_kept(&self) -> bool {
        self.spooling.slot.counts.held().items > 0
    }

    /// Whether what is held is meant for the disk.
    fn is_for_disk(&self, meter: &Meter) -> bool {
        let Spooling { always, in_order, memory, .. } = self.spooling;
        let is_down = self.failing.is_some_and(|since| since.elapsed() >= TRIED);
        let (_, n_bytes) = meter.queued();
        !self.held.is_empty() && (always || is_down || n_bytes > memory || in_order && self.is_kept())
    }

    /// What has come already.
    fn take_in(&mut self, receiver: &mut Receiver) {
        while let Ok(payload) = receiver.try_recv() {
            self.held.push_back(payload);
        }
    }

    /// No more comes.
    fn close(&mut self) {
        self.is_open = false;
        self.ends.get_or_insert_with(|| Instant::now() + LAST);
    }

    /// Does `work`, and takes in what comes meanwhile. `None` when the end is there before it is done.
    async fn beside<T>(
        &mut self,
        receiver: &mut Receiver,
        settings: &Settings,
        meter: &Meter,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::pin!(work);
        let mut look = Instant::now() + LOOK;
        loop {
            let ends = self.ends;
            let end = async { sleep_until(ends.unwrap_or(look)).await };
            tokio::select! {
                biased;
                done = &mut work => return Some(done),
                () = end, if ends.is_some() => return None,
                payload = receiver.recv(), if self.is_open => match payload {
                    Some(payload) => self.held.push_back(payload),
                    None => self.close(),
                },
                () = sleep_until(look) => look = Instant::now() + LOOK,
            }
            let is_time = Instant::now() >= look || meter.queued().1 > self.spooling.memory;
            if is_time && self.is_for_disk(meter) {
                self.spill(settings, meter).await;
            }
        }
    }

    /// Payloads for one request, as many as fit.
    fn batch(&mut self, settings: &Settings) -> Vec<Payload> {
        let (mut n_items, mut n_bytes, mut batch) = (0, 0, Vec::new());
        while let Some(payload) = self.held.front() {
            n_items += payload.n_items;
            n_bytes += payload.bytes.len();
            if !batch.is_empty() && (n_items > settings.batch_items || n_bytes > PAYLOAD_BYTES) {
                break;
            }
            batch.extend(self.held.pop_front());
        }
        batch
    }

    /// Everything that is held goes to the disk.
    async fn spill(&mut self, settings: &Settings, meter: &Meter) {
        while !self.held.is_empty() {
            let batch = self.batch(settings);
            let (slot, is_packed) = (self.spooling.slot.clone(), self.spooling.is_packed);
            let parts = batch.clone();
            let kept = spawn_blocking(move || slot.append(&packed(&parts, is_packed, slot.now()))).await;
            if kept.is_err() {
                meter.lose(Lost::Shutdown, batch.iter().map(|payload| payload.n_items).sum());
            }
            batch.iter().for_each(|payload| release(meter, payload));
        }
    }
}

/// A request as it is kept; `time` is the spool's.
fn packed(batch: &[Payload], is_packed: bool, time: u64) -> Kept {
    let query = batch.first().and_then(|payload| payload.query.as_deref()).unwrap_or_default().to_owned();
    let items = batch.iter().map(|payload| payload.n_items).sum();
    let parts = batch.iter().map(|payload| &*payload.bytes);
    let (body, encoding) = if is_packed {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        parts.for_each(|part| encoder.write_all(part).expect("writing to memory cannot fail"));
        (encoder.finish().expect("writing to memory cannot fail"), Encoding::Gzip)
    } else {
        (parts.collect::<Vec<_>>().concat(), Encoding::Plain)
    };
    Kept { body, query, encoding, items, time }
}

/// The request again; `None` when it cannot be one, whatever its checksum says.
fn unpacked(kept: Kept) -> Option<Payload> {
    let Kept { body, query, encoding, items, .. } = kept;
    let body = match encoding {
        Encoding::Plain => body,
        Encoding::Gzip => {
            let mut whole = Vec::new();
            let limit = PAYLOAD_BYTES as u64 + 1;
            GzDecoder::new(&*body).take(limit).read_to_end(&mut whole).ok()?;
            (whole.len() <= PAYLOAD_BYTES).then_some(whole)?
        }
    };
    let query = (!query.is_empty()).then(|| query.into());
    Some(Payload { query, ..Payload::new(body, items) })
}

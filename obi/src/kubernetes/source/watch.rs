//! A collection of objects at the API server, listed and watched, in protobuf.
//!
//! In: answers of the API server. Out: objects to a [`Collection`], as they come, change and go. Refuses to
//! know what an object is for.

use std::time::Duration;

use reqwest::{Response, Url};
use tokio::time::{Instant, sleep, timeout};

use super::Broken;
use super::server::{ANSWER, Asking, Server, WHOLE, explained, whole};
use crate::kubernetes::frame::{Frames, Prefix};
use crate::kubernetes::message::{self, Object, Watched};

/// The server sends a bookmark once a minute: longer silence is a connection that is dead.
const SILENCE: Duration = Duration::from_secs(150);
/// How long a watch is asked for, seconds: a random time, so that agents do not fall into step.
const WATCH_SECONDS: std::ops::Range<u64> = 300..600;
/// Between two lists of everything.
const BETWEEN_LISTS: Duration = Duration::from_secs(30);
/// Longest list that is read. A node runs some hundred pods of 10 KiB.
const LIST_BYTES: usize = 64 << 20;

const STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// Takes the objects of one kind.
pub(super) trait Collection {
    /// The kind.
    type Object: Object;
    /// What is asked for, in errors.
    const WHAT: &'static str;

    /// What is there comes now, from the beginning.
    fn begin(&self);
    /// All that was there has come.
    fn complete(&self);
    /// A stream was answered.
    fn answered(&self) {}
    /// A stream goes on from where the last one ended.
    fn resume(&self);
    /// An object is there, as a list says it.
    fn listed(&self, object: Self::Object);
    /// An object is there, in this form.
    fn put(&self, object: Self::Object);
    /// An object is no more.
    fn gone(&self, object: &Self::Object);
    /// A message could not be read.
    fn undecodable(&self, error: &crate::kubernetes::Error);
}

/// Where the watch of one collection stands.
#[derive(Debug)]
pub(super) struct Watch {
    server: Server,
    url: Url,
    /// Where it goes on; `None` before the first list, and when the server has forgotten it.
    version: Option<String>,
    /// The server cannot send what is there as the beginning of a watch.
    lists_apart: bool,
    listed: Option<Instant>,
    /// Between two lists of everything.
    pub(super) between_lists: Duration,
}

impl Watch {
    pub(super) fn new(server: Server, url: Url) -> Self {
        let (version, listed, lists_apart) = (None, None, false);
        Self { server, url, version, lists_apart, listed, between_lists: BETWEEN_LISTS }
    }

    /// Puts what the server sends until the watch ends: as agreed, or by an error.
    pub(super) async fn follow<C: Collection>(&mut self, collection: &C) -> Result<(), Broken> {
        let asking = self.server.asking()?;
        let mut result = self.watch(&asking, collection).await;
        if self.refuses_to_begin(&result) {
            (self.lists_apart, self.listed) = (true, None);
            result = self.watch(&asking, collection).await;
        }
        if let Err(Broken::Refused { code: 410, .. }) = &result {
            // What came meanwhile is not known: everything is asked for again.
            self.version = None;
        }
        result
    }

    /// Whether the server does not send what is there as the beginning of a watch: those before 1.32 know no such
    /// beginning, later ones may have it switched off, and one on an etcd that reports no progress, as 3.4.23, begins
    /// to answer and then says so by an event.
    fn refuses_to_begin(&self, result: &Result<(), Broken>) -> bool {
        let is_refused = matches!(result, Err(Broken::Refused { code: 400 | 422 | 500, .. }));
        is_refused && self.version.is_none() && !self.lists_apart
    }

    async fn watch<C: Collection>(&mut self, asking: &Asking, collection: &C) -> Result<(), Broken> {
        if self.version.is_none() {
            if let Some(listed) = self.listed {
                sleep(self.between_lists.saturating_sub(listed.elapsed())).await;
            }
            self.listed = Some(Instant::now());
            if self.lists_apart {
                self.list(asking, collection).await?;
            } else {
                collection.begin();
            }
        }
        let response = asking.get(C::WHAT, self.watch_url(), STREAM).await?;
        collection.answered();
        if self.version.is_some() {
            collection.resume();
        }
        self.read(response, collection).await
    }

    async fn read<C: Collection>(&mut self, mut response: Response, collection: &C) -> Result<(), Broken> {
        let mut frames = Frames::new(Prefix::Length);
        loop {
            let chunk = timeout(SILENCE, response.chunk()).await.map_err(|_| Broken::Late("a bookmark"))?;
            let Some(chunk) = chunk
                .map_err(|error| Broken::connection("a watch of the API server broke", explained(&error)))?
            else {
                return Ok(());
            };
            frames.push(&chunk);
            while let Some(bytes) = frames.message()? {
                match message::watched(bytes) {
                    Ok(event) => self.accept(event, collection)?,
                    Err(error) => collection.undecodable(&error),
                }
            }
        }
    }

    fn accept<C: Collection>(&mut self, event: Watched<C::Object>, collection: &C) -> Result<(), Broken> {
        let mut note = |version: &str| {
            // Before the end of what was there at first, versions are in no order.
            if let Some(held) = &mut self.version {
                version.clone_into(held);
            }
        };
        match event {
            Watched::Put(sent) => {
                note(&sent.resource_version);
                collection.put(sent.object);
            }
            Watched::Gone(sent) => {
                note(&sent.resource_version);
                collection.gone(&sent.object);
            }
            Watched::Bookmark { resource_version, is_initial_end } => {
                note(&resource_version);
                if is_initial_end {
                    self.version = Some(resource_version);
                    collection.complete();
                }
            }
            Watched::Refused { code, message } => {
                return Err(Broken::Refused { what: C::WHAT, code, message, after: None });
            }
            Watched::Other => {}
        }
        Ok(())
    }

    async fn list<C: Collection>(&mut self, asking: &Asking, collection: &C) -> Result<(), Broken> {
        let mut url = self.url.clone();
        url.query_pairs_mut().append_pair("resourceVersion", "0");
        let mut response = asking.get(C::WHAT, url, WHOLE).await?;
        let bytes = timeout(ANSWER, whole(&mut response, LIST_BYTES)).await;
        let bytes = bytes.map_err(|_| Broken::Late(C::WHAT))??;
        collection.begin();
        let version = message::list(&bytes, |object| collection.listed(object))?;
        self.version = Some(version);
        collection.complete();
        Ok(())
    }

    fn watch_url(&self) -> Url {
        let mut url = self.url.clone();
        let seconds = fastrand::u64(WATCH_SECONDS).to_string();
        let mut query = url.query_pairs_mut();
        query.append_pair("watch", "1").append_pair("allowWatchBookmarks", "true");
        query.append_pair("timeoutSeconds", &seconds);
        match &self.version {
            Some(version) => query.append_pair("resourceVersion", version),
            None => query
                .append_pair("sendInitialEvents", "true")
                .append_pair("resourceVersionMatch", "NotOlderThan"),
        };
        drop(query);
        url
    }
}

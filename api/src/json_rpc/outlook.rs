//! Whether submitters have room for another transaction: one query for all requests that ask at the same time.

use std::time::Duration;

use gapless_batching::{Batcher, Concurrency, Options, Request};
use gapless_domain::SubmitterKey;
use gapless_store::{StartOutlook, Store};

use crate::error::ApiError;

/// Submitters in one query.
const MAX_KEYS: usize = 500;

/// `None`: the database did not answer.
type Found = Option<StartOutlook>;

#[derive(Clone, Debug)]
pub(crate) struct Outlooks {
    batcher: Batcher<SubmitterKey, Found>,
}

impl Outlooks {
    /// `limit`: how long a transaction may wait for its nonce.
    pub(crate) fn start(store: Store, limit: Duration) -> Outlooks {
        let options = Options {
            name: "json_rpc",
            concurrency: Concurrency::Unordered { flushers: 1 },
            max_batch: MAX_KEYS,
            capacity: 8 * MAX_KEYS,
        };
        let batcher = Batcher::start(options, move |batch| {
            let store = store.clone();
            async move { look(&store, limit, batch).await }
        });
        Outlooks { batcher }
    }

    pub(super) async fn of(&self, key: SubmitterKey) -> Result<StartOutlook, ApiError> {
        self.batcher.call(key).await.ok().flatten().ok_or(ApiError::DatabaseUnavailable)
    }
}

async fn look(store: &Store, limit: Duration, batch: Vec<Request<SubmitterKey, Found>>) {
    let (keys, replies) = Request::split(batch);
    let found = store.start_outlooks(&keys, limit).await;
    if let Err(error) = &found {
        tracing::warn!(%error, requests = keys.len(), "requests refused: could not read their submitters");
    }
    for (index, reply) in replies.into_iter().enumerate() {
        reply.send(found.as_ref().ok().and_then(|found| found.get(index).copied()));
    }
}

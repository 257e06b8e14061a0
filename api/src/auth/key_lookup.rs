//! Batched API key lookup: one query serves many requests.
//!
//! Nothing is cached between queries, so a key that was revoked before a request arrived is refused without depending
//! on a notification. Requests that arrive while a query is running share the next one.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use gapless_batching::{Batcher, Concurrency, Options, Request};
use gapless_domain::ApiKeyId;
use gapless_store::{ApiKeyRow, Store};

use crate::error::ApiError;

/// Lookups per query.
const MAX_LOOKUPS: usize = 1_000;

/// Why a lookup failed.
#[derive(Clone, Copy, Debug)]
enum LookupError {
    /// The database is unreachable.
    Unavailable,
    Failed,
}

type Found = Result<Option<Arc<ApiKeyRow>>, LookupError>;

#[derive(Clone, Debug)]
pub(super) struct KeyLookup {
    batcher: Batcher<ApiKeyId, Found>,
}

impl KeyLookup {
    pub(super) fn start(store: Store) -> KeyLookup {
        let options = Options {
            name: "api_keys",
            concurrency: Concurrency::Unordered { flushers: 1 },
            max_batch: MAX_LOOKUPS,
            capacity: 2 * MAX_LOOKUPS,
        };
        let batcher = Batcher::start(options, move |batch| {
            let store = store.clone();
            async move { look_up(&store, batch).await }
        });
        KeyLookup { batcher }
    }

    /// The key's row, read after this call. `None`: no such key.
    pub(super) async fn find(&self, id: &ApiKeyId) -> Result<Option<Arc<ApiKeyRow>>, ApiError> {
        match self.batcher.call(id.clone()).await {
            Ok(Ok(row)) => Ok(row),
            Ok(Err(LookupError::Unavailable)) => Err(ApiError::DatabaseUnavailable),
            Ok(Err(LookupError::Failed)) | Err(_) => Err(ApiError::Internal),
        }
    }
}

/// The query starts after these lookups were received; later ones wait for the next query.
async fn look_up(store: &Store, batch: Vec<Request<ApiKeyId, Found>>) {
    let (ids, replies) = Request::split(batch);
    let distinct: BTreeSet<&ApiKeyId> = ids.iter().collect();
    let rows: Result<HashMap<ApiKeyId, Arc<ApiKeyRow>>, LookupError> =
        match store.find_api_keys(&distinct.into_iter().collect::<Vec<_>>()).await {
            Ok(rows) => Ok(rows.into_iter().map(|row| (row.id.clone(), Arc::new(row))).collect()),
            Err(error) if error.is_connection() => {
                tracing::warn!(%error, requests = ids.len(), "requests refused: the database is unavailable");
                Err(LookupError::Unavailable)
            }
            Err(error) => {
                tracing::error!(%error, requests = ids.len(), "API key lookup failed");
                Err(LookupError::Failed)
            }
        };
    for (id, reply) in ids.iter().zip(replies) {
        reply.send(rows.as_ref().map(|rows| rows.get(id).cloned()).map_err(|error| *error));
    }
}

//! Batched API key lookup: one query serves many requests.
//!
//! Nothing is cached between queries, so a key that was revoked before a request arrived is refused without depending
//! on a notification. Requests that arrive while a query is running share the next one.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use gapless_domain::ApiKeyId;
use gapless_store::{ApiKeyRow, Store};
use tokio::sync::{mpsc, oneshot};

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

struct Lookup {
    id: ApiKeyId,
    answer: oneshot::Sender<Found>,
}

#[derive(Clone, Debug)]
pub(super) struct KeyLookup {
    lookups: mpsc::Sender<Lookup>,
}

impl KeyLookup {
    pub(super) fn start(store: Store) -> KeyLookup {
        let (lookups, waiting) = mpsc::channel(MAX_LOOKUPS);
        tokio::spawn(run_lookups(store, waiting));
        KeyLookup { lookups }
    }

    /// The key's row, read after this call. `None`: no such key.
    pub(super) async fn find(&self, id: &ApiKeyId) -> Result<Option<Arc<ApiKeyRow>>, ApiError> {
        let (answer, found) = oneshot::channel();
        // The lookup task runs as long as the server. If it were gone, every request with a key would fail.
        self.lookups.send(Lookup { id: id.clone(), answer }).await.map_err(|_| ApiError::Internal)?;
        match found.await {
            Ok(Ok(row)) => Ok(row),
            Ok(Err(LookupError::Unavailable)) => Err(ApiError::DatabaseUnavailable),
            Ok(Err(LookupError::Failed)) | Err(_) => Err(ApiError::Internal),
        }
    }
}

async fn run_lookups(store: Store, mut waiting: mpsc::Receiver<Lookup>) {
    let mut lookups = Vec::new();
    while waiting.recv_many(&mut lookups, MAX_LOOKUPS).await > 0 {
        // The query starts after these lookups were received; later ones wait for the next query.
        let ids: BTreeSet<&ApiKeyId> = lookups.iter().map(|lookup| &lookup.id).collect();
        let found = store.find_api_keys(&ids.into_iter().collect::<Vec<_>>()).await;
        let rows: Result<HashMap<ApiKeyId, Arc<ApiKeyRow>>, LookupError> = match found {
            Ok(rows) => Ok(rows.into_iter().map(|row| (row.id.clone(), Arc::new(row))).collect()),
            Err(error) if error.is_connection() => {
                let requests = lookups.len();
                tracing::warn!(%error, requests, "requests refused: the database is unavailable");
                Err(LookupError::Unavailable)
            }
            Err(error) => {
                tracing::error!(%error, requests = lookups.len(), "API key lookup failed");
                Err(LookupError::Failed)
            }
        };
        for lookup in lookups.drain(..) {
            let answer = rows.as_ref().map(|rows| rows.get(&lookup.id).cloned()).map_err(|error| *error);
            // The receiver is gone if the client disconnected.
            let _ = lookup.answer.send(answer);
        }
    }
}

//! Keys as the database has them now: many requests, one query.
//!
//! Nothing is remembered from one look to the next, so a key that was revoked before a request came is refused, whatever
//! was lost on the way here. Requests that come while a look is under way share the next one.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use gapless::domain::ApiKeyId;
use gapless::store::{ApiKeyRow, Store};
use tokio::sync::{mpsc, oneshot};

use crate::error::ApiError;

/// One look answers so many at the most.
const MAX_ASKS: usize = 1_000;

/// Why nothing is known of a key.
#[derive(Clone, Copy, Debug)]
enum Blind {
    /// The database is away.
    Away,
    Broken,
}

type Found = Result<Option<Arc<ApiKeyRow>>, Blind>;

struct Ask {
    id: ApiKeyId,
    answer: oneshot::Sender<Found>,
}

#[derive(Clone, Debug)]
pub(super) struct KeyLookup {
    asks: mpsc::Sender<Ask>,
}

impl KeyLookup {
    pub(super) fn start(store: Store) -> KeyLookup {
        let (asks, waiting) = mpsc::channel(MAX_ASKS);
        tokio::spawn(look(store, waiting));
        KeyLookup { asks }
    }

    /// As it is at a moment after this call. `None`: there is no such key.
    pub(super) async fn find(&self, id: &ApiKeyId) -> Result<Option<Arc<ApiKeyRow>>, ApiError> {
        let (answer, found) = oneshot::channel();
        // Both ends live as long as the server; were the other one gone, nobody could come in.
        self.asks.send(Ask { id: id.clone(), answer }).await.map_err(|_| ApiError::Internal)?;
        match found.await {
            Ok(Ok(row)) => Ok(row),
            Ok(Err(Blind::Away)) => Err(ApiError::DatabaseUnavailable),
            Ok(Err(Blind::Broken)) | Err(_) => Err(ApiError::Internal),
        }
    }
}

async fn look(store: Store, mut waiting: mpsc::Receiver<Ask>) {
    let mut asks = Vec::new();
    while waiting.recv_many(&mut asks, MAX_ASKS).await > 0 {
        // After they were taken: who asks later needs a later look.
        let ids: BTreeSet<&ApiKeyId> = asks.iter().map(|ask| &ask.id).collect();
        let found = store.find_api_keys(&ids.into_iter().collect::<Vec<_>>()).await;
        let rows: Result<HashMap<ApiKeyId, Arc<ApiKeyRow>>, Blind> = match found {
            Ok(rows) => Ok(rows.into_iter().map(|row| (row.id.clone(), Arc::new(row))).collect()),
            Err(error) if error.is_connection() => {
                tracing::warn!(%error, requests = asks.len(), "requests were refused: the database is away");
                Err(Blind::Away)
            }
            Err(error) => {
                tracing::error!(%error, requests = asks.len(), "keys cannot be looked up");
                Err(Blind::Broken)
            }
        };
        for ask in asks.drain(..) {
            let answer = rows.as_ref().map(|rows| rows.get(&ask.id).cloned()).map_err(|blind| *blind);
            // A client that went away needs no answer.
            let _ = ask.answer.send(answer);
        }
    }
}

//! Batched reads: the rows of many lanes, the heads of their queues and their daily spending, one statement per batch.

use std::sync::Arc;

use gapless_domain::{SubmitterKey, TxId};
use gapless_store::{LaneRows, QueuedIntent, SpentToday, Store, StoreError};

use crate::batcher::{Batcher, Reply, Request};

#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Store(Arc<StoreError>),
    #[error("the worker is stopping")]
    Stopping,
}

type Lanes = Result<LaneRows, ReadError>;
type Heads = Result<Vec<QueuedIntent>, ReadError>;
type Spent = Result<SpentToday, ReadError>;

const MAX_BATCH: usize = 500;

#[derive(Clone, Debug)]
pub(crate) struct Reader {
    lanes: Batcher<SubmitterKey, Lanes>,
    heads: Batcher<(SubmitterKey, u32), Heads>,
    spent: Batcher<(SubmitterKey, TxId), Spent>,
    /// For queries too rare to batch.
    store: Store,
}

impl Reader {
    pub(crate) fn start(store: Store) -> Self {
        let (lanes, heads, spent) = (store.clone(), store.clone(), store.clone());
        Reader {
            store,
            lanes: Batcher::start("reader_rows", 1, MAX_BATCH, move |batch| {
                let store = lanes.clone();
                async move { read_lanes(&store, batch).await }
            }),
            heads: Batcher::start("reader_heads", 1, MAX_BATCH, move |batch| {
                let store = heads.clone();
                async move { read_heads(&store, batch).await }
            }),
            spent: Batcher::start("reader_spent", 1, MAX_BATCH, move |batch| {
                let store = spent.clone();
                async move { read_spent(&store, batch).await }
            }),
        }
    }

    /// Names of the queues, and the number of waiting reads in each.
    pub(crate) fn depths(&self) -> [(&'static str, usize); 3] {
        [self.lanes.depth(), self.heads.depth(), self.spent.depth()]
    }

    pub(crate) async fn lane(&self, key: SubmitterKey) -> Lanes {
        self.lanes.call(key).await.unwrap_or(Err(ReadError::Stopping))
    }

    pub(crate) async fn queue_head(&self, key: SubmitterKey, limit: u32) -> Heads {
        self.heads.call((key, limit)).await.unwrap_or(Err(ReadError::Stopping))
    }

    /// Used only for submitters whose policy has a daily limit.
    pub(crate) async fn spent_today(&self, key: SubmitterKey, tx_id: TxId) -> Spent {
        self.spent.call((key, tx_id)).await.unwrap_or(Err(ReadError::Stopping))
    }

    /// The block of a submitter's newest receipt. Read at most once per load, and only when an intent would revert.
    pub(crate) async fn newest_receipt_block(&self, key: SubmitterKey) -> Result<Option<u64>, StoreError> {
        self.store.newest_receipt_block(key).await
    }
}

async fn read_lanes(store: &Store, batch: Vec<Request<SubmitterKey, Lanes>>) {
    let (keys, replies) = Request::split(batch);
    match store.load_lanes(&keys).await {
        Ok(rows) => replies.into_iter().zip(rows).for_each(|(reply, rows)| reply.send(Ok(rows))),
        // One unreadable row must not stop the other lanes.
        Err(error) if keys.len() > 1 && !error.is_connection() => {
            for (key, reply) in keys.into_iter().zip(replies) {
                let alone = store.load_lanes(&[key]).await.map(|mut rows| rows.pop().unwrap_or_default());
                reply.send(alone.map_err(|error| ReadError::Store(Arc::new(error))));
            }
        }
        Err(error) => refuse(replies, error),
    }
}

async fn read_heads(store: &Store, batch: Vec<Request<(SubmitterKey, u32), Heads>>) {
    let (wanted, replies) = Request::split(batch);
    match store.queue_heads(&wanted).await {
        Ok(mut heads) => {
            for ((key, _), reply) in wanted.iter().zip(replies) {
                reply.send(Ok(heads.remove(key).unwrap_or_default()));
            }
        }
        Err(error) if wanted.len() > 1 && !error.is_connection() => {
            for (one, reply) in wanted.into_iter().zip(replies) {
                let alone =
                    store.queue_heads(&[one]).await.map(|mut heads| heads.remove(&one.0).unwrap_or_default());
                reply.send(alone.map_err(|error| ReadError::Store(Arc::new(error))));
            }
        }
        Err(error) => refuse(replies, error),
    }
}

async fn read_spent(store: &Store, batch: Vec<Request<(SubmitterKey, TxId), Spent>>) {
    let (keys, replies) = Request::split(batch);
    match store.spent_today(&keys).await {
        Ok(spent) => replies.into_iter().zip(spent).for_each(|(reply, spent)| reply.send(Ok(spent))),
        Err(error) => refuse(replies, error),
    }
}

fn refuse<A>(replies: Vec<Reply<Result<A, ReadError>>>, error: StoreError) {
    let error = Arc::new(error);
    for reply in replies {
        reply.send(Err(ReadError::Store(error.clone())));
    }
}

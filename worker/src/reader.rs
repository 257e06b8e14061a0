//! Batched reads: the rows of many lanes, the heads of their queues and their daily spending, one statement per batch.

use std::sync::Arc;

use gapless_batching::{Batcher, Bisection, Request};
use gapless_domain::{SubmitterKey, TxId};
use gapless_store::{LaneRows, LateIntent, QueuedIntent, SpentToday, Store, StoreError};

use crate::writer::batching;

#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Store(Arc<StoreError>),
    /// The batch ended without an answer, by a panic.
    #[error("the reader gave no answer")]
    NoAnswer,
}

type Lanes = Result<LaneRows, ReadError>;
type Heads = Result<Vec<QueuedIntent>, ReadError>;
type Spent = Result<SpentToday, ReadError>;
type Late = Result<Vec<LateIntent>, ReadError>;

#[derive(Clone, Debug)]
pub(crate) struct Reader {
    lanes: Batcher<SubmitterKey, Lanes>,
    heads: Batcher<(SubmitterKey, u32), Heads>,
    spent: Batcher<(SubmitterKey, TxId), Spent>,
    late: Batcher<SubmitterKey, Late>,
    /// For queries too rare to batch.
    store: Store,
}

impl Reader {
    pub(crate) fn start(store: Store) -> Self {
        let (lanes, heads, spent, late) = (store.clone(), store.clone(), store.clone(), store.clone());
        Reader {
            store,
            lanes: Batcher::start(batching("reader_rows", 1), move |batch| {
                let store = lanes.clone();
                async move { read_lanes(&store, batch).await }
            }),
            heads: Batcher::start(batching("reader_heads", 1), move |batch| {
                let store = heads.clone();
                async move { read_heads(&store, batch).await }
            }),
            spent: Batcher::start(batching("reader_spent", 1), move |batch| {
                let store = spent.clone();
                async move { read_spent(&store, batch).await }
            }),
            late: Batcher::start(batching("reader_late", 1), move |batch| {
                let store = late.clone();
                async move { read_late(&store, batch).await }
            }),
        }
    }

    /// Names of the queues, and the number of waiting reads in each.
    pub(crate) fn depths(&self) -> [(&'static str, usize); 4] {
        [self.lanes.depth(), self.heads.depth(), self.spent.depth(), self.late.depth()]
    }

    pub(crate) async fn lane(&self, key: SubmitterKey) -> Lanes {
        self.lanes.call(key).await.unwrap_or(Err(ReadError::NoAnswer))
    }

    pub(crate) async fn queue_head(&self, key: SubmitterKey, limit: u32) -> Heads {
        self.heads.call((key, limit)).await.unwrap_or(Err(ReadError::NoAnswer))
    }

    /// Queued intents that can no longer start, at most `MAX_LATE`.
    pub(crate) async fn late(&self, key: SubmitterKey) -> Late {
        self.late.call(key).await.unwrap_or(Err(ReadError::NoAnswer))
    }

    /// Used only for submitters whose policy has a daily limit.
    pub(crate) async fn spent_today(&self, key: SubmitterKey, tx_id: TxId) -> Spent {
        self.spent.call((key, tx_id)).await.unwrap_or(Err(ReadError::NoAnswer))
    }

    /// The block of a submitter's newest receipt. Read at most once per load, and only when an intent would revert.
    pub(crate) async fn newest_receipt_block(&self, key: SubmitterKey) -> Result<Option<u64>, StoreError> {
        self.store.newest_receipt_block(key).await
    }
}

async fn read_lanes(store: &Store, batch: Vec<Request<SubmitterKey, Lanes>>) {
    read(batch, |keys| async move { store.load_lanes(&keys).await }).await;
}

async fn read_heads(store: &Store, batch: Vec<Request<(SubmitterKey, u32), Heads>>) {
    let heads = |wanted: Vec<(SubmitterKey, u32)>| async move {
        let mut heads = store.queue_heads(&wanted).await?;
        Ok(wanted.iter().map(|(key, _)| heads.remove(key).unwrap_or_default()).collect())
    };
    read(batch, heads).await;
}

async fn read_spent(store: &Store, batch: Vec<Request<(SubmitterKey, TxId), Spent>>) {
    read(batch, |keys| async move { store.spent_today(&keys).await }).await;
}

async fn read_late(store: &Store, batch: Vec<Request<SubmitterKey, Late>>) {
    read(batch, |keys| async move { store.late_intents(&keys).await }).await;
}

/// One unreadable row must not stop the other lanes.
async fn read<Q: Clone, A, R: Future<Output = Result<Vec<A>, StoreError>>>(
    batch: Vec<Request<Q, Result<A, ReadError>>>,
    query: impl Fn(Vec<Q>) -> R,
) {
    let (items, replies) = Request::split(batch);
    let (mut bisection, mut replies) = (Bisection::new(items.len()), replies.into_iter());
    while let Some(range) = bisection.next_range() {
        match query(items[range.clone()].to_vec()).await {
            Ok(rows) => {
                let replies: Vec<_> = replies.by_ref().take(range.len()).collect();
                rows.into_iter().zip(replies).for_each(|(row, reply)| reply.send(Ok(row)));
            }
            Err(error) if !error.is_connection() && bisection.split(&range) => {}
            Err(error) => {
                let failed = if error.is_connection() { bisection.abort(&range) } else { range };
                let error = ReadError::Store(Arc::new(error));
                replies.by_ref().take(failed.len()).for_each(|reply| reply.send(Err(error.clone())));
            }
        }
    }
}

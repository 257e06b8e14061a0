//! Words between processes. They carry nothing and only shorten a wait: the rows are the truth, and whoever hears
//! nothing polls.

use super::error::StoreError;
use super::pool::Store;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// To workers: there may be something to do.
    Work,
    /// To APIs: an intent is final, or a request about one was dealt with.
    Final,
}

impl Channel {
    const fn name(self) -> &'static str {
        match self {
            Channel::Work => "gapless_work",
            Channel::Final => "gapless_final",
        }
    }
}

impl Store {
    /// Tells everybody who listens. A statement of its own, after the commit: inside one it takes a lock of the whole
    /// database until that commit is on disk.
    pub async fn notify(&self, channel: Channel) -> Result<(), StoreError> {
        sqlx::query(
            "-- notify
            SELECT pg_notify($1, '')",
        )
        .bind(channel.name())
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("notify"))?;
        Ok(())
    }

    /// Wakes idle workers.
    pub async fn notify_work(&self) -> Result<(), StoreError> {
        self.notify(Channel::Work).await
    }

    /// Listens on a connection of the pool, for as long as the listener lives. Errors end the subscription.
    pub async fn listen(&self, channel: Channel) -> Result<Listener, StoreError> {
        let mut listener = sqlx::postgres::PgListener::connect_with(self.pool.plain())
            .await
            .map_err(StoreError::db("listen"))?;
        listener.listen(channel.name()).await.map_err(StoreError::db("listen"))?;
        Ok(Listener { inner: listener })
    }
}

#[derive(Debug)]
pub struct Listener {
    inner: sqlx::postgres::PgListener,
}

impl Listener {
    /// Returns at a word, which may stand for many, and after a broken connection was replaced: who knows what was said
    /// meanwhile.
    pub async fn heard(&mut self) -> Result<(), StoreError> {
        self.inner.try_recv().await.map(|_| ()).map_err(StoreError::db("listen"))
    }
}

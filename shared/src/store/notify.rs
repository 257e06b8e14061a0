//! Words between processes. They carry nothing and only shorten a wait: the rows are the truth, and whoever hears
//! nothing polls.

use std::io;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::time::timeout;

use super::error::StoreError;
use super::pool::Store;
use super::timeout_pool::silent;

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

    /// Listens on a connection of its own, for as long as the listener lives.
    pub async fn listen(&self, channel: Channel) -> Result<Listener, StoreError> {
        // Not one of the pool: one that has fallen silent is dropped, and the driver waits in vain to tell it so. That must not
        // cost the pool a place.
        let options = self.pool.without_timeout().connect_options().as_ref().clone();
        let name = format!("{} listener", options.get_application_name().unwrap_or("gapless"));
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(ANSWER_WITHIN)
            .connect_lazy_with(options.application_name(&name));
        let listening = async {
            let mut listener = PgListener::connect_with(&pool).await?;
            // Whoever listens begins anew after a loss, and looks for what it missed.
            listener.eager_reconnect(false);
            listener.listen(channel.name()).await?;
            Ok::<_, sqlx::Error>(listener)
        };
        match timeout(ANSWER_WITHIN, listening).await {
            Ok(listener) => Ok(Listener { inner: listener.map_err(StoreError::db("listen"))? }),
            Err(_) => Err(StoreError::db("listen")(silent())),
        }
    }
}

/// A connection over which nothing was heard for so long is asked whether it is there. It may have died without a word, and then
/// nothing would ever be heard again.
const ASK_EVERY: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Listener {
    inner: PgListener,
}

impl Listener {
    /// Returns at a notification, which may stand for many. An error ends the subscription: the connection broke, or it does not
    /// answer any more.
    pub async fn heard(&mut self) -> Result<(), StoreError> {
        loop {
            match timeout(ASK_EVERY, self.inner.try_recv()).await {
                Ok(Ok(Some(_))) => return Ok(()),
                Ok(Ok(None)) => return Err(StoreError::db("listen")(broken())),
                Ok(Err(error)) => return Err(StoreError::db("listen")(error)),
                Err(_) => {}
            }
            // What is notified meanwhile is kept, and comes with the next turn.
            let asked = sqlx::query("-- ask_listener\nSELECT 1").execute(&mut self.inner);
            match timeout(ANSWER_WITHIN, asked).await {
                Ok(answer) => answer.map_err(StoreError::db("ask_listener"))?,
                Err(_) => return Err(StoreError::db("ask_listener")(silent())),
            };
        }
    }
}

fn broken() -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was lost"))
}

//! NOTIFY and LISTEN. Notifications have no payload and only shorten a wait: receivers read the rows, and poll if they
//! receive nothing.

use std::io;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::time::timeout;

use super::error::StoreError;
use super::pool::Store;
use super::timeout_pool::no_response;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// To workers: there may be new work.
    Work,
    /// To APIs: an intent is final, or a request about one is finished.
    Final,
    /// To the sequencer: there may be new events.
    Outbox,
    /// To readers of the event log: it has new events.
    Events,
}

impl Channel {
    const fn name(self) -> &'static str {
        match self {
            Channel::Work => "gapless_work",
            Channel::Final => "gapless_final",
            Channel::Outbox => "gapless_outbox",
            Channel::Events => "gapless_events",
        }
    }
}

impl Store {
    /// Notifies all listeners. A separate statement after the commit: inside a transaction NOTIFY holds a
    /// database-wide lock until the commit is flushed to disk.
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

    /// Listens on a separate connection, until the listener is dropped.
    pub async fn listen(&self, channel: Channel) -> Result<Listener, StoreError> {
        // Not from the pool: when an unresponsive connection is dropped, the driver waits to close it, and that must
        // not occupy a slot of the pool.
        let options = self.pool.without_timeout().connect_options().as_ref().clone();
        let name = format!("{} listener", options.get_application_name().unwrap_or("gapless"));
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(PROBE_TIMEOUT)
            .connect_lazy_with(options.application_name(&name));
        let listening = async {
            let mut listener = PgListener::connect_with(&pool).await?;
            // No automatic reconnect: the caller listens again after a loss and polls for what it missed.
            listener.eager_reconnect(false);
            listener.listen(channel.name()).await?;
            Ok::<_, sqlx::Error>(listener)
        };
        match timeout(PROBE_TIMEOUT, listening).await {
            Ok(listener) => Ok(Listener { inner: listener.map_err(StoreError::db("listen"))? }),
            Err(_) => Err(StoreError::db("listen")(no_response())),
        }
    }
}

/// A connection without notifications for this long is probed: it may be dead without an error.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Listener {
    inner: PgListener,
}

impl Listener {
    /// Waits for a notification, which may stand for several. An error ends the subscription: the connection is
    /// broken or does not respond.
    pub async fn recv(&mut self) -> Result<(), StoreError> {
        loop {
            match timeout(PROBE_INTERVAL, self.inner.try_recv()).await {
                Ok(Ok(Some(_))) => return Ok(()),
                Ok(Ok(None)) => return Err(StoreError::db("listen")(broken())),
                Ok(Err(error)) => return Err(StoreError::db("listen")(error)),
                Err(_) => {}
            }
            // Notifications that arrive meanwhile are buffered and received by the next `try_recv`.
            let probe = sqlx::query("-- ask_listener\nSELECT 1").execute(&mut self.inner);
            match timeout(PROBE_TIMEOUT, probe).await {
                Ok(result) => result.map_err(StoreError::db("ask_listener"))?,
                Err(_) => return Err(StoreError::db("ask_listener")(no_response())),
            };
        }
    }
}

fn broken() -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was lost"))
}

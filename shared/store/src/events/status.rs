//! State of the event log, for operators.

use chrono::{DateTime, Utc};

use crate::error::StoreError;
use crate::pool::Store;
use crate::row;

row::row_struct! {
    /// The log, and what is not in it yet.
    #[derive(Clone, Debug, PartialEq)]
    pub struct EventLogStatus {
        pub epoch: String,
        /// False after a restore or a failover: the next reader or sequencer begins a new epoch.
        pub same_database: bool,
        /// Of the newest event; 0: there was none.
        pub position: i64,
        /// The lowest position that is not dropped. Higher than `position`: the log is empty.
        pub first_position: i64,
        pub newest_at: Option<DateTime<Utc>>,
        pub oldest_at: Option<DateTime<Utc>>,
        pub partitions: i64,
        /// The first position without a partition.
        pub end_position: i64,
        /// Events that have no position yet; at most `EventLogStatus::MAX_WAITING`.
        pub waiting: i64,
        /// Age of the oldest of them in seconds, by the clock of the database.
        pub waiting_seconds: Option<f64>,
    }
}

impl EventLogStatus {
    /// More events are not counted, so that the statement is fast whatever the sequencer left.
    pub const MAX_WAITING: i64 = 10_000;
}

impl Store {
    /// Reads only: in contrast to `event_head` it begins no new epoch.
    pub async fn event_log_status(&self) -> Result<EventLogStatus, StoreError> {
        sqlx::query_as(
            "-- event_log_status
            SELECT h.epoch, h.database_id = gapless_database_id() AS same_database,
                   n.position, h.first_position, h.end_position,
                   (SELECT created_at FROM event_log WHERE position = n.position) AS newest_at,
                   (SELECT created_at FROM event_log WHERE position = h.first_position) AS oldest_at,
                   (SELECT count(*) FROM event_partition) AS partitions,
                   w.waiting, w.waiting_seconds
            FROM event_head h
            CROSS JOIN gapless_event_position() n (position)
            CROSS JOIN LATERAL (
                SELECT count(*) AS waiting,
                       extract(epoch FROM clock_timestamp() - min(o.created_at))::DOUBLE PRECISION AS waiting_seconds
                FROM (
                    SELECT created_at
                    FROM outbox_event
                    ORDER BY event_id
                    LIMIT $1) o) w",
        )
        .bind(EventLogStatus::MAX_WAITING)
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("event_log_status"))
    }
}

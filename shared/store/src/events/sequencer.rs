//! The sequencer: gives events their position in the log.
//!
//! It locks the row of the head in a statement of its own. The statements after it have new snapshots; they move all visible
//! rows of the outbox in the order of `event_id`, and number them after the newest event. Ids of one submitter are assigned
//! under the lock of its lease, so in this order they are those of its commits. A row that becomes visible later, with a
//! lower id, gets a later position; it belongs to another submitter, or to a request that was accepted meanwhile.
//! Nothing depends on who holds the duty: two sequencers wait for each other at the head (docs/adr/0044).

use std::time::Duration;

use sqlx::postgres::types::PgInterval;

use crate::error::StoreError;
use crate::pool::Store;
use crate::row;
use crate::timeout_pool::PooledConnection;

/// Rows moved by one transaction: larger ones hold the lock longer and gain little.
const MAX_BATCH: i64 = 1_000;
/// A partition has at least this many positions (`gapless_add_event_partition`).
const MIN_PARTITION: i64 = 1_000;
/// Partitions that a retention period is divided into, at the rate since the last partition was added.
const PARTITIONS_IN_RETENTION: f64 = 12.0;
/// A partition is at most this many times as large as the one before: a short burst must not make one that lasts for
/// years.
const GROWTH: i64 = 4;
/// The position of the newest event. Not a column: a row that is updated for each batch would have many dead versions
/// while somebody has an old snapshot.
macro_rules! newest_position {
    () => {
        "coalesce((SELECT max(position) FROM event_log), first_position - 1)"
    };
}
pub(super) use newest_position;

row::row_struct! {
    /// The end of the log.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LogHead {
        pub epoch: String,
        /// Of the newest event; 0: there was none.
        pub position: i64,
        /// The lowest position that is not dropped.
        pub first_position: i64,
    }
}

row::row_struct! {
    struct LockedHead {
        end_position: i64,
        outbox_floor: i64,
        /// False after a restore or a failover.
        same_database: bool,
    }
}

/// Result of one transaction of the sequencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequenced {
    pub moved: u64,
    /// There may be more.
    pub is_full: bool,
    /// Position of the newest event.
    pub position: i64,
}

/// The ids up to which the outbox can be skipped once `writers` have ended.
#[derive(Clone, Debug)]
pub struct OutboxFloor {
    /// Where the ids were assigned: after a failover they may be assigned again.
    database_id: String,
    /// The last assigned id.
    upto: i64,
    /// Transactions that may have rows with lower ids.
    writers: Vec<String>,
}

impl Store {
    /// Moves the oldest visible events to the log. `retention` determines the size of new partitions.
    pub async fn sequence_events(&self, retention: Duration) -> Result<Sequenced, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(StoreError::db("sequence_events"))?;
        let moved = self.pool.wait_for("sequence_events", sequence(&mut connection, retention)).await;
        connection.release(&moved);
        moved
    }

    /// Whether the outbox has visible rows. Locks nothing.
    pub async fn has_unsequenced_events(&self) -> Result<bool, StoreError> {
        sqlx::query_scalar(
            "-- has_unsequenced_events
            SELECT EXISTS (
                SELECT 1 FROM outbox_event WHERE event_id > (SELECT outbox_floor FROM event_head)
                ORDER BY event_id LIMIT 1)",
        )
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("has_unsequenced_events"))
    }

    /// The first half of raising the floor of the outbox, below which it is not searched. Moved rows are dead but stay
    /// in the index as long as any transaction of the server has an old snapshot; a search from the start would read all
    /// of them.
    ///
    /// A writer locks the table before it draws an id. So whoever has an id up to the last one either has ended or is
    /// one of `writers`, which are read after it.
    pub async fn outbox_floor(&self) -> Result<OutboxFloor, StoreError> {
        let error = StoreError::db("outbox_floor");
        let (upto, database_id): (i64, String) = sqlx::query_as(
            "-- outbox_floor
            SELECT CASE WHEN is_called THEN last_value ELSE 0 END, gapless_database_id()
            FROM outbox_event_event_id_seq",
        )
        .fetch_one(&self.pool)
        .await
        .map_err(error)?;
        Ok(OutboxFloor { database_id, upto, writers: self.outbox_writers().await? })
    }

    /// The second half: raises the floor if all writers have ended, the visible rows are moved, and it is still the same
    /// database. False: not now; after some tries, begin with a new floor.
    pub async fn raise_outbox_floor(&self, floor: &OutboxFloor) -> Result<bool, StoreError> {
        if !floor.writers.is_empty() {
            let open = self.outbox_writers().await?;
            if floor.writers.iter().any(|writer| open.contains(writer)) {
                return Ok(false);
            }
        }
        // A new snapshot: it shows all rows of those that have ended.
        let done = sqlx::query(
            "-- raise_outbox_floor
            UPDATE event_head h
            SET outbox_floor = $1
            WHERE h.outbox_floor < $1
              AND h.database_id = $2 AND gapless_database_id() = $2
              AND (SELECT last_value FROM outbox_event_event_id_seq) >= $1
              AND NOT EXISTS (
                  SELECT 1 FROM outbox_event o WHERE o.event_id > h.outbox_floor AND o.event_id <= $1)",
        )
        .bind(floor.upto)
        .bind(&floor.database_id)
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("raise_outbox_floor"))?;
        Ok(done.rows_affected() == 1)
    }

    /// Transactions that hold the lock of writers on the outbox.
    async fn outbox_writers(&self) -> Result<Vec<String>, StoreError> {
        sqlx::query_scalar(
            "-- outbox_writers
            SELECT DISTINCT virtualtransaction
            FROM pg_locks
            WHERE locktype = 'relation' AND relation = 'outbox_event'::REGCLASS AND mode = 'RowExclusiveLock'
              AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
              AND granted",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("outbox_writers"))
    }

    /// Drops partitions of the log whose events are older. Returns their number. An error if a reader holds the log:
    /// try again later.
    pub async fn drop_event_partitions(&self, retention: Duration) -> Result<u32, StoreError> {
        let dropped: i32 = sqlx::query_scalar(
            "-- drop_event_partitions
            SELECT gapless_drop_event_partitions($1)",
        )
        .bind(interval(retention))
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("drop_event_partitions"))?;
        Ok(dropped.unsigned_abs())
    }

    /// The end of the log. After a restore or a failover it has a new epoch: positions may be assigned again.
    pub async fn event_head(&self) -> Result<LogHead, StoreError> {
        let select = concat!(
            "-- event_head
            SELECT epoch, ",
            newest_position!(),
            " AS position, first_position
            FROM event_head
            WHERE database_id = gapless_database_id()"
        );
        let error = StoreError::db("event_head");
        if let Some(head) = sqlx::query_as(select).fetch_optional(&self.pool).await.map_err(error)? {
            return Ok(head);
        }
        self.renew_event_epoch(false).await?;
        sqlx::query_as(select).fetch_one(&self.pool).await.map_err(StoreError::db("event_head"))
    }

    /// Begins a new epoch if the database is not that of the current one, or if `forced`: all cursors are reset.
    pub async fn renew_event_epoch(&self, forced: bool) -> Result<String, StoreError> {
        sqlx::query_scalar(
            "-- renew_event_epoch
            SELECT gapless_renew_event_epoch($1)",
        )
        .bind(forced)
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("renew_event_epoch"))
    }
}

async fn sequence(connection: &mut PooledConnection, retention: Duration) -> Result<Sequenced, StoreError> {
    let error = || StoreError::db("sequence_events");
    let mut tx = connection.begin().await.map_err(error())?;
    let head: LockedHead = sqlx::query_as(
        "-- sequence_events: head
        SELECT end_position, outbox_floor, database_id = gapless_database_id() AS same_database
        FROM event_head
        FOR UPDATE",
    )
    .fetch_one(&mut *tx)
    .await
    .map_err(error())?;
    if !head.same_database {
        sqlx::query("-- sequence_events: epoch\nSELECT gapless_renew_event_epoch(FALSE)")
            .execute(&mut *tx)
            .await
            .map_err(error())?;
    }
    // After the lock, so that the snapshot has what the previous holder wrote.
    let before: i64 = sqlx::query_scalar(concat!(
        "-- sequence_events: position\nSELECT ",
        newest_position!(),
        " FROM event_head"
    ))
    .fetch_one(&mut *tx)
    .await
    .map_err(error())?;
    // A new epoch begins with a floor of 0.
    let floor = if head.same_database { head.outbox_floor } else { 0 };
    if before + MAX_BATCH >= head.end_position {
        sqlx::query(
            "-- sequence_events: partition
            SELECT gapless_add_event_partition(greatest($1, coalesce((
                -- Positions in a twelfth of the retention period, at the rate since the last partition was added.
                SELECT least(($3 - p.added_at) / greatest(extract(epoch FROM clock_timestamp() - p.created_at), 1)::FLOAT8 * $2,
                             (p.end_position - p.first_position) * $4)
                FROM event_partition p
                ORDER BY p.first_position DESC
                LIMIT 1)::BIGINT, 0)))",
        )
        .bind(MIN_PARTITION)
        .bind(retention.as_secs_f64() / PARTITIONS_IN_RETENTION)
        .bind(before)
        .bind(GROWTH)
        .execute(&mut *tx)
        .await
        .map_err(error())?;
    }
    let moved: i64 = sqlx::query_scalar(
        "-- sequence_events: move
        WITH moved AS (
            -- Found by place and by key, never by a join: for some hundred rows the planner would read all of a table.
            DELETE FROM outbox_event
            WHERE ctid = ANY (ARRAY(SELECT ctid FROM outbox_event WHERE event_id > $2 ORDER BY event_id LIMIT $3))
            RETURNING *
        ), logged AS (
            INSERT INTO event_log (position, id, chain_id, submitter, tx_id, request_id, kind, data, created_at)
            SELECT $1 + row_number() OVER (ORDER BY m.event_id), coalesce(m.id, gen_random_uuid()), m.chain_id, m.submitter,
                   m.tx_id, (SELECT t.request_id FROM managed_tx t WHERE t.tx_id = m.tx_id), m.kind, m.data, m.created_at
            FROM moved m
            RETURNING 1
        )
        SELECT count(*) FROM logged",
    )
    .bind(before)
    .bind(floor)
    .bind(MAX_BATCH)
    .fetch_one(&mut *tx)
    .await
    .map_err(error())?;
    if moved == 0 && head.same_database {
        tx.rollback().await.map_err(error())?;
    } else {
        tx.commit().await.map_err(error())?;
    }
    Ok(Sequenced { moved: moved.unsigned_abs(), is_full: moved == MAX_BATCH, position: before + moved })
}

/// Without months and days, whose length varies.
fn interval(time: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(time.as_micros()).unwrap_or(i64::MAX) }
}

//! Reads why a transaction or a submitter waits: the facts for `gapless_domain::waiting`.
//!
//! One statement for a transaction; the same joins are part of the statements that read submitters. Every part is an index
//! look-up or reads a small table (`worker`, `chain_halt`).

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::error::StoreError;
use super::operator::SubmitterStatus;
use super::pending::TxAction;
use super::pool::Store;
use super::row::{self, Cell};
use gapless_domain::waiting::{AHEAD_CAP, Condition, SubmitterFacts, TxFacts, Workers};
use gapless_domain::{ChainId, TxId, TxState, Waiting};

/// Why a transaction waits, and the accepted requests about it that are not executed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxWaiting {
    pub waiting: Waiting,
    pub pending: Vec<PendingRequestView>,
}

/// An accepted request about a transaction that is not executed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingRequestView {
    pub action: TxAction,
    pub since: DateTime<Utc>,
}

/// Columns of a transaction `$t`, each with the prefix `$p`.
macro_rules! tx_columns {
    ($t:literal, $p:literal) => {
        concat! {
            $t, ".state AS ", $p, "state, ",
            $t, ".sub_state AS ", $p, "sub_state, ",
            $t, ".last_error AS ", $p, "error, ",
            $t, ".created_at AS ", $p, "created_at, ",
            $t, ".updated_at AS ", $p, "updated_at, ",
            $t, ".blocked_since AS ", $p, "blocked_since, ",
            $t, ".prepared_at AS ", $p, "prepared_at, ",
            "CASE WHEN ", $t, ".history -> -1 ->> 0 = ", $t, ".state THEN (", $t, ".history -> -1 ->> 1)::TIMESTAMPTZ",
            " WHEN ", $t, ".state = 'TRACKING' THEN ", $t, ".tracking_at END AS ", $p, "entered_at, ",
            "CASE WHEN ", $t, ".not_before > clock_timestamp() THEN ", $t, ".not_before END AS ", $p, "not_before, ",
            $t, ".ending IS NOT NULL AS ", $p, "ending"
        }
    };
}

/// The select list of `FactsRow`. Needs `submitter s`, `submitter_nonce_cursor c` and `waiting_joins!`.
macro_rules! waiting_columns {
    () => {
        concat!(
            "s.chain_id AS of_chain, s.status AS of_status, s.status_reason AS paused_reason,
             coalesce(s.status_since, s.updated_at) AS paused_since,
             c.protect_reason AS protected_reason, coalesce(c.protect_since, c.updated_at) AS protected_since,
             c.suspect_reason AS suspected_reason, c.suspect_since AS suspected_since,
             coalesce(l.updated_at, s.created_at) AS served_at,
             w.live AS workers_live, w.serving AS workers_serving, w.silent AS workers_silent,
             z.halted, z.halted_since, z.halted_reason, z.halted_by_owner,
             f.in_flight AS open_count,
             CASE WHEN c.delegated THEN 1 ELSE coalesce(s.max_in_flight, c.max_in_flight) END AS window_size,
             coalesce(l.expires_at <= clock_timestamp(), TRUE)
                 AND ((e.tx_id IS NOT NULL AND s.status = 'ACTIVE') OR coalesce(c.has_open, FALSE))
                 -- Workers need a moment: until a lease is expired beyond doubt, and until their next poll.
                 AND greatest(e.created_at, e.not_before, l.updated_at, s.status_since,
                              CASE WHEN isfinite(l.expires_at) THEN l.expires_at END)
                     < clock_timestamp() - INTERVAL '10 seconds' AS untaken,
             e.tx_id AS head_tx_id, o.tx_id AS open_tx_id, ",
            crate::waiting::tx_columns!("e", "head_"),
            ", ",
            crate::waiting::tx_columns!("o", "open_")
        )
    };
}

/// The joins of `waiting_columns!`, after `submitter s` and `submitter_nonce_cursor c`. A heartbeat of an earlier version states neither
/// its chains nor its expiry: for an hour after it nothing is concluded from the absence of other workers.
macro_rules! waiting_joins {
    () => {
        "LEFT JOIN submitter_lease l ON l.chain_id = s.chain_id AND l.submitter = s.submitter
            CROSS JOIN LATERAL (
                SELECT count(*) FILTER (WHERE w.expires_at > clock_timestamp()) AS live,
                       count(*) FILTER (WHERE w.expires_at > clock_timestamp() AND s.chain_id = ANY (w.chains)) AS serving,
                       count(*) FILTER (WHERE (w.expires_at IS NULL OR w.expires_at < w.seen_at)
                                          AND w.seen_at > clock_timestamp() - INTERVAL '1 hour') AS silent
                FROM worker w) w
            CROSS JOIN LATERAL (
                SELECT count(*) AS halted, min(h.since) AS halted_since, min(h.reason) AS halted_reason,
                       coalesce(bool_or(h.worker_id = l.owner AND l.expires_at > clock_timestamp()), FALSE) AS halted_by_owner
                FROM chain_halt h
                JOIN worker k ON k.worker_id = h.worker_id
                WHERE h.chain_id = s.chain_id AND k.expires_at > clock_timestamp() AND h.chain_id = ANY (k.chains)) z
            LEFT JOIN LATERAL (
                SELECT t.*
                FROM managed_tx t
                WHERE t.chain_id = s.chain_id AND t.submitter = s.submitter AND t.queued
                  AND (t.not_before IS NULL OR t.not_before <= clock_timestamp())
                ORDER BY t.seq
                LIMIT 1) e ON TRUE
            LEFT JOIN LATERAL (
                SELECT t.*
                FROM managed_tx t
                WHERE t.tx_id = c.in_flight_tx_id AND t.finished_at IS NULL) o ON TRUE
            CROSS JOIN LATERAL (
                SELECT count(*) AS in_flight
                FROM (
                    SELECT
                    FROM managed_tx t
                    WHERE t.chain_id = s.chain_id AND t.submitter = s.submitter AND t.nonce >= c.open_from
                        AND t.finished_at IS NULL
                    ORDER BY t.nonce
                    LIMIT c.next_nonce - c.open_from) t) f
            "
    };
}

pub(crate) use {tx_columns, waiting_columns, waiting_joins};

row::row_struct! {
    pub(super) struct FactsRow {
        of_chain: i64,
        of_status: String,
        paused_reason: Option<String>,
        paused_since: DateTime<Utc>,
        protected_reason: Option<String>,
        protected_since: Option<DateTime<Utc>>,
        suspected_reason: Option<String>,
        suspected_since: Option<DateTime<Utc>>,
        served_at: DateTime<Utc>,
        workers_live: i64,
        workers_serving: i64,
        workers_silent: i64,
        halted: i64,
        halted_since: Option<DateTime<Utc>>,
        halted_reason: Option<String>,
        halted_by_owner: bool,
        open_count: i64,
        window_size: Option<i32>,
        untaken: Option<bool>,
        head_tx_id: Option<Uuid>,
        head_state: Option<String>,
        head_sub_state: Option<String>,
        head_error: Option<String>,
        head_created_at: Option<DateTime<Utc>>,
        head_updated_at: Option<DateTime<Utc>>,
        head_blocked_since: Option<DateTime<Utc>>,
        open_tx_id: Option<Uuid>,
        open_state: Option<String>,
        open_sub_state: Option<String>,
        open_error: Option<String>,
        open_created_at: Option<DateTime<Utc>>,
        open_updated_at: Option<DateTime<Utc>>,
        open_prepared_at: Option<DateTime<Utc>>,
        open_entered_at: Option<DateTime<Utc>>,
        open_ending: bool,
    }
}

row::row_struct! {
    struct TxWaitingRow {
        tx_state: String,
        tx_sub_state: Option<String>,
        tx_error: Option<String>,
        tx_created_at: DateTime<Utc>,
        tx_updated_at: DateTime<Utc>,
        tx_blocked_since: Option<DateTime<Utc>>,
        tx_prepared_at: Option<DateTime<Utc>>,
        tx_entered_at: Option<DateTime<Utc>>,
        tx_not_before: Option<DateTime<Utc>>,
        tx_ending: bool,
        ahead: i64,
        pending_actions: Vec<String>,
        pending_times: Vec<DateTime<Utc>>,
    } + { facts: FactsRow }
}

/// The statement of `Store::waiting`. Public for the test of its plan: `$1` is the transaction, `$2` the limit of the position.
#[doc(hidden)]
pub const WAITING: &str = concat!(
    "-- waiting
    SELECT ",
    tx_columns!("t", "tx_"),
    ", ",
    waiting_columns!(),
    ",
           CASE WHEN t.queued THEN (
               SELECT count(*)
               FROM (
                   SELECT
                   FROM managed_tx b
                   WHERE b.chain_id = t.chain_id AND b.submitter = t.submitter AND b.queued AND b.seq < t.seq
                     AND (b.not_before IS NULL OR b.not_before <= clock_timestamp())
                   -- For the index, as in find_work.
                   ORDER BY b.seq
                   LIMIT $2) b) ELSE 0 END AS ahead,
           ARRAY(SELECT r.action FROM tx_request r WHERE r.tx_id = t.tx_id AND r.applied_at IS NULL ORDER BY r.request_no)
               AS pending_actions,
           ARRAY(SELECT r.requested_at FROM tx_request r WHERE r.tx_id = t.tx_id AND r.applied_at IS NULL ORDER BY r.request_no)
               AS pending_times
    FROM managed_tx t
    JOIN submitter s ON s.chain_id = t.chain_id AND s.submitter = t.submitter
    LEFT JOIN submitter_nonce_cursor c ON c.chain_id = s.chain_id AND c.submitter = s.submitter
    ",
    waiting_joins!(),
    "WHERE t.tx_id = $1 AND t.finished_at IS NULL"
);

impl Store {
    /// Why a transaction waits. `None` if it is final or unknown.
    pub async fn waiting(&self, tx_id: TxId) -> Result<Option<TxWaiting>, StoreError> {
        let row: Option<TxWaitingRow> = sqlx::query_as(WAITING)
            .bind(tx_id.0)
            .bind(i64::try_from(AHEAD_CAP).unwrap_or(i64::MAX))
            .fetch_optional(&self.pool)
            .await
            .map_err(StoreError::db("waiting"))?;
        row.map(|row| row.read(tx_id)).transpose()
    }
}

impl TxWaitingRow {
    fn read(self, tx_id: TxId) -> Result<TxWaiting, StoreError> {
        let cell = |table, column| Cell { table, column, id: &tx_id };
        let tx = TxFacts {
            state: cell("managed_tx", "state").parse(&self.tx_state)?,
            sub_state: row::sub_state(self.tx_sub_state.as_deref()),
            error: self.tx_error,
            created_at: self.tx_created_at,
            updated_at: self.tx_updated_at,
            blocked_since: self.tx_blocked_since,
            prepared_at: self.tx_prepared_at,
            entered_at: self.tx_entered_at,
            not_before: self.tx_not_before,
            ending: self.tx_ending,
        };
        let ahead = cell("managed_tx", "seq").unsigned(self.ahead)?;
        let pending = self.pending_actions.iter().zip(self.pending_times);
        let pending = pending.map(|(action, since)| {
            Ok(PendingRequestView { action: cell("tx_request", "action").parse(action)?, since })
        });
        let pending = pending.collect::<Result<Vec<_>, StoreError>>()?;
        Ok(TxWaiting { waiting: self.facts.read(None)?.waiting(&tx, ahead), pending })
    }
}

/// A transaction of the queue that may start later.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaterStart {
    pub(super) created_at: DateTime<Utc>,
    pub(super) not_before: DateTime<Utc>,
}

impl FactsRow {
    /// `next_start`: the first transaction of the queue, if its start time is in the future.
    pub(super) fn read(self, next_start: Option<LaterStart>) -> Result<SubmitterFacts, StoreError> {
        let chain_id = self.of_chain;
        let cell = |table, column| Cell { table, column, id: &chain_id };
        let status: SubmitterStatus = cell("submitter", "status").parse(&self.of_status)?;
        let workers = match (self.workers_serving, self.workers_silent, self.workers_live) {
            (1.., _, _) => Workers::Serve,
            (_, 1.., _) => Workers::NotStated,
            (_, _, 1..) => Workers::ServeOthers,
            _ => Workers::None,
        };
        // Workers may have different nodes: the owner decides, or all of them agree.
        let all_halted = self.workers_silent == 0 && self.halted >= self.workers_serving;
        let halted =
            (self.halted > 0 && (self.halted_by_owner || all_halted)).then_some(self.halted_since).flatten();
        let in_flight = cell("managed_tx", "nonce").unsigned(self.open_count)?;
        let window = self.window_size.and_then(|window| u64::try_from(window).ok());
        let head = match (self.head_tx_id, self.head_state, self.head_created_at, self.head_updated_at) {
            (Some(_), Some(state), Some(created_at), Some(updated_at)) => Some(TxFacts {
                state: cell("managed_tx", "state").parse(&state)?,
                sub_state: row::sub_state(self.head_sub_state.as_deref()),
                error: self.head_error,
                created_at,
                updated_at,
                blocked_since: self.head_blocked_since,
                prepared_at: None,
                entered_at: None,
                not_before: None,
                ending: false,
            }),
            _ => None,
        };
        let oldest_open = match (self.open_tx_id, self.open_state, self.open_created_at, self.open_updated_at)
        {
            (Some(_), Some(state), Some(created_at), Some(updated_at)) => Some(TxFacts {
                state: cell("managed_tx", "state").parse(&state)?,
                sub_state: row::sub_state(self.open_sub_state.as_deref()),
                error: self.open_error,
                created_at,
                updated_at,
                blocked_since: None,
                prepared_at: self.open_prepared_at,
                entered_at: self.open_entered_at,
                not_before: None,
                ending: self.open_ending,
            }),
            _ => None,
        };
        let next_start = next_start.map(|later| TxFacts {
            state: TxState::Queued,
            sub_state: None,
            error: None,
            created_at: later.created_at,
            updated_at: later.created_at,
            blocked_since: None,
            prepared_at: None,
            entered_at: None,
            not_before: Some(later.not_before),
            ending: false,
        });
        let condition = |since: Option<DateTime<Utc>>, text: Option<String>| {
            since.filter(|_| text.is_some()).map(|since| Condition { since, text })
        };
        Ok(SubmitterFacts {
            chain_id: ChainId(cell("submitter", "chain_id").unsigned(chain_id)?),
            protect: condition(self.protected_since, self.protected_reason),
            paused: (status == SubmitterStatus::Paused)
                .then_some(Condition { since: self.paused_since, text: self.paused_reason }),
            suspect: condition(self.suspected_since, self.suspected_reason),
            workers,
            halted: halted.map(|since| Condition { since, text: self.halted_reason }),
            untaken: self.untaken.unwrap_or(false),
            served_at: self.served_at,
            in_flight,
            window_full: window.is_some_and(|window| in_flight >= window),
            head,
            oldest_open,
            next_start,
        })
    }
}

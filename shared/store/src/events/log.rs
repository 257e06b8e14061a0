//! Reads the log by cursor.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde_json::value::RawValue;
use sqlx::types::Json;
use uuid::Uuid;

use super::LogHead;
use super::sequencer::newest_position;
use crate::error::StoreError;
use crate::pool::Store;
use crate::row::{self, Cell, StoredAddress};
use gapless_domain::{ChainId, SubmitterKey, TxId};

/// Positions that one statement of a filtered read covers, so that a filter that matches little takes no longer than
/// one that matches much.
const SCANNED: i64 = 20_000;

/// A place in the log: after the event at `position`. Text form: `epoch.position`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventCursor {
    pub epoch: String,
    pub position: i64,
}

impl fmt::Display for EventCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.position)
    }
}

impl FromStr for EventCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let (epoch, position) = text.split_once('.').ok_or(InvalidCursor)?;
        let is_epoch = epoch.len() == 8 && epoch.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        let is_number = !position.is_empty() && position.bytes().all(|c| c.is_ascii_digit());
        match position.parse() {
            Ok(position) if is_epoch && is_number => Ok(EventCursor { epoch: epoch.to_owned(), position }),
            _ => Err(InvalidCursor),
        }
    }
}

/// Not a cursor of this log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a cursor of an event: epoch.position")]
pub struct InvalidCursor;

/// Why a cursor has no place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetReason {
    /// The database was restored, or failed over: its positions may differ.
    Epoch,
    /// Events after the cursor were dropped (`events.retention`).
    Retention,
}

impl ResetReason {
    pub const ALL: [ResetReason; 2] = [ResetReason::Epoch, ResetReason::Retention];

    pub fn as_str(self) -> &'static str {
        match self {
            ResetReason::Epoch => "epoch",
            ResetReason::Retention => "retention",
        }
    }
}

impl LogHead {
    /// Before the oldest event.
    pub fn start(&self) -> EventCursor {
        EventCursor { epoch: self.epoch.clone(), position: self.first_position - 1 }
    }

    /// After the newest event.
    pub fn end(&self) -> EventCursor {
        EventCursor { epoch: self.epoch.clone(), position: self.position }
    }

    /// Why reading cannot go on after this cursor. `None`: nothing is missing.
    pub fn reset_reason(&self, cursor: &EventCursor) -> Option<ResetReason> {
        if cursor.epoch != self.epoch || cursor.position > self.position {
            Some(ResetReason::Epoch)
        } else if cursor.position + 1 < self.first_position {
            Some(ResetReason::Retention)
        } else {
            None
        }
    }
}

/// An event with its position.
#[derive(Clone, Debug)]
pub struct LoggedEvent {
    pub position: i64,
    pub id: Uuid,
    /// Absent for events of the deployment, such as `webhook.disabled`.
    pub submitter: Option<SubmitterKey>,
    pub tx_id: Option<TxId>,
    pub request_id: Option<String>,
    /// For example `tx.confirmed`.
    pub kind: String,
    /// As it was written, with the member `type`.
    pub data: Box<RawValue>,
    pub created_at: DateTime<Utc>,
}

/// An event must match all conditions. One without a submitter does not match `chain_id`, `submitter` or `among`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    pub chain_id: Option<ChainId>,
    pub submitter: Option<SubmitterKey>,
    /// Any of these.
    pub among: Option<Vec<SubmitterKey>>,
    pub tx_id: Option<TxId>,
    /// Any of these; `tx.confirmed` for example.
    pub kinds: Option<Vec<String>>,
    /// Only events without a submitter.
    pub only_without_submitter: bool,
}

impl EventFilter {
    /// Whether it excludes nothing.
    pub fn is_empty(&self) -> bool {
        *self == EventFilter::default()
    }

    pub fn matches(&self, event: &LoggedEvent) -> bool {
        self.matches_submitter(event.submitter)
            && self.tx_id.is_none_or(|tx_id| Some(tx_id) == event.tx_id)
            && self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&event.kind))
    }

    fn matches_submitter(&self, submitter: Option<SubmitterKey>) -> bool {
        match submitter {
            Some(key) => {
                !self.only_without_submitter
                    && self.chain_id.is_none_or(|chain| chain == key.chain_id)
                    && self.submitter.is_none_or(|submitter| submitter == key)
                    && self.among.as_ref().is_none_or(|among| among.contains(&key))
            }
            None => self.chain_id.is_none() && self.submitter.is_none() && self.among.is_none(),
        }
    }
}

/// Events after a cursor.
#[derive(Clone, Debug)]
pub struct EventPage {
    pub head: LogHead,
    /// Set: reading cannot go on after the cursor, and there are no events.
    pub reset: Option<ResetReason>,
    pub events: Vec<LoggedEvent>,
    /// All matching events up to this position are in `events`.
    pub read_to: i64,
}

row::row_struct! {
    struct PageRow {
        epoch: String,
        head_position: i64,
        first_position: i64,
        same_database: bool,
        read_to: i64,
        position: Option<i64>,
        id: Option<Uuid>,
        chain_id: Option<i64>,
        submitter: Option<StoredAddress>,
        tx_id: Option<Uuid>,
        request_id: Option<String>,
        kind: Option<String>,
        data: Option<Json<Box<RawValue>>>,
        created_at: Option<DateTime<Utc>>,
    }
}

impl Store {
    /// The next events that match, at most `limit`, with the head in the same snapshot: a partition that was dropped
    /// meanwhile is noticed. A page may be empty and still advance.
    pub async fn read_events(
        &self,
        after: &EventCursor,
        filter: &EventFilter,
        limit: u32,
    ) -> Result<EventPage, StoreError> {
        let page = self.read_page(after, filter, limit).await?;
        match page {
            Some(page) => Ok(page),
            None => {
                self.renew_event_epoch(false).await?;
                let page = self.read_page(after, filter, limit).await?;
                page.ok_or(StoreError::RowsAffected { operation: "read_events", expected: 1, found: 0 })
            }
        }
    }

    /// `None`: the epoch belongs to another database.
    async fn read_page(
        &self,
        after: &EventCursor,
        filter: &EventFilter,
        limit: u32,
    ) -> Result<Option<EventPage>, StoreError> {
        // Those of one intent have an index.
        let scanned = if filter.is_empty() || filter.tx_id.is_some() { i64::MAX } else { SCANNED };
        let upto = after.position.saturating_add(scanned);
        let among = filter.among.as_ref().map(|among| crate::lease::columns(among));
        let (among_chains, among_submitters) = among.unzip();
        let rows: Vec<PageRow> = sqlx::query_as(
            concat!("-- read_events
            -- Once, not for each row: the id of the database is read from a file.
            WITH h AS MATERIALIZED (
                -- The end of the log is read with its rows: a plan that does not know a new partition does not see its end either.
                SELECT epoch, first_position, database_id = gapless_database_id() AS same_database, ", newest_position!(), " AS position
                FROM event_head)
            SELECT h.epoch, h.position AS head_position, h.first_position, h.same_database, least(h.position, $2) AS read_to,
                   e.position, e.id, e.chain_id, e.submitter, e.tx_id, e.request_id, e.kind, e.data, e.created_at
            FROM h
            LEFT JOIN LATERAL (
                SELECT l.*
                FROM event_log l
                WHERE l.position > $1 AND l.position <= $2 AND l.position <= h.position
                  AND ($4::BIGINT IS NULL OR l.chain_id = $4)
                  AND ($5::BYTEA IS NULL OR l.submitter = $5)
                  AND ($6::UUID IS NULL OR l.tx_id = $6)
                  AND ($7::TEXT[] IS NULL OR l.kind = ANY($7))
                  AND ($8::BIGINT[] IS NULL
                       OR (l.chain_id, l.submitter) IN (SELECT * FROM unnest($8, $9::BYTEA[])))
                  AND (NOT $10 OR l.submitter IS NULL)
                ORDER BY l.position
                LIMIT $3) e ON TRUE
            ORDER BY e.position"),
        )
        // Planned each time with a filter: which index is right depends on it.
        .persistent(filter.is_empty())
        .bind(after.position)
        .bind(upto)
        .bind(i64::from(limit))
        .bind(filter.submitter.map(|key| key.chain_id).or(filter.chain_id).map(|chain| chain.as_i64()))
        .bind(filter.submitter.map(row::address))
        .bind(filter.tx_id.map(|tx_id| tx_id.0))
        .bind(&filter.kinds)
        .bind(among_chains)
        .bind(among_submitters)
        .bind(filter.only_without_submitter)
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("read_events"))?;
        let Some(first) = rows.first().filter(|row| row.same_database) else { return Ok(None) };
        let head = LogHead {
            epoch: first.epoch.clone(),
            position: first.head_position,
            first_position: first.first_position,
        };
        let read_to = first.read_to;
        if let Some(reason) = head.reset_reason(after) {
            return Ok(Some(EventPage {
                read_to: head.start().position,
                head,
                reset: Some(reason),
                events: Vec::new(),
            }));
        }
        let mut events = Vec::with_capacity(rows.len());
        for row in rows {
            events.extend(row.event()?);
        }
        let is_full = events.len() >= limit as usize;
        let read_to = events.last().filter(|_| is_full).map_or(read_to, |last| last.position);
        Ok(Some(EventPage { head, reset: None, events, read_to: read_to.max(after.position) }))
    }
}

impl PageRow {
    fn event(self) -> Result<Option<LoggedEvent>, StoreError> {
        let Some(position) = self.position else { return Ok(None) };
        let missing = |column: &'static str| {
            let cell = Cell { table: "event_log", column, id: &position };
            cell.bad("is null")
        };
        let submitter = match (self.chain_id, self.submitter) {
            (Some(chain_id), Some(submitter)) => Some(row::key("event_log", chain_id, submitter)?),
            (None, None) => None,
            (Some(_), None) => return Err(missing("submitter")),
            (None, Some(_)) => return Err(missing("chain_id")),
        };
        Ok(Some(LoggedEvent {
            position,
            id: self.id.ok_or_else(|| missing("id"))?,
            submitter,
            tx_id: self.tx_id.map(TxId),
            request_id: self.request_id,
            kind: self.kind.ok_or_else(|| missing("kind"))?,
            data: self.data.ok_or_else(|| missing("data"))?.0,
            created_at: self.created_at.ok_or_else(|| missing("created_at"))?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_is_written() {
        let cursor = EventCursor { epoch: "0a1b2c3d".to_owned(), position: 42 };
        assert_eq!(cursor.to_string(), "0a1b2c3d.42");
        assert_eq!("0a1b2c3d.42".parse(), Ok(cursor));
        for wrong in [
            "",
            "42",
            "0a1b2c3d",
            "0a1b2c3d.",
            "0a1b2c3d.-1",
            "0a1b2c3d.+1",
            "0A1B2C3D.1",
            "0a1b2c3.1",
            "0a1b2c3d.1.2",
            "0a1b2c3d.9223372036854775808",
        ] {
            assert_eq!(wrong.parse::<EventCursor>(), Err(InvalidCursor), "{wrong}");
        }
    }

    fn event(submitter: Option<SubmitterKey>) -> LoggedEvent {
        LoggedEvent {
            position: 1,
            id: Uuid::from_u128(1),
            submitter,
            tx_id: None,
            request_id: None,
            kind: "a".to_owned(),
            data: RawValue::from_string("{}".to_owned()).unwrap(),
            created_at: DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn an_event_without_a_submitter_matches_no_condition_on_submitters() {
        let key = SubmitterKey { chain_id: ChainId(1), address: Default::default() };
        let (own, common) = (event(Some(key)), event(None));
        let all = EventFilter::default();
        let none = EventFilter { among: Some(Vec::new()), ..all.clone() };
        for (filter, matches_own, matches_common) in [
            (all.clone(), true, true),
            (EventFilter { kinds: Some(vec!["a".to_owned()]), ..all.clone() }, true, true),
            (EventFilter { chain_id: Some(key.chain_id), ..all.clone() }, true, false),
            (EventFilter { submitter: Some(key), ..all.clone() }, true, false),
            (EventFilter { among: Some(vec![key]), ..all.clone() }, true, false),
            (none.clone(), false, false),
            (EventFilter { only_without_submitter: true, ..all.clone() }, false, true),
            (EventFilter { only_without_submitter: true, ..none }, false, false),
        ] {
            assert_eq!(
                (filter.matches(&own), filter.matches(&common)),
                (matches_own, matches_common),
                "{filter:?}"
            );
        }
    }

    #[test]
    fn a_cursor_without_a_place_in_the_log_is_reset() {
        let head = LogHead { epoch: "aaaaaaaa".to_owned(), position: 10, first_position: 5 };
        let reason =
            |epoch: &str, position| head.reset_reason(&EventCursor { epoch: epoch.to_owned(), position });
        assert_eq!(reason("aaaaaaaa", 10), None, "the end");
        assert_eq!(reason("aaaaaaaa", 4), None, "the start");
        assert_eq!(reason("aaaaaaaa", 3), Some(ResetReason::Retention));
        assert_eq!(reason("aaaaaaaa", 11), Some(ResetReason::Epoch), "positions of a lost tail");
        assert_eq!(reason("bbbbbbbb", 7), Some(ResetReason::Epoch));
    }
}

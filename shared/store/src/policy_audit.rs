//! The log of policy decisions: written behind the fence, in the commit of the decision; append-only.
//!
//! The day's total is stored in the rows, so that it is as durable as the nonces it counts: it is the largest
//! `day_total` of the day's COUNTED rows. A row that would exceed the cap violates a constraint and aborts its whole
//! commit.

use chrono::{DateTime, NaiveDate, Utc};
use ethers_core::types::{Address, U256};
use uuid::Uuid;

use super::error::{StoreError, ensure_rows};
use super::fence::Tx;
use super::fenced::FencedWrite;
use super::lease::{Fence, columns};
use super::pool::Store;
use super::row::{self, Cell, StoredAddress};
use gapless_domain::policy::{Breach, Call, Rule, Selector};
use gapless_domain::{Payload, SubmitterKey, TxId, WorkerId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyDecision {
    /// The transaction is not signed.
    Refused,
    /// The intent gets a nonce, and its value counts towards the day's cap.
    Counted,
}

impl PolicyDecision {
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyDecision::Refused => "REFUSED",
            PolicyDecision::Counted => "COUNTED",
        }
    }
}

/// One decision, written in the commit of its consequence.
#[derive(Clone, Debug)]
pub struct PolicyNote {
    pub tx_id: TxId,
    pub worker_id: WorkerId,
    pub decision: PolicyDecision,
    pub rule: Rule,
    pub to: Option<Address>,
    pub selector: Option<Selector>,
    pub value: U256,
    pub limit: Option<U256>,
    /// The day's total before a refusal. `None` for COUNTED: the database computes the total.
    pub spent: Option<U256>,
}

impl PolicyNote {
    pub fn refused(tx_id: TxId, worker_id: WorkerId, breach: &Breach) -> PolicyNote {
        PolicyNote {
            tx_id,
            worker_id,
            decision: PolicyDecision::Refused,
            rule: breach.rule,
            to: breach.to,
            selector: breach.to.and(breach.call.selector()),
            value: breach.value,
            limit: breach.limit,
            spent: breach.spent,
        }
    }

    /// `limit`: the cap per day.
    pub fn counted(tx_id: TxId, worker_id: WorkerId, payload: &Payload, limit: U256) -> PolicyNote {
        PolicyNote {
            tx_id,
            worker_id,
            decision: PolicyDecision::Counted,
            rule: Rule::MaxValuePerDay,
            to: payload.to,
            selector: payload.to.and(Call::of(payload).selector()),
            value: payload.value,
            limit: Some(limit),
            spent: None,
        }
    }
}

/// The total of the current day (UTC, by the database's clock).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpentToday {
    pub total: U256,
    /// The given intent is already included: it had a nonce earlier today and lost it.
    pub counted: bool,
}

/// One row, for display.
#[derive(Clone, Debug)]
pub struct PolicyEntry {
    pub entry_no: i64,
    pub submitter: SubmitterKey,
    pub tx_id: TxId,
    pub request_id: String,
    pub decision: String,
    pub rule: String,
    pub to: Option<String>,
    pub selector: Option<String>,
    /// In wei, decimal; so are `limit` and `day_total`.
    pub value: String,
    pub limit: Option<String>,
    pub day: NaiveDate,
    pub day_total: Option<String>,
    pub worker_id: String,
    pub fencing_token: i64,
    pub decided_at: DateTime<Utc>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct PolicyFilter {
    pub submitter: Option<SubmitterKey>,
    pub tx_id: Option<TxId>,
    pub refused_only: bool,
    /// Maximum number of entries; the newest are returned.
    pub limit: u32,
}

pub(super) async fn note_policy(tx: &mut Tx<'_>, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let notes: Vec<(&Fence, &PolicyNote)> =
        live.iter().flat_map(|write| write.policy.iter().map(|note| (&write.fence, note))).collect();
    if notes.is_empty() {
        return Ok(());
    }
    let keys: Vec<SubmitterKey> = notes.iter().map(|(fence, _)| fence.key).collect();
    let (chains, submitters) = columns(&keys);
    let text = |get: fn(&PolicyNote) -> Option<String>| -> Vec<Option<String>> {
        notes.iter().map(|(_, note)| get(note)).collect()
    };
    let done = sqlx::query(
        "-- note_policy
        WITH today AS MATERIALIZED (
            -- Computed once: clock_timestamp() may pass midnight during the statement.
            SELECT (clock_timestamp() AT TIME ZONE 'UTC')::DATE AS day
        )
        INSERT INTO policy_audit
            (chain_id, submitter, tx_id, request_id, decision, rule, recipient, selector, value, limit_value, day, day_total,
             worker_id, fencing_token)
        SELECT u.chain_id, u.submitter, u.tx_id, t.request_id, u.decision, u.rule, u.recipient, u.selector, u.value,
               u.limit_value, today.day,
               CASE
                   WHEN u.decision = 'REFUSED' THEN u.spent
                   ELSE before.total + sum(u.value) FILTER (WHERE u.decision = 'COUNTED')
                       OVER (PARTITION BY u.chain_id, u.submitter ORDER BY u.place) END,
               u.worker_id, u.token
        FROM unnest($1::BIGINT[], $2::BYTEA[], $3::UUID[], $4::TEXT[], $5::TEXT[], $6::BYTEA[], $7::BYTEA[], $8::NUMERIC[],
                    $9::NUMERIC[], $10::NUMERIC[], $11::TEXT[], $12::BIGINT[])
          WITH ORDINALITY AS u (chain_id, submitter, tx_id, decision, rule, recipient, selector, value, limit_value, spent,
                                worker_id, token, place)
        CROSS JOIN today
        JOIN managed_tx t ON t.tx_id = u.tx_id AND t.submitter = u.submitter
        -- The lease row is locked: no other commit can count for this submitter meanwhile.
        CROSS JOIN LATERAL (
            SELECT coalesce(max(a.day_total), 0) AS total
            FROM policy_audit a
            WHERE a.chain_id = u.chain_id AND a.submitter = u.submitter AND a.day = today.day AND a.decision = 'COUNTED'
        ) before
        ORDER BY u.place",
    )
    .bind(chains)
    .bind(submitters)
    .bind(notes.iter().map(|(_, note)| note.tx_id.0).collect::<Vec<Uuid>>())
    .bind(notes.iter().map(|(_, note)| note.decision.as_str()).collect::<Vec<_>>())
    .bind(notes.iter().map(|(_, note)| note.rule.as_str()).collect::<Vec<_>>())
    .bind(notes.iter().map(|(_, note)| note.to.map(StoredAddress::from)).collect::<Vec<_>>())
    .bind(notes.iter().map(|(_, note)| note.selector).collect::<Vec<_>>())
    .bind(text(|note| Some(note.value.to_string())))
    .bind(text(|note| note.limit.map(|limit| limit.to_string())))
    .bind(text(|note| note.spent.map(|spent| spent.to_string())))
    .bind(notes.iter().map(|(_, note)| note.worker_id.0.as_str()).collect::<Vec<_>>())
    .bind(notes.iter().map(|(fence, _)| fence.token.as_i64()).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("note_policy"))?;
    ensure_rows("note_policy", notes.len(), done.rows_affected() as usize)
}

impl Store {
    /// Today's total of each submitter, by the database's clock, and whether the intent is already included. In the
    /// order of `intents`.
    pub async fn spent_today(&self, intents: &[(SubmitterKey, TxId)]) -> Result<Vec<SpentToday>, StoreError> {
        let (chains, submitters) = columns(&intents.iter().map(|(key, _)| *key).collect::<Vec<_>>());
        let rows: Vec<(String, bool)> = sqlx::query_as(
            "-- spent_today
            WITH today AS MATERIALIZED (
                SELECT (clock_timestamp() AT TIME ZONE 'UTC')::DATE AS day
            )
            SELECT spent.total::TEXT,
                   EXISTS (SELECT FROM policy_audit a WHERE a.tx_id = u.tx_id AND a.day = today.day AND a.decision = 'COUNTED')
            FROM unnest($1::BIGINT[], $2::BYTEA[], $3::UUID[]) WITH ORDINALITY AS u (chain_id, submitter, tx_id, place)
            CROSS JOIN today
            CROSS JOIN LATERAL (
                SELECT coalesce(max(a.day_total), 0) AS total
                FROM policy_audit a
                WHERE a.chain_id = u.chain_id AND a.submitter = u.submitter AND a.day = today.day AND a.decision = 'COUNTED'
            ) spent
            ORDER BY u.place",
        )
        .bind(chains)
        .bind(submitters)
        .bind(intents.iter().map(|(_, tx_id)| tx_id.0).collect::<Vec<Uuid>>())
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("spent_today"))?;
        ensure_rows("spent_today", intents.len(), rows.len())?;
        let spent = |((total, counted), (key, _)): ((String, bool), &(SubmitterKey, TxId))| {
            let id = key.to_string();
            let cell = Cell { table: "policy_audit", column: "day_total", id: &id };
            let total = U256::from_dec_str(&total).map_err(|error| cell.bad(error))?;
            Ok(SpentToday { total, counted })
        };
        rows.into_iter().zip(intents).map(spent).collect()
    }

    /// The newest decisions, newest first.
    pub async fn policy_entries(&self, filter: &PolicyFilter) -> Result<Vec<PolicyEntry>, StoreError> {
        let (chain, address) = match filter.submitter {
            Some(key) => (Some(key.chain_id.as_i64()), Some(row::address(key))),
            None => (None, None),
        };
        let rows: Vec<EntryRow> = sqlx::query_as(
            "-- policy_entries
            SELECT entry_no, chain_id, submitter, tx_id, request_id, decision, rule, recipient, selector, value::TEXT AS value,
                   limit_value::TEXT AS limit_value, day, day_total::TEXT AS day_total, worker_id, fencing_token, decided_at
            FROM policy_audit
            WHERE ($1::BIGINT IS NULL OR chain_id = $1)
              AND ($2::BYTEA IS NULL OR submitter = $2)
              AND ($3::UUID IS NULL OR tx_id = $3)
              AND (NOT $4 OR decision = 'REFUSED')
            ORDER BY entry_no DESC
            LIMIT $5",
        )
        .bind(chain)
        .bind(address)
        .bind(filter.tx_id.map(|tx_id| tx_id.0))
        .bind(filter.refused_only)
        .bind(i64::from(filter.limit))
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("policy_entries"))?;
        rows.into_iter().map(PolicyEntry::try_from).collect()
    }
}

row::row_struct! {
    struct EntryRow {
        entry_no: i64,
        chain_id: i64,
        submitter: StoredAddress,
        tx_id: Uuid,
        request_id: String,
        decision: String,
        rule: String,
        recipient: Option<StoredAddress>,
        selector: Option<[u8; 4]>,
        value: String,
        limit_value: Option<String>,
        day: NaiveDate,
        day_total: Option<String>,
        worker_id: String,
        fencing_token: i64,
        decided_at: DateTime<Utc>,
    }
}

impl TryFrom<EntryRow> for PolicyEntry {
    type Error = StoreError;

    fn try_from(row: EntryRow) -> Result<PolicyEntry, StoreError> {
        Ok(PolicyEntry {
            entry_no: row.entry_no,
            submitter: row::key("policy_audit", row.chain_id, row.submitter)?,
            tx_id: TxId(row.tx_id),
            request_id: row.request_id,
            decision: row.decision,
            rule: row.rule,
            to: row.recipient.map(|recipient| recipient.to_string()),
            selector: row.selector.map(|selector| row::hex_text(&selector)),
            value: row.value,
            limit: row.limit_value,
            day: row.day,
            day_total: row.day_total,
            worker_id: row.worker_id,
            fencing_token: row.fencing_token,
            decided_at: row.decided_at,
        })
    }
}

//! Reads for the audit: all rows of a chain in one snapshot. Read only, and without the fence: a snapshot contains
//! committed rows only, independent of lease ownership.

use std::collections::HashMap;

use chrono::NaiveDate;
use ethers_core::types::{H256, U256};
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::attempt::AttemptKind;
use super::cursor::Cursor;
use super::error::StoreError;
use super::external_nonce::{self, ExternalNonces};
use super::pool::Store;
use super::row::{self, Cell, StoredAddress, StoredHash};
use gapless_domain::{ChainId, FencingToken, Nonce, ReservationState, SubmitterKey, TxId, TxState};

/// All rows of one submitter that can be compared with its transactions on chain.
#[derive(Clone, Debug, Default)]
pub struct AuditedSubmitter {
    /// `None` before its first nonce.
    pub cursor: Option<Cursor>,
    /// Others also use the key.
    pub shared: bool,
    /// Nonces that were left to external senders while it was shared.
    pub external: Vec<ExternalNonces>,
    pub intents: Vec<AuditedIntent>,
    pub attempts: Vec<AuditedAttempt>,
    /// Those that have a nonce.
    pub reservations: Vec<AuditedReservation>,
    /// Values counted towards daily caps, in the order in which they were written.
    pub counts: Vec<AuditedCount>,
}

#[derive(Clone, Debug)]
pub struct AuditedIntent {
    pub tx_id: TxId,
    pub state: TxState,
    pub nonce: Option<Nonce>,
}

#[derive(Clone, Debug)]
pub struct AuditedAttempt {
    pub tx_id: TxId,
    /// Commit order within the intent, from 1.
    pub ordinal: u32,
    pub nonce: Nonce,
    pub kind: AttemptKind,
    pub tx_hash: H256,
    pub fencing_token: FencingToken,
    /// An external transaction with its nonce is final.
    pub displaced: bool,
}

/// A nonce that was reserved for a client.
#[derive(Clone, Debug)]
pub struct AuditedReservation {
    pub tx_id: TxId,
    pub nonce: Nonce,
    pub state: ReservationState,
}

/// A value that was counted towards the cap of a day.
#[derive(Clone, Debug)]
pub struct AuditedCount {
    pub tx_id: TxId,
    pub day: NaiveDate,
    pub value: U256,
    /// The cap at that time.
    pub limit: Option<U256>,
    /// The total of the day, including this value.
    pub day_total: Option<U256>,
    pub fencing_token: FencingToken,
}

row::row_struct! {
    struct SubmitterRow {
        submitter: StoredAddress,
        start_nonce: Option<i64>,
        next_nonce: Option<i64>,
        open_from: Option<i64>,
        protect_reason: Option<String>,
        max_in_flight: Option<i32>,
        delegated: Option<bool>,
        shared: Option<bool>,
    }
}

row::row_struct! {
    struct IntentRow {
        submitter: StoredAddress,
        tx_id: Uuid,
        state: String,
        nonce: Option<i64>,
    }
}

row::row_struct! {
    struct AttemptRow {
        submitter: StoredAddress,
        tx_id: Uuid,
        ordinal: i32,
        nonce: i64,
        kind: String,
        tx_hash: StoredHash,
        fencing_token: i64,
        displaced: bool,
    }
}

row::row_struct! {
    struct CountRow {
        entry_no: i64,
        submitter: StoredAddress,
        tx_id: Uuid,
        day: NaiveDate,
        value: String,
        limit_value: Option<String>,
        day_total: Option<String>,
        fencing_token: i64,
    }
}

type Audited = HashMap<SubmitterKey, AuditedSubmitter>;

impl Store {
    /// All submitters of a chain with all their rows, in one snapshot. Read the chain's transaction counts before
    /// calling this: what they count was committed before it was sent, so the snapshot contains it.
    pub async fn audit_snapshot(&self, chain_id: ChainId) -> Result<Audited, StoreError> {
        let failed = || StoreError::db("audit_snapshot");
        let mut tx = self
            .pool
            .without_timeout()
            .begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            .await
            .map_err(failed())?;
        let mut audited = Audited::new();
        read_submitters(&mut tx, chain_id, &mut audited).await?;
        read_intents(&mut tx, chain_id, &mut audited).await?;
        read_attempts(&mut tx, chain_id, &mut audited).await?;
        read_external(&mut tx, chain_id, &mut audited).await?;
        read_reservations(&mut tx, chain_id, &mut audited).await?;
        read_counts(&mut tx, chain_id, &mut audited).await?;
        tx.commit().await.map_err(failed())?;
        Ok(audited)
    }

    /// All submitters of a chain that have rows.
    pub async fn audit_submitters(&self, chain_id: ChainId) -> Result<Vec<SubmitterKey>, StoreError> {
        let rows: Vec<StoredAddress> = sqlx::query_scalar(
            "-- audit_submitters
            SELECT submitter FROM submitter WHERE chain_id = $1
            UNION
            SELECT submitter FROM submitter_nonce_cursor WHERE chain_id = $1
            ORDER BY submitter",
        )
        .bind(chain_id.as_i64())
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("audit_submitters"))?;
        rows.into_iter().map(|submitter| row::key("submitter", chain_id.as_i64(), submitter)).collect()
    }
}

async fn read_submitters(
    tx: &mut Transaction<'static, Postgres>,
    chain_id: ChainId,
    audited: &mut Audited,
) -> Result<(), StoreError> {
    let rows: Vec<SubmitterRow> = sqlx::query_as(
        "-- audit_cursors
        SELECT submitter, c.start_nonce, c.next_nonce, c.open_from, c.protect_reason, c.max_in_flight, c.delegated, s.shared
        FROM (SELECT chain_id, submitter, shared FROM submitter WHERE chain_id = $1) s
        FULL JOIN (SELECT * FROM submitter_nonce_cursor WHERE chain_id = $1) c USING (chain_id, submitter)",
    )
    .bind(chain_id.as_i64())
    .fetch_all(&mut **tx)
    .await
    .map_err(StoreError::db("audit_cursors"))?;
    for found in rows {
        let key = row::key("submitter_nonce_cursor", chain_id.as_i64(), found.submitter)?;
        let cell = |column| Cell { table: "submitter_nonce_cursor", column, id: &found.submitter };
        let cursor = match (found.start_nonce, found.next_nonce, found.open_from) {
            (Some(start), Some(next), Some(open_from)) => Some(Cursor {
                start: row::nonce(cell("start_nonce"), start)?,
                next: row::nonce(cell("next_nonce"), next)?,
                open_from: row::nonce(cell("open_from"), open_from)?,
                in_flight: None,
                protect: found.protect_reason,
                max_in_flight: found.max_in_flight.and_then(|window| u32::try_from(window).ok()).unwrap_or(1),
                delegated: found.delegated.unwrap_or(false),
            }),
            _ => None,
        };
        let entry = audited.entry(key).or_default();
        entry.cursor = cursor;
        entry.shared = found.shared.unwrap_or(false);
    }
    Ok(())
}

async fn read_external(
    tx: &mut Transaction<'static, Postgres>,
    chain_id: ChainId,
    audited: &mut Audited,
) -> Result<(), StoreError> {
    let rows = sqlx::query_as(
        "-- audit_external
        SELECT chain_id, submitter, first_nonce, last_nonce, cause
        FROM external_nonce
        WHERE chain_id = $1
        ORDER BY submitter, first_nonce",
    )
    .bind(chain_id.as_i64())
    .fetch_all(&mut **tx)
    .await
    .map_err(StoreError::db("audit_external"))?;
    for found in rows {
        let (key, range) = external_nonce::read(found)?;
        audited.entry(key).or_default().external.push(range);
    }
    Ok(())
}

async fn read_intents(
    tx: &mut Transaction<'static, Postgres>,
    chain_id: ChainId,
    audited: &mut Audited,
) -> Result<(), StoreError> {
    let rows: Vec<IntentRow> = sqlx::query_as(
        "-- audit_intents
        SELECT submitter, tx_id, state, nonce
        FROM managed_tx
        WHERE chain_id = $1
        ORDER BY submitter, seq",
    )
    .bind(chain_id.as_i64())
    .fetch_all(&mut **tx)
    .await
    .map_err(StoreError::db("audit_intents"))?;
    for found in rows {
        let key = row::key("managed_tx", chain_id.as_i64(), found.submitter)?;
        let id = found.tx_id.to_string();
        let cell = |column| Cell { table: "managed_tx", column, id: &id };
        audited.entry(key).or_default().intents.push(AuditedIntent {
            tx_id: TxId(found.tx_id),
            state: cell("state").parse(&found.state)?,
            nonce: found.nonce.map(|nonce| row::nonce(cell("nonce"), nonce)).transpose()?,
        });
    }
    Ok(())
}

async fn read_attempts(
    tx: &mut Transaction<'static, Postgres>,
    chain_id: ChainId,
    audited: &mut Audited,
) -> Result<(), StoreError> {
    let rows: Vec<AttemptRow> = sqlx::query_as(
        "-- audit_attempts
        SELECT submitter, tx_id, ordinal, nonce, kind, tx_hash, fencing_token, displaced_at IS NOT NULL AS displaced
        FROM tx_attempt
        WHERE chain_id = $1
        ORDER BY submitter, nonce, tx_id, ordinal",
    )
    .bind(chain_id.as_i64())
    .fetch_all(&mut **tx)
    .await
    .map_err(StoreError::db("audit_attempts"))?;
    for found in rows {
        let key = row::key("tx_attempt", chain_id.as_i64(), found.submitter)?;
        let cell = |column| Cell { table: "tx_attempt", column, id: &found.tx_hash };
        audited.entry(key).or_default().attempts.push(AuditedAttempt {
            tx_id: TxId(found.tx_id),
            ordinal: found.ordinal.unsigned_abs(),
            nonce: row::nonce(cell("nonce"), found.nonce)?,
            kind: cell("kind").parse(&found.kind)?,
            tx_hash: found.tx_hash.into(),
            fencing_token: row::token(cell("fencing_token"), found.fencing_token)?,
            displaced: found.displaced,
        });
    }
    Ok(())
}

async fn read_reservations(
    tx: &mut Transaction<'static, Postgres>,
    chain_id: ChainId,
    audited: &mut Audited,
) -> Result<(), StoreError> {
    let rows: Vec<(StoredAddress, Uuid, i64, String)> = sqlx::query_as(
        "-- audit_reservations
        SELECT submitter, tx_id, nonce, state
        FROM nonce_reservation
        WHERE chain_id = $1 AND nonce IS NOT NULL
        ORDER BY submitter, nonce",
    )
    .bind(chain_id.as_i64())
    .fetch_all(&mut **tx)
    .await
    .map_err(StoreError::db("audit_reservations"))?;
    for (submitter, tx_id, nonce, state) in rows {
        let key = row::key("nonce_reservation", chain_id.as_i64(), submitter)?;
        let id = tx_id.to_string();
        let cell = |column| Cell { table: "nonce_reservation", column, id: &id };
        audited.entry(key).or_default().reservations.push(AuditedReservation {
            tx_id: TxId(tx_id),
            nonce: row::nonce(cell("nonce"), nonce)?,
            state: cell("state").parse(&state)?,
        });
    }
    Ok(())
}

async fn read_counts(
    tx: &mut Transaction<'static, Postgres>,
    chain_id: ChainId,
    audited: &mut Audited,
) -> Result<(), StoreError> {
    let rows: Vec<CountRow> = sqlx::query_as(
        "-- audit_counts
        SELECT entry_no, submitter, tx_id, day, value::TEXT AS value, limit_value::TEXT AS limit_value,
               day_total::TEXT AS day_total, fencing_token
        FROM policy_audit
        WHERE chain_id = $1 AND decision = 'COUNTED'
        ORDER BY submitter, entry_no",
    )
    .bind(chain_id.as_i64())
    .fetch_all(&mut **tx)
    .await
    .map_err(StoreError::db("audit_counts"))?;
    for found in rows {
        let key = row::key("policy_audit", chain_id.as_i64(), found.submitter)?;
        let cell = |column| Cell { table: "policy_audit", column, id: &found.entry_no };
        let amount = |column, text: &str| U256::from_dec_str(text).map_err(|error| cell(column).bad(error));
        audited.entry(key).or_default().counts.push(AuditedCount {
            tx_id: TxId(found.tx_id),
            day: found.day,
            value: amount("value", &found.value)?,
            limit: found.limit_value.map(|text| amount("limit_value", &text)).transpose()?,
            day_total: found.day_total.map(|text| amount("day_total", &text)).transpose()?,
            fencing_token: row::token(cell("fencing_token"), found.fencing_token)?,
        });
    }
    Ok(())
}

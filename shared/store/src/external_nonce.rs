//! Nonces of a shared submitter that are left to external senders: written behind the fence, read by its lane and the
//! audit.

use std::collections::HashMap;

use sqlx::{Postgres, Transaction};

use super::error::StoreError;
use super::fenced::FencedWrite;
use super::lease::{Fence, columns};
use super::load::LaneRows;
use super::pool::Store;
use super::row::{self, Cell, StoredAddress};
use gapless_domain::{Nonce, SubmitterKey};

/// A lane reads the newest ranges only: only recent external nonces can become vacant again.
const MAX_RANGES: i64 = 64;

/// Why nonces are left to external senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExternalCause {
    /// The chain or its mempool was ahead of the sequence.
    SteppedOver,
    /// An intent had the nonce and lost it to an external transaction.
    Displaced,
}

impl ExternalCause {
    pub fn as_str(self) -> &'static str {
        match self {
            ExternalCause::SteppedOver => "STEPPED_OVER",
            ExternalCause::Displaced => "DISPLACED",
        }
    }
}

impl std::str::FromStr for ExternalCause {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "STEPPED_OVER" => Ok(ExternalCause::SteppedOver),
            "DISPLACED" => Ok(ExternalCause::Displaced),
            other => Err(format!("unknown cause `{other}` of an external nonce")),
        }
    }
}

/// A range of nonces that are left to external senders, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalNonces {
    pub first: Nonce,
    pub last: Nonce,
    pub cause: ExternalCause,
}

impl ExternalNonces {
    pub fn contains(&self, nonce: Nonce) -> bool {
        self.first <= nonce && nonce <= self.last
    }

    pub fn count(&self) -> u64 {
        self.last.0 - self.first.0 + 1
    }
}

type ExternalRow = (i64, StoredAddress, i64, i64, String);

pub(super) fn read(found: ExternalRow) -> Result<(SubmitterKey, ExternalNonces), StoreError> {
    let (chain_id, submitter, first, last, cause) = found;
    let cell = |column| Cell { table: "external_nonce", column, id: &submitter };
    let range = ExternalNonces {
        first: row::nonce(cell("first_nonce"), first)?,
        last: row::nonce(cell("last_nonce"), last)?,
        cause: cell("cause").parse(&cause)?,
    };
    Ok((row::key("external_nonce", chain_id, submitter)?, range))
}

pub(super) async fn note_external(
    tx: &mut Transaction<'_, Postgres>,
    live: &[&FencedWrite],
) -> Result<(), StoreError> {
    let found: Vec<(&Fence, &ExternalNonces)> =
        live.iter().flat_map(|write| write.external.iter().map(|range| (&write.fence, range))).collect();
    if found.is_empty() {
        return Ok(());
    }
    let keys: Vec<SubmitterKey> = found.iter().map(|(fence, _)| fence.key).collect();
    let (chains, submitters) = columns(&keys);
    // No row count: ranges that are already recorded stay unchanged.
    sqlx::query(
        "-- note_external
        INSERT INTO external_nonce (chain_id, submitter, first_nonce, last_nonce, cause, fencing_token)
        SELECT *
        FROM unnest($1::BIGINT[], $2::BYTEA[], $3::BIGINT[], $4::BIGINT[], $5::TEXT[], $6::BIGINT[])
        ON CONFLICT (chain_id, submitter, first_nonce, cause) DO NOTHING",
    )
    .bind(chains)
    .bind(submitters)
    .bind(found.iter().map(|(_, range)| range.first.as_i64()).collect::<Vec<_>>())
    .bind(found.iter().map(|(_, range)| range.last.as_i64()).collect::<Vec<_>>())
    .bind(found.iter().map(|(_, range)| range.cause.as_str()).collect::<Vec<_>>())
    .bind(found.iter().map(|(fence, _)| fence.token.as_i64()).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("note_external"))?;
    Ok(())
}

impl Store {
    /// Loads the external nonces of shared submitters. Runs no query if all submitters are strict.
    pub(super) async fn load_external(
        &self,
        lanes: &mut HashMap<SubmitterKey, LaneRows>,
    ) -> Result<(), StoreError> {
        let shared: Vec<SubmitterKey> =
            lanes.iter().filter(|(_, rows)| rows.shared).map(|(key, _)| *key).collect();
        if shared.is_empty() {
            return Ok(());
        }
        let (chains, submitters) = columns(&shared);
        let rows: Vec<ExternalRow> = sqlx::query_as(
            "-- load_external
            SELECT n.chain_id, n.submitter, n.first_nonce, n.last_nonce, n.cause
            FROM unnest($1::BIGINT[], $2::BYTEA[]) AS u (chain_id, submitter)
            CROSS JOIN LATERAL (
                SELECT e.chain_id, e.submitter, e.first_nonce, e.last_nonce, e.cause
                FROM external_nonce e
                WHERE e.chain_id = u.chain_id AND e.submitter = u.submitter
                ORDER BY e.first_nonce DESC
                LIMIT $3
            ) n",
        )
        .bind(chains)
        .bind(submitters)
        .bind(MAX_RANGES)
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("load_external"))?;
        for found in rows {
            let (key, range) = read(found)?;
            lanes.entry(key).or_default().external.push(range);
        }
        Ok(())
    }
}

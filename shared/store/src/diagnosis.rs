//! The last mempool diagnosis of an intent: informational only, written behind the fence.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use sqlx::{Postgres, Transaction};

use super::error::{StoreError, ensure_rows};
use super::fenced::FencedWrite;
use super::row;
use gapless_domain::mempool::Diagnosis;

/// A diagnosis and when it was written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct DiagnosisView {
    pub at: DateTime<Utc>,
    #[serde(flatten)]
    pub diagnosis: Diagnosis,
}

/// `at` is the database's time, like all times in the row.
pub(super) async fn note_diagnoses(
    tx: &mut Transaction<'_, Postgres>,
    live: &[&FencedWrite],
) -> Result<(), StoreError> {
    let found: Vec<_> = live
        .iter()
        .flat_map(|write| write.diagnoses.iter().map(|(tx_id, diagnosis)| (&write.fence, tx_id, diagnosis)))
        .collect();
    if found.is_empty() {
        return Ok(());
    }
    let done = sqlx::query(
        "-- note_diagnoses
        UPDATE managed_tx t
        SET last_mempool_diag = u.diagnosis || jsonb_build_object('at', clock_timestamp()),
            fencing_token = u.token,
            updated_at = clock_timestamp()
        FROM unnest($1::UUID[], $2::BYTEA[], $3::BIGINT[], $4::JSONB[]) AS u (tx_id, submitter, token, diagnosis)
        WHERE t.tx_id = u.tx_id AND t.submitter = u.submitter",
    )
    .bind(found.iter().map(|(_, tx_id, _)| tx_id.0).collect::<Vec<_>>())
    .bind(found.iter().map(|(fence, _, _)| row::address(fence.key)).collect::<Vec<_>>())
    .bind(found.iter().map(|(fence, _, _)| fence.token.as_i64()).collect::<Vec<_>>())
    .bind(found.iter().map(|(_, _, diagnosis)| json(diagnosis)).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("note_diagnoses"))?;
    ensure_rows("note_diagnoses", found.len(), done.rows_affected() as usize)
}

fn json(diagnosis: &Diagnosis) -> serde_json::Value {
    // Unwrap safety: plain data with string keys.
    serde_json::to_value(diagnosis).expect("a diagnosis serialises")
}

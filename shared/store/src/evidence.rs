//! Evidence about the blocks that consumed a submitter's nonces, and whether it is SUSPECT. Written behind the fence,
//! only when it changes: regular transactions cause no such write.

use super::error::{StoreError, ensure_rows};
use super::fence::Tx;
use super::fenced::FencedWrite;
use super::lease::Fence;
use super::row::{self, Cell, StoredAddress, StoredHash};
use gapless_domain::{Below, CountAt, H256, NonceBounds};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Why the submitter is SUSPECT.
    pub suspicion: Option<String>,
    pub bounds: NonceBounds,
}

pub(super) async fn note_evidence(tx: &mut Tx<'_>, live: &[&FencedWrite]) -> Result<(), StoreError> {
    let noted: Vec<(&Fence, &Evidence)> = live
        .iter()
        .filter_map(|write| write.evidence.as_ref().map(|evidence| (&write.fence, evidence)))
        .collect();
    if noted.is_empty() {
        return Ok(());
    }
    let height = |block: u64| i64::try_from(block).unwrap_or(i64::MAX);
    let above = |get: fn(CountAt) -> u64| -> Vec<Option<i64>> {
        noted.iter().map(|(_, evidence)| evidence.bounds.above.map(|at| height(get(at)))).collect()
    };
    let done = sqlx::query(
        "-- note_evidence
        UPDATE submitter_nonce_cursor c
        SET suspect_reason = u.suspicion,
            suspect_since = CASE WHEN u.suspicion IS NOT NULL THEN coalesce(c.suspect_since, clock_timestamp()) END,
            below_block = u.below_block,
            below_hash = u.below_hash,
            above_block = u.above_block,
            above_hash = u.above_hash,
            above_count = u.above_count,
            fencing_token = u.token,
            updated_at = clock_timestamp()
        FROM unnest($1::BIGINT[], $2::BYTEA[], $3::BIGINT[], $4::TEXT[], $5::BIGINT[], $6::BYTEA[], $7::BIGINT[],
                    $8::BYTEA[], $9::BIGINT[])
          AS u (chain_id, submitter, token, suspicion, below_block, below_hash, above_block, above_hash, above_count)
        WHERE c.chain_id = u.chain_id AND c.submitter = u.submitter",
    )
    .bind(noted.iter().map(|(fence, _)| fence.key.chain_id.as_i64()).collect::<Vec<_>>())
    .bind(noted.iter().map(|(fence, _)| row::address(fence.key)).collect::<Vec<_>>())
    .bind(noted.iter().map(|(fence, _)| fence.token.as_i64()).collect::<Vec<_>>())
    .bind(noted.iter().map(|(_, evidence)| evidence.suspicion.clone()).collect::<Vec<_>>())
    .bind(
        noted
            .iter()
            .map(|(_, evidence)| evidence.bounds.below.map(|below| height(below.block)))
            .collect::<Vec<_>>(),
    )
    .bind(
        noted
            .iter()
            .map(|(_, evidence)| evidence.bounds.below.and_then(|below| below.hash).map(StoredHash::from))
            .collect::<Vec<_>>(),
    )
    .bind(above(|at| at.block))
    .bind(
        noted
            .iter()
            .map(|(_, evidence)| evidence.bounds.above.map(|at| StoredHash::from(at.hash)))
            .collect::<Vec<_>>(),
    )
    .bind(above(|at| at.count))
    .execute(&mut **tx)
    .await
    .map_err(StoreError::db("note_evidence"))?;
    ensure_rows("note_evidence", noted.len(), done.rows_affected() as usize)
}

row::row_struct! {
    /// The evidence columns of a cursor.
    pub(super) struct EvidenceRow {
        suspect_reason: Option<String>,
        below_block: Option<i64>,
        below_hash: Option<StoredHash>,
        above_block: Option<i64>,
        above_hash: Option<StoredHash>,
        above_count: Option<i64>,
        /// Block of the final transaction just below the oldest open nonce.
        last_final_block: Option<i64>,
    }
}

impl EvidenceRow {
    pub(super) fn into_evidence(self, submitter: StoredAddress) -> Result<Evidence, StoreError> {
        let cell = |column| Cell { table: "submitter_nonce_cursor", column, id: &submitter };
        let mut bounds = NonceBounds::default();
        if let Some(block) = self.below_block {
            let hash = self.below_hash.map(H256::from);
            bounds.below = Some(Below { block: cell("below_block").unsigned(block)?, hash });
        }
        if let (Some(block), Some(count), Some(hash)) =
            (self.above_block, self.above_count, self.above_hash.map(H256::from))
        {
            let (block, count) = (cell("above_block").unsigned(block)?, cell("above_count").unsigned(count)?);
            bounds.above = Some(CountAt { block, hash, count });
        }
        if let Some(block) = self.last_final_block {
            bounds.own_final(cell("block_number").unsigned(block)?);
        }
        Ok(Evidence { suspicion: self.suspect_reason, bounds })
    }
}

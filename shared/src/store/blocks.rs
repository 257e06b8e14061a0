//! Chains as seen: their identity, and the recent canonical blocks that one elected worker keeps.

use ethers_core::types::H256;

use super::error::StoreError;
use super::pool::Store;
use super::row::{self, Cell, hash_text};
use crate::domain::{BlockRef, ChainId};

impl Store {
    /// Remembers the genesis of a chain at first sight; returns the one remembered.
    pub async fn remember_genesis(&self, chain: ChainId, genesis: H256) -> Result<H256, StoreError> {
        sqlx::query(
            "-- remember_genesis
            INSERT INTO chain (chain_id, genesis_hash)
            VALUES ($1, $2)
            ON CONFLICT (chain_id) DO NOTHING",
        )
        .bind(chain.as_i64())
        .bind(hash_text(genesis))
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("remember_genesis"))?;
        let known: String =
            sqlx::query_scalar("-- known_genesis\nSELECT genesis_hash FROM chain WHERE chain_id = $1")
                .bind(chain.as_i64())
                .fetch_one(&self.pool)
                .await
                .map_err(StoreError::db("known_genesis"))?;
        row::hash(Cell { table: "chain", column: "genesis_hash", id: &chain.to_string() }, &known)
    }

    /// Makes `blocks` (ascending, contiguous) the canonical ones from the first of them on, and forgets blocks
    /// further than `keep` below the last.
    pub async fn save_blocks(
        &self,
        chain: ChainId,
        blocks: &[BlockRef],
        keep: u64,
    ) -> Result<(), StoreError> {
        let Some(last) = blocks.last() else { return Ok(()) };
        let number = |block: &BlockRef| i64::try_from(block.number).unwrap_or(i64::MAX);
        let mut tx = self.pool.begin().await.map_err(StoreError::db("save_blocks"))?;
        sqlx::query(
            "-- save_blocks: forget what is above or far below
            DELETE FROM chain_block
            WHERE chain_id = $1 AND (number > $2 OR number < $3)",
        )
        .bind(chain.as_i64())
        .bind(number(last))
        .bind(number(last).saturating_sub(i64::try_from(keep).unwrap_or(i64::MAX)))
        .execute(&mut *tx)
        .await
        .map_err(StoreError::db("save_blocks"))?;
        sqlx::query(
            "-- save_blocks
            INSERT INTO chain_block (chain_id, number, hash, parent_hash)
            SELECT $1, u.number, u.hash, u.parent_hash
            FROM unnest($2::BIGINT[], $3::TEXT[], $4::TEXT[]) AS u (number, hash, parent_hash)
            ON CONFLICT (chain_id, number) DO UPDATE
            SET hash = EXCLUDED.hash, parent_hash = EXCLUDED.parent_hash, seen_at = clock_timestamp()
            WHERE chain_block.hash <> EXCLUDED.hash",
        )
        .bind(chain.as_i64())
        .bind(blocks.iter().map(number).collect::<Vec<_>>())
        .bind(blocks.iter().map(|block| hash_text(block.hash)).collect::<Vec<_>>())
        .bind(blocks.iter().map(|block| hash_text(block.parent)).collect::<Vec<_>>())
        .execute(&mut *tx)
        .await
        .map_err(StoreError::db("save_blocks"))?;
        tx.commit().await.map_err(StoreError::db("save_blocks"))
    }
}

//! The identity of a chain, and its recent canonical blocks, which one elected worker stores.

use ethers_core::types::H256;

use super::error::StoreError;
use super::pool::Store;
use super::row::{Cell, StoredHash};
use super::timeout_pool::PooledConnection;
use gapless_domain::{BlockRef, ChainId, Confirmation};

/// The stored blocks that confirm a mined transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfirmingBlocks {
    /// Its own block first. `whole`: complete up to the newest block or to the limit; otherwise some are not stored.
    Listed { blocks: Vec<Confirmation>, whole: bool },
    /// Another block is canonical at its height.
    Replaced,
    /// No block at its height is stored: too old, or not saved yet.
    NotStored,
}

impl Store {
    /// Stores the genesis hash of a chain if none is stored; returns the stored one.
    pub async fn remember_genesis(&self, chain: ChainId, genesis: H256) -> Result<H256, StoreError> {
        sqlx::query(
            "-- remember_genesis
            INSERT INTO chain (chain_id, genesis_hash)
            VALUES ($1, $2)
            ON CONFLICT (chain_id) DO NOTHING",
        )
        .bind(chain.as_i64())
        .bind(StoredHash::from(genesis))
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("remember_genesis"))?;
        // Rows are never deleted: after a conflict above the row exists.
        Ok(self.known_genesis(chain).await?.unwrap_or(genesis))
    }

    /// The stored genesis hash of a chain.
    pub async fn known_genesis(&self, chain: ChainId) -> Result<Option<H256>, StoreError> {
        let known: Option<StoredHash> =
            sqlx::query_scalar("-- known_genesis\nSELECT genesis_hash FROM chain WHERE chain_id = $1")
                .bind(chain.as_i64())
                .fetch_optional(&self.pool)
                .await
                .map_err(StoreError::db("known_genesis"))?;
        Ok(known.map(H256::from))
    }

    /// The canonical blocks that confirm a block, starting with that block, at most `most`. `head`: the newest block
    /// known before this call.
    pub async fn confirmation_blocks(
        &self,
        chain: ChainId,
        number: u64,
        hash: H256,
        most: u64,
        head: Option<u64>,
    ) -> Result<ConfirmingBlocks, StoreError> {
        let as_i64 = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let rows: Vec<(i64, StoredHash, StoredHash)> = sqlx::query_as(
            "-- confirmation_blocks
            SELECT number, hash, parent_hash
            FROM chain_block
            WHERE chain_id = $1 AND number >= $2 AND number < $3
            ORDER BY number",
        )
        .bind(chain.as_i64())
        .bind(as_i64(number))
        .bind(as_i64(number.saturating_add(most)))
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("confirmation_blocks"))?;
        let found = rows.len();
        let mut blocks: Vec<Confirmation> = Vec::with_capacity(found);
        for (number_at, hash_at, parent) in rows {
            let id = format!("{chain}/{number_at}");
            let cell = |column| Cell { table: "chain_block", column, id: &id };
            let block = Confirmation { number: cell("number").unsigned(number_at)?, hash: hash_at.into() };
            // Blocks stored before an interruption may not connect to those stored after it: stop at the first break.
            match blocks.last() {
                Some(below) if H256::from(parent) != below.hash => break,
                None if block.number != number => return Ok(ConfirmingBlocks::NotStored),
                None if block.hash != hash => return Ok(ConfirmingBlocks::Replaced),
                Some(_) | None => blocks.push(block),
            }
        }
        match blocks.last().map(|last| last.number) {
            None => Ok(ConfirmingBlocks::NotStored),
            Some(last) => Ok(ConfirmingBlocks::Listed {
                whole: blocks.len() == found && (found as u64 == most || Some(last) >= head),
                blocks,
            }),
        }
    }

    /// Stores `blocks` (ascending, contiguous) as canonical, replacing stored blocks from the first of them on.
    /// Deletes blocks more than `keep` below the last.
    pub async fn save_blocks(
        &self,
        chain: ChainId,
        blocks: &[BlockRef],
        keep: u64,
    ) -> Result<(), StoreError> {
        let Some(last) = blocks.last() else { return Ok(()) };
        let mut connection = self.pool.acquire().await.map_err(StoreError::db("save_blocks"))?;
        let saved =
            self.pool.wait_for("save_blocks", save_blocks(&mut connection, chain, blocks, last, keep)).await;
        connection.release(&saved);
        saved
    }
}

async fn save_blocks(
    connection: &mut PooledConnection,
    chain: ChainId,
    blocks: &[BlockRef],
    last: &BlockRef,
    keep: u64,
) -> Result<(), StoreError> {
    let number = |block: &BlockRef| i64::try_from(block.number).unwrap_or(i64::MAX);
    let mut tx = connection.begin().await.map_err(StoreError::db("save_blocks"))?;
    // Asynchronous commit: blocks lost in a crash are read from the chain again.
    sqlx::query("SET LOCAL synchronous_commit TO OFF")
        .execute(&mut *tx)
        .await
        .map_err(StoreError::db("save_blocks"))?;
    sqlx::query(
        "-- save_blocks: delete blocks above or far below
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
        FROM unnest($2::BIGINT[], $3::BYTEA[], $4::BYTEA[]) AS u (number, hash, parent_hash)
        ON CONFLICT (chain_id, number) DO UPDATE
        SET hash = EXCLUDED.hash, parent_hash = EXCLUDED.parent_hash, seen_at = clock_timestamp()
        WHERE chain_block.hash <> EXCLUDED.hash",
    )
    .bind(chain.as_i64())
    .bind(blocks.iter().map(number).collect::<Vec<_>>())
    .bind(blocks.iter().map(|block| StoredHash::from(block.hash)).collect::<Vec<_>>())
    .bind(blocks.iter().map(|block| StoredHash::from(block.parent)).collect::<Vec<_>>())
    .execute(&mut *tx)
    .await
    .map_err(StoreError::db("save_blocks"))?;
    tx.commit().await.map_err(StoreError::db("save_blocks"))
}

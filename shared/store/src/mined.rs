//! The block of a submitter's newest mined transaction.

use super::error::StoreError;
use super::pool::Store;
use super::row;
use gapless_domain::SubmitterKey;

impl Store {
    /// The block of this submitter's newest receipt, including finished intents. Nonces are mined in order, so it is
    /// the receipt with the highest nonce.
    pub async fn newest_receipt_block(&self, key: SubmitterKey) -> Result<Option<u64>, StoreError> {
        let found: Option<i64> = sqlx::query_scalar(
            "-- newest_receipt_block
            SELECT t.block_number
            FROM managed_tx t
            WHERE t.chain_id = $1 AND t.submitter = $2 AND t.nonce IS NOT NULL AND t.block_number IS NOT NULL
            ORDER BY t.nonce DESC
            LIMIT 1",
        )
        .bind(key.chain_id.as_i64())
        .bind(row::address(key))
        .fetch_optional(&self.pool)
        .await
        .map_err(StoreError::db("newest_receipt_block"))?;
        Ok(found.and_then(|number| u64::try_from(number).ok()))
    }
}

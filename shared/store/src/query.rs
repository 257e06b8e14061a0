//! Reads of transactions for clients. Read only, and without nonces.

use chrono::{DateTime, Utc};
use ethers_core::types::H256;
use sqlx::{Postgres, QueryBuilder};
use uuid::Uuid;

use super::confirmed::read_confirmations;
use super::diagnosis::DiagnosisView;
use super::error::StoreError;
use super::pool::Store;
use super::receipt::{Mined, read_receipt};
use super::row::{self, Cell, StoredAddress, StoredHash};
use gapless_domain::{
    ChainId, FinalConfirmations, Finality, Payload, Receipt, SubmitterKey, TxError, TxId, TxState,
};

/// An intent as shown to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxView {
    pub tx_id: TxId,
    pub submitter: SubmitterKey,
    pub request_id: String,
    pub payload: Payload,
    pub state: TxState,
    /// Text, not the enum: a value that a newer version stored is passed through. No decision rests on it.
    pub sub_state: Option<String>,
    pub tx_hash: Option<H256>,
    pub replaced_by_hash: Option<H256>,
    pub submit_attempts: u64,
    pub last_submit_at: Option<DateTime<Utc>>,
    pub last_error: Option<TxError>,
    /// The last mempool diagnosis while it is unmined.
    pub mempool: Option<DiagnosisView>,
    pub receipt: Option<Receipt>,
    pub block_number: Option<u64>,
    pub block_hash: Option<H256>,
    /// Hash of the canonical block at its height, if stored.
    pub canonical_hash: Option<H256>,
    /// The chain's newest known block.
    pub head: Option<u64>,
    /// The confirmations that made it final. In lists it contains its own block only.
    pub counted: Option<FinalConfirmations>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
    pub confirmed_at: Option<DateTime<Utc>>,
    pub finished_at: Option<DateTime<Utc>>,
}

impl TxView {
    /// Number of confirming blocks, its own included. Grows while it is tracked; for a final intent it is the stored
    /// count, independent of the current configuration. `None` if no count is stored.
    pub fn confirmations(&self) -> Option<u64> {
        let block = self.block_number?;
        if self.state.is_terminal() {
            return self.counted.as_ref().map(|counted| counted.count);
        }
        if self.canonical_hash.is_some() && self.canonical_hash != self.block_hash {
            // Its block was replaced by a reorg, and its lane has not updated the row yet.
            return Some(0);
        }
        Some((self.head? + 1).saturating_sub(block))
    }

    /// The rule that made it final, or for an open intent the configured one.
    pub fn rule(&self, configured: Option<Finality>) -> Option<Finality> {
        match (self.state.is_terminal(), self.block_number) {
            (true, Some(_)) => self.counted.as_ref().map(|counted| counted.rule),
            _ => configured,
        }
    }
}

/// Which transactions to list. Conditions are combined with AND.
#[derive(Clone, Debug, Default)]
pub struct TxFilter {
    pub chain_id: Option<ChainId>,
    pub submitter: Option<SubmitterKey>,
    /// Only of these submitters; `None`: of all.
    pub among: Option<Vec<SubmitterKey>>,
    pub state: Option<TxState>,
    pub created_after: Option<DateTime<Utc>>,
    pub created_before: Option<DateTime<Utc>>,
    /// Only transactions older than this one.
    pub before: Option<TxId>,
    pub limit: u32,
}

row::row_struct! {
    struct TxRow {
        tx_id: Uuid,
        chain_id: i64,
        submitter: StoredAddress,
        request_id: String,
        payload: serde_json::Value,
        state: String,
        sub_state: Option<String>,
        tx_hash: Option<StoredHash>,
        replaced_by_hash: Option<StoredHash>,
        submit_attempts: i32,
        last_submit_at: Option<DateTime<Utc>>,
        last_error: Option<String>,
        error: Option<serde_json::Value>,
        last_mempool_diag: Option<serde_json::Value>,
        receipt: Option<serde_json::Value>,
        block_number: Option<i64>,
        block_hash: Option<StoredHash>,
        canonical_hash: Option<StoredHash>,
        head: Option<i64>,
        confirmations: Option<serde_json::Value>,
        confirmation_hashes: Option<Vec<u8>>,
        created_at: DateTime<Utc>,
        updated_at: DateTime<Utc>,
        confirmed_at: Option<DateTime<Utc>>,
        finished_at: Option<DateTime<Utc>>,
    }
}

/// The select list of all reads in this file; the chain's head is one index look-up. `$hashes` are the hashes of
/// the confirming blocks: NULL in lists.
macro_rules! select_tx {
    ($name:literal, $hashes:literal, $rest:literal) => {
        concat!(
            "-- ",
            $name,
            "
            SELECT t.tx_id, t.chain_id, t.submitter, t.request_id, t.payload, t.state, t.sub_state, t.tx_hash,
                   t.replaced_by_hash, t.submit_attempts, t.last_submit_at, t.last_error, t.error, t.last_mempool_diag,
                   t.receipt, t.block_number, t.block_hash, t.created_at, t.updated_at, t.confirmed_at, t.finished_at,
                   (SELECT b.hash FROM chain_block b WHERE b.chain_id = t.chain_id AND b.number = t.block_number)
                       AS canonical_hash,
                   (SELECT max(b.number) FROM chain_block b WHERE b.chain_id = t.chain_id) AS head,
                   t.confirmations, ",
            $hashes,
            " AS confirmation_hashes
            FROM managed_tx t
            ",
            $rest
        )
    };
}

impl Store {
    pub async fn get_tx(&self, tx_id: TxId) -> Result<Option<TxView>, StoreError> {
        let row: Option<TxRow> =
            sqlx::query_as(select_tx!("get_tx", "t.confirmation_hashes", "WHERE t.tx_id = $1"))
                .bind(tx_id.0)
                .fetch_optional(&self.pool)
                .await
                .map_err(StoreError::db("get_tx"))?;
        row.map(TxView::try_from).transpose()
    }

    pub async fn get_tx_by_request(
        &self,
        submitter: SubmitterKey,
        request_id: &str,
    ) -> Result<Option<TxView>, StoreError> {
        let row: Option<TxRow> = sqlx::query_as(select_tx!(
            "get_tx_by_request",
            "t.confirmation_hashes",
            "WHERE t.chain_id = $1 AND t.submitter = $2 AND t.request_id = $3"
        ))
        .bind(submitter.chain_id.as_i64())
        .bind(row::address(submitter))
        .bind(request_id)
        .fetch_optional(&self.pool)
        .await
        .map_err(StoreError::db("get_tx_by_request"))?;
        row.map(TxView::try_from).transpose()
    }

    /// Newest first. Built dynamically, because a nullable parameter would prevent the planner from using the index.
    pub async fn list_tx(&self, filter: &TxFilter) -> Result<Vec<TxView>, StoreError> {
        let mut query = QueryBuilder::<Postgres>::new(select_tx!("list_tx", "NULL::BYTEA", "WHERE TRUE"));
        match &filter.among {
            None => push_conditions(&mut query, filter),
            // The newest of each submitter by its index, then the newest of those: rows of other submitters are not
            // read.
            Some(among) => {
                query
                    .push(
                        " AND t.tx_id IN (
                        SELECT own.tx_id
                        FROM unnest(",
                    )
                    .push_bind(among.iter().map(|key| key.chain_id.as_i64()).collect::<Vec<i64>>())
                    .push("::BIGINT[], ")
                    .push_bind(among.iter().map(|key| row::address(*key)).collect::<Vec<_>>())
                    .push(
                        "::BYTEA[]) AS u (chain_id, submitter)
                        CROSS JOIN LATERAL (
                            SELECT t.tx_id
                            FROM managed_tx t
                            WHERE t.chain_id = u.chain_id AND t.submitter = u.submitter",
                    );
                push_conditions(&mut query, filter);
                query.push(" ORDER BY t.tx_id DESC LIMIT ").push_bind(i64::from(filter.limit)).push(") own)");
            }
        }
        query.push(" ORDER BY t.tx_id DESC LIMIT ").push_bind(i64::from(filter.limit));
        let rows: Vec<TxRow> =
            query.build_query_as().fetch_all(&self.pool).await.map_err(StoreError::db("list_tx"))?;
        rows.into_iter().map(TxView::try_from).collect()
    }

    /// Those of `tx_ids` that are in a terminal state or do not exist: there is nothing to wait for.
    pub async fn settled(&self, tx_ids: &[TxId]) -> Result<Vec<TxId>, StoreError> {
        let ids: Vec<Uuid> = sqlx::query_scalar(
            "-- settled
            SELECT u.tx_id
            FROM unnest($1::UUID[]) AS u (tx_id)
            LEFT JOIN managed_tx t ON t.tx_id = u.tx_id
            WHERE t.tx_id IS NULL OR t.finished_at IS NOT NULL",
        )
        .bind(tx_ids.iter().map(|tx_id| tx_id.0).collect::<Vec<Uuid>>())
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("settled"))?;
        Ok(ids.into_iter().map(TxId).collect())
    }
}

/// The conditions of a filter on a single row.
fn push_conditions(query: &mut QueryBuilder<Postgres>, filter: &TxFilter) {
    if let Some(chain_id) = filter.submitter.map(|key| key.chain_id).or(filter.chain_id) {
        query.push(" AND t.chain_id = ").push_bind(chain_id.as_i64());
    }
    if let Some(submitter) = filter.submitter {
        query.push(" AND t.submitter = ").push_bind(row::address(submitter));
    }
    if let Some(state) = filter.state {
        // A literal is safe: it comes from a fixed list. QUEUED has a partial index.
        query.push(" AND t.state = '").push(state.as_str()).push("'");
        if state == TxState::Queued {
            query.push(" AND t.queued");
        }
    }
    if let Some(after) = filter.created_after {
        query.push(" AND t.created_at >= ").push_bind(after);
    }
    if let Some(before) = filter.created_before {
        query.push(" AND t.created_at < ").push_bind(before);
    }
    if let Some(before) = filter.before {
        query.push(" AND t.tx_id < ").push_bind(before.0);
    }
}

impl TryFrom<TxRow> for TxView {
    type Error = StoreError;

    fn try_from(row: TxRow) -> Result<Self, StoreError> {
        let id = row.tx_id.to_string();
        let cell = |column| Cell { table: "managed_tx", column, id: &id };
        let number =
            |column, number: Option<i64>| number.map(|number| cell(column).unsigned(number)).transpose();
        let state: TxState = cell("state").parse(&row.state)?;
        // Shown while unmined only. A diagnosis that a later release wrote and this one cannot read is ignored.
        let mempool = row.last_mempool_diag.filter(|_| state.is_open() && state != TxState::Tracking);
        let mined =
            Mined { tx_hash: row.tx_hash, block_number: row.block_number, block_hash: row.block_hash };
        let receipt = row.receipt.map(|receipt| read_receipt(cell("receipt"), receipt, mined)).transpose()?;
        let block_number = number("block_number", row.block_number)?;
        let block_hash = row.block_hash.map(H256::from);
        let counted = row.confirmations.zip(block_number.zip(block_hash));
        let hashes = row.confirmation_hashes;
        let counted = counted
            .map(|(json, own)| read_confirmations(cell("confirmations"), json, hashes, own))
            .transpose()?;
        Ok(TxView {
            tx_id: TxId(row.tx_id),
            submitter: row::key("managed_tx", row.chain_id, row.submitter)?,
            request_id: row.request_id,
            payload: cell("payload").json(row.payload)?,
            state,
            last_error: TxError::from_row(
                row.last_error,
                row.error,
                state,
                row::sub_state(row.sub_state.as_deref()),
            ),
            mempool: mempool.and_then(|diagnosis| serde_json::from_value(diagnosis).ok()),
            sub_state: row.sub_state,
            tx_hash: row.tx_hash.map(H256::from),
            replaced_by_hash: row.replaced_by_hash.map(H256::from),
            submit_attempts: cell("submit_attempts").unsigned(row.submit_attempts.into())?,
            last_submit_at: row.last_submit_at,
            receipt,
            block_number,
            block_hash,
            canonical_hash: row.canonical_hash.map(H256::from),
            head: number("head", row.head)?,
            counted,
            created_at: row.created_at,
            updated_at: row.updated_at,
            confirmed_at: row.confirmed_at,
            finished_at: row.finished_at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_domain::{Address, U256};

    fn mined(state: TxState, block: Option<u64>, head: Option<u64>) -> TxView {
        let now = DateTime::UNIX_EPOCH;
        TxView {
            tx_id: TxId::new(),
            submitter: SubmitterKey { chain_id: ChainId(1), address: Address::zero() },
            request_id: "r".into(),
            payload: Payload::transfer(Address::zero(), U256::zero()),
            state,
            sub_state: None,
            tx_hash: None,
            replaced_by_hash: None,
            submit_attempts: 1,
            last_submit_at: None,
            last_error: None,
            mempool: None,
            receipt: None,
            block_number: block,
            block_hash: None,
            canonical_hash: None,
            head,
            counted: None,
            created_at: now,
            updated_at: now,
            confirmed_at: None,
            finished_at: None,
        }
    }

    #[test]
    fn confirmations_count_the_own_block_and_are_fixed_when_final() {
        assert_eq!(mined(TxState::Submitted, None, Some(9)).confirmations(), None);
        assert_eq!(mined(TxState::Tracking, Some(9), Some(9)).confirmations(), Some(1));
        assert_eq!(mined(TxState::Tracking, Some(9), Some(10)).confirmations(), Some(2));
        // After a reorg that the lane has not processed yet.
        assert_eq!(mined(TxState::Tracking, Some(9), Some(7)).confirmations(), Some(0));
        assert_eq!(mined(TxState::Tracking, Some(9), Some(99)).confirmations(), Some(91));
        assert_eq!(mined(TxState::Confirmed, Some(9), Some(99)).confirmations(), None, "nothing is stored");
    }

    #[test]
    fn a_final_intent_has_its_stored_rule_and_count() {
        let configured = Some(Finality::Blocks(3));
        let mut view = mined(TxState::Confirmed, Some(9), Some(99));
        assert_eq!(view.rule(configured), None, "nothing is stored");
        let rule = Finality::Finalized;
        view.counted = Some(FinalConfirmations { rule, count: 70, final_block: Some(9), blocks: vec![] });
        assert_eq!((view.rule(configured), view.confirmations()), (Some(rule), Some(70)));
        assert_eq!(mined(TxState::Tracking, Some(9), None).rule(configured), configured);
        assert_eq!(mined(TxState::Cancelled, None, None).rule(configured), configured, "it was never mined");
    }

    #[test]
    fn a_block_that_is_not_canonical_confirms_nothing() {
        let mut view = mined(TxState::Tracking, Some(9), Some(10));
        view.block_hash = Some(H256::repeat_byte(1));
        view.canonical_hash = Some(H256::repeat_byte(1));
        assert_eq!(view.confirmations(), Some(2));
        view.canonical_hash = Some(H256::repeat_byte(2));
        assert_eq!(view.confirmations(), Some(0));
    }
}

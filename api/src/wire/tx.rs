//! Transactions as clients see them: states, hashes, receipts, and never a nonce.

use chrono::{DateTime, Utc};
use gapless::domain::{self, Confirmation, Finality, H256};
use gapless::store::{ConfirmingBlocks, TxView};
use poem_openapi::types::Example;
use poem_openapi::{Enum, Object};
use uuid::Uuid;

use super::mempool::Mempool;
use super::problem::Problem;
use super::redact_nonces;
use super::request::TxPayload;
use super::tx_error::TxError;

/// The transaction of an accepted request.
#[derive(Clone, Copy, Debug, Object)]
#[oai(rename_all = "camelCase", example)]
pub(crate) struct Accepted {
    pub(crate) tx_id: Uuid,
}

/// Where a transaction stands. `CONFIRMED`, `FAILED` and `CANCELLED` are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum TxState {
    /// Accepted, waits for its turn.
    Queued,
    /// Signed and recorded, about to be sent.
    InFlight,
    /// A node took it.
    Submitted,
    /// Mined, waits for depth.
    Tracking,
    /// Unmined for too long; still worked on.
    Stuck,
    /// The submitter's key was used elsewhere; waits for an operator.
    Protect,
    /// Final: on chain, deep enough.
    Confirmed,
    /// Final: refused before sending, reverted on chain, or replaced because no node would take it. `lastError` says why.
    Failed,
    /// Final: it will never have an effect.
    Cancelled,
}

/// A transaction.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none, example)]
pub(crate) struct Tx {
    pub(crate) tx_id: Uuid,
    pub(crate) chain_id: u64,
    /// In lower case.
    pub(crate) submitter: String,
    pub(crate) request_id: String,
    pub(crate) state: TxState,
    /// Why it waits, for example `waiting_funds`.
    pub(crate) sub_state: Option<String>,
    /// The hash on chain. May change until the transaction is mined.
    pub(crate) tx_hash: Option<String>,
    /// The hash of the transaction that took its place.
    pub(crate) replaced_by_hash: Option<String>,
    /// Blocks that confirm it, its own included. Of a final transaction: as many as were counted when it became final.
    pub(crate) confirmations: Option<u64>,
    /// Confirmations that make it final, or that did. Absent where the chain itself says so (`finalityTag`).
    pub(crate) confirmations_required: Option<u64>,
    /// It is final when the chain calls its block so.
    pub(crate) finality_tag: Option<FinalityTag>,
    /// The blocks that confirm it, its own first: at most as many as are required, and 64. Those of a final transaction stay.
    /// Absent in lists, while it is in no block, and while the server does not know them: keep what you have.
    pub(crate) confirmation_blocks: Option<Vec<ConfirmationBlock>>,
    /// How to take `confirmationBlocks`: true, they replace what you have; false, they come on top of it (see the parameter
    /// `after`).
    pub(crate) new_fork: Option<bool>,
    /// How often it was sent.
    pub(crate) submit_attempts: u64,
    pub(crate) last_submit_at: Option<DateTime<Utc>>,
    /// The last complaint of the node or the signer, or why it failed.
    pub(crate) last_error: Option<String>,
    /// Where it seems to be while it is unmined. Only where the operators have that asked (`mempool.diagnose.enabled`).
    pub(crate) mempool: Option<Mempool>,
    /// The same for programs: why it waits or how it ended.
    pub(crate) error: Option<TxError>,
    pub(crate) receipt: Option<Receipt>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) updated_at: DateTime<Utc>,
    pub(crate) confirmed_at: Option<DateTime<Utc>>,
    /// When it reached a final state.
    pub(crate) finished_at: Option<DateTime<Utc>>,
    /// What was asked for, in canonical form. Absent in lists.
    pub(crate) payload: Option<TxPayload>,
}

/// What the chain calls a block that will stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "lowercase")]
pub(crate) enum FinalityTag {
    Safe,
    Finalized,
}

/// A block that confirms a transaction.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase")]
pub(crate) struct ConfirmationBlock {
    pub(crate) number: u64,
    pub(crate) hash: String,
}

/// What the chain says of a mined transaction.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct Receipt {
    pub(crate) tx_hash: String,
    pub(crate) block_number: u64,
    pub(crate) block_hash: String,
    pub(crate) transaction_index: u64,
    /// False: mined, and reverted.
    pub(crate) succeeded: bool,
    /// Decimal.
    pub(crate) gas_used: String,
    /// Wei per gas, decimal.
    pub(crate) effective_gas_price: Option<String>,
    /// The deployed contract.
    pub(crate) contract_address: Option<String>,
}

/// Transactions, newest first.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct TxPage {
    pub(crate) items: Vec<Tx>,
    /// Give it as `cursor` to read on. Absent on the last page.
    pub(crate) next_cursor: Option<String>,
}

/// Results in the order of the request's items.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase")]
pub(crate) struct BatchResponse {
    pub(crate) results: Vec<BatchResult>,
}

/// What became of one item: `txId`, or `problem`.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct BatchResult {
    /// The status the item would have had on its own: 202 new, 200 known before, else an error.
    pub(crate) status: u16,
    pub(crate) tx_id: Option<Uuid>,
    pub(crate) problem: Option<Problem>,
}

impl Tx {
    /// `required`: unknown for a chain that is no longer configured; its finished transactions can still be read.
    pub(crate) fn new(view: TxView, required: Option<Finality>) -> Tx {
        let rule = view.rule(required);
        Tx {
            tx_id: view.tx_id.0,
            chain_id: view.submitter.chain_id.0,
            submitter: view.submitter.address_text(),
            confirmations: view.confirmations(),
            confirmations_required: rule.and_then(Finality::blocks),
            finality_tag: match rule {
                Some(Finality::Safe) => Some(FinalityTag::Safe),
                Some(Finality::Finalized) => Some(FinalityTag::Finalized),
                Some(Finality::Blocks(_)) | None => None,
            },
            confirmation_blocks: None,
            new_fork: None,
            state: view.state.into(),
            tx_hash: view.tx_hash.map(|hash| format!("{hash:#x}")),
            replaced_by_hash: view.replaced_by_hash.map(|hash| format!("{hash:#x}")),
            last_error: view.last_error.as_ref().map(|error| redact_nonces(&error.message)),
            error: view.last_error.as_ref().map(|error| TxError::new(error, &view.payload.errors)),
            mempool: view.mempool.map(Mempool::from),
            receipt: view.receipt.map(Receipt::from),
            payload: Some(view.payload.into()),
            request_id: view.request_id,
            sub_state: view.sub_state,
            submit_attempts: view.submit_attempts,
            last_submit_at: view.last_submit_at,
            created_at: view.created_at,
            updated_at: view.updated_at,
            confirmed_at: view.confirmed_at,
            finished_at: view.finished_at,
        }
    }

    /// Adds the blocks that confirm it. Whoever names the last block they know of hears only what came on top of it; if it
    /// is not among them the chain has changed, and they hear all. What is not kept is no evidence of a change: then they hear
    /// nothing, and keep what they have.
    pub(crate) fn with_confirmations(self, kept: &ConfirmingBlocks, after: Option<H256>) -> Tx {
        let (blocks, whole): (&[Confirmation], bool) = match kept {
            ConfirmingBlocks::Listed { blocks, whole } => (blocks, *whole),
            ConfirmingBlocks::Replaced => (&[], true),
            ConfirmingBlocks::NotKept => return self,
        };
        let known = after.and_then(|hash| blocks.iter().position(|block| block.hash == hash));
        if known.is_none() && after.is_some() && !whole {
            return self;
        }
        let news = known.map_or(blocks, |index| &blocks[index + 1..]);
        let block = |block: &Confirmation| ConfirmationBlock {
            number: block.number,
            hash: format!("{:#x}", block.hash),
        };
        Tx {
            // Read a moment later than the count: it can only have grown.
            confirmations: self.confirmations.map(|count| count.max(blocks.len() as u64)),
            confirmation_blocks: Some(news.iter().map(block).collect()),
            new_fork: Some(known.is_none()),
            ..self
        }
    }

    /// For lists: call data can be long, and a page of it longer.
    pub(crate) fn without_payload(self) -> Tx {
        Tx { payload: None, ..self }
    }
}

impl From<domain::Receipt> for Receipt {
    fn from(receipt: domain::Receipt) -> Self {
        Receipt {
            tx_hash: format!("{:#x}", receipt.tx_hash),
            block_number: receipt.block_number,
            block_hash: format!("{:#x}", receipt.block_hash),
            transaction_index: receipt.transaction_index,
            succeeded: receipt.succeeded,
            gas_used: receipt.gas_used.to_string(),
            effective_gas_price: receipt.effective_gas_price.map(|price| price.to_string()),
            contract_address: receipt.contract_address.map(|address| format!("{address:#x}")),
        }
    }
}

impl From<domain::TxState> for TxState {
    fn from(state: domain::TxState) -> Self {
        match state {
            domain::TxState::Queued => TxState::Queued,
            domain::TxState::InFlight => TxState::InFlight,
            domain::TxState::Submitted => TxState::Submitted,
            domain::TxState::Tracking => TxState::Tracking,
            domain::TxState::Stuck => TxState::Stuck,
            domain::TxState::Protect => TxState::Protect,
            domain::TxState::Confirmed => TxState::Confirmed,
            domain::TxState::Failed => TxState::Failed,
            domain::TxState::Cancelled => TxState::Cancelled,
        }
    }
}

impl From<TxState> for domain::TxState {
    fn from(state: TxState) -> Self {
        match state {
            TxState::Queued => domain::TxState::Queued,
            TxState::InFlight => domain::TxState::InFlight,
            TxState::Submitted => domain::TxState::Submitted,
            TxState::Tracking => domain::TxState::Tracking,
            TxState::Stuck => domain::TxState::Stuck,
            TxState::Protect => domain::TxState::Protect,
            TxState::Confirmed => domain::TxState::Confirmed,
            TxState::Failed => domain::TxState::Failed,
            TxState::Cancelled => domain::TxState::Cancelled,
        }
    }
}

const EXAMPLE_ID: Uuid = Uuid::from_u128(0x0197_3c5e_8d1a_7c43_9a55_2f60_1be7_c0de);

impl Example for Accepted {
    fn example() -> Self {
        Accepted { tx_id: EXAMPLE_ID }
    }
}

impl Example for Tx {
    fn example() -> Self {
        let at = |seconds: i64| DateTime::from_timestamp(1_760_000_000 + seconds, 0).unwrap_or_default();
        Tx {
            tx_id: EXAMPLE_ID,
            chain_id: 31337,
            submitter: "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266".into(),
            request_id: "invoice-1042".into(),
            state: TxState::Tracking,
            sub_state: None,
            tx_hash: Some(format!("0x{}", "4e".repeat(32))),
            replaced_by_hash: None,
            confirmations: Some(3),
            confirmations_required: Some(20),
            finality_tag: None,
            confirmation_blocks: None,
            new_fork: None,
            submit_attempts: 1,
            last_submit_at: Some(at(1)),
            last_error: None,
            mempool: None,
            error: None,
            receipt: Some(Receipt {
                tx_hash: format!("0x{}", "4e".repeat(32)),
                block_number: 1042,
                block_hash: format!("0x{}", "b1".repeat(32)),
                transaction_index: 0,
                succeeded: true,
                gas_used: "51234".into(),
                effective_gas_price: Some("1000000007".into()),
                contract_address: None,
            }),
            created_at: at(0),
            updated_at: at(13),
            confirmed_at: None,
            finished_at: None,
            payload: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64) -> Confirmation {
        Confirmation { number, hash: H256::from_low_u64_be(number) }
    }

    /// What an answer says to somebody who has the blocks up to one of them: their numbers, and whether they replace.
    fn told(kept: ConfirmingBlocks) -> impl Fn(Option<u64>) -> Option<(Vec<u64>, bool)> {
        move |after| {
            let tx = Tx::example().with_confirmations(&kept, after.map(H256::from_low_u64_be));
            let numbers = |blocks: Vec<ConfirmationBlock>| blocks.iter().map(|block| block.number).collect();
            tx.confirmation_blocks.map(numbers).zip(tx.new_fork)
        }
    }

    #[test]
    fn whoever_knows_a_block_hears_what_came_on_top_of_it_and_after_a_fork_all() {
        let told = told(ConfirmingBlocks::Listed { blocks: vec![block(7), block(8), block(9)], whole: true });
        assert_eq!(told(None), Some((vec![7, 8, 9], true)));
        assert_eq!(told(Some(8)), Some((vec![9], false)));
        assert_eq!(told(Some(9)), Some((vec![], false)));
        assert_eq!(told(Some(1)), Some((vec![7, 8, 9], true)));
    }

    #[test]
    fn what_is_not_kept_is_no_fork_and_what_is_replaced_is() {
        let pruned = told(ConfirmingBlocks::NotKept);
        assert_eq!((pruned(None), pruned(Some(7))), (None, None));
        let beginning = told(ConfirmingBlocks::Listed { blocks: vec![block(7), block(8)], whole: false });
        assert_eq!(beginning(Some(9)), None, "it may be one of those that are missing");
        assert_eq!(beginning(Some(7)), Some((vec![8], false)));
        assert_eq!(beginning(None), Some((vec![7, 8], true)));
        let replaced = told(ConfirmingBlocks::Replaced);
        assert_eq!((replaced(None), replaced(Some(7))), (Some((vec![], true)), Some((vec![], true))));
    }
}

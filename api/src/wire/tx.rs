//! Transactions in responses. They never contain a nonce.

use chrono::{DateTime, Utc};
use gapless_domain::{self as domain, Confirmation, Finality, H256};
use gapless_store::{ConfirmingBlocks, TxView, TxWaiting};
use poem_openapi::types::Example;
use poem_openapi::{Enum, Object};
use uuid::Uuid;

use super::mempool::Mempool;
use super::problem::Problem;
use super::request::TxPayload;
use super::tx_error::TxError;
use super::waiting::{PendingRequest, Waiting};
use gapless_domain::redact_nonces;

/// An accepted request.
#[derive(Clone, Copy, Debug, Object)]
#[oai(rename_all = "camelCase", example)]
pub(crate) struct Accepted {
    pub(crate) tx_id: Uuid,
}

/// State of a transaction. `CONFIRMED`, `FAILED` and `CANCELLED` are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum TxState {
    /// Accepted; waits in the submitter's queue.
    Queued,
    /// Signed and recorded; about to be sent.
    InFlight,
    /// Accepted by a node.
    Submitted,
    /// Mined; waits for confirmations.
    Tracking,
    /// Unmined for too long; processing continues.
    Stuck,
    /// The submitter's key was used externally; waits for an operator.
    Protect,
    /// Final: mined, with enough confirmations.
    Confirmed,
    /// Final: refused before sending, reverted on chain, or replaced because no node accepts it. See `lastError`.
    Failed,
    /// Final: it has no effect on chain.
    Cancelled,
}

/// A transaction.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none, example)]
pub(crate) struct Tx {
    pub(crate) tx_id: Uuid,
    pub(crate) chain_id: u64,
    /// Lower case.
    pub(crate) submitter: String,
    pub(crate) request_id: String,
    pub(crate) state: TxState,
    /// Why it waits, for example `waiting_funds`.
    pub(crate) sub_state: Option<String>,
    /// What it waits for, and since when. Absent in lists, and if it is final.
    pub(crate) waiting: Option<Waiting>,
    /// Accepted requests about it that are not executed yet. Absent in lists, and if there are none.
    pub(crate) pending_requests: Option<Vec<PendingRequest>>,
    /// Transaction hash. May change until the transaction is mined.
    pub(crate) tx_hash: Option<String>,
    /// Hash of the mined transaction, if it is not the first attempt.
    pub(crate) replaced_by_hash: Option<String>,
    /// Confirming blocks, including its own. For a final transaction: the count when it became final.
    pub(crate) confirmations: Option<u64>,
    /// Confirmations required to become final. Absent if the rule is a `finalityTag`.
    pub(crate) confirmations_required: Option<u64>,
    /// It becomes final when the chain marks its block with this tag.
    pub(crate) finality_tag: Option<FinalityTag>,
    /// The confirming blocks, its own first: at most as many as required, and at most 64. Kept for final transactions.
    /// Absent in lists, while it is in no block, and while the server does not have them; then keep your current list.
    pub(crate) confirmation_blocks: Option<Vec<ConfirmationBlock>>,
    /// True: `confirmationBlocks` replaces your list. False: append it (see the parameter `after`).
    pub(crate) new_fork: Option<bool>,
    /// Number of sends.
    pub(crate) submit_attempts: u64,
    pub(crate) last_submit_at: Option<DateTime<Utc>>,
    /// Last node or signer error, or why it failed.
    pub(crate) last_error: Option<String>,
    /// Mempool diagnosis while it is unmined. Only if enabled (`mempool.diagnose.enabled`).
    pub(crate) mempool: Option<Mempool>,
    /// `lastError` in machine-readable form.
    pub(crate) error: Option<TxError>,
    pub(crate) receipt: Option<Receipt>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) updated_at: DateTime<Utc>,
    pub(crate) confirmed_at: Option<DateTime<Utc>>,
    /// When it reached a final state.
    pub(crate) finished_at: Option<DateTime<Utc>>,
    /// The requested payload in canonical form. Absent in lists.
    pub(crate) payload: Option<TxPayload>,
}

/// Block tag of the chain that marks a block as final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "lowercase")]
pub(crate) enum FinalityTag {
    Safe,
    Finalized,
}

/// A confirming block.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase")]
pub(crate) struct ConfirmationBlock {
    pub(crate) number: u64,
    pub(crate) hash: String,
}

/// Receipt of a mined transaction.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct Receipt {
    pub(crate) tx_hash: String,
    pub(crate) block_number: u64,
    pub(crate) block_hash: String,
    pub(crate) transaction_index: u64,
    /// False: reverted.
    pub(crate) succeeded: bool,
    /// Decimal.
    pub(crate) gas_used: String,
    /// Wei per gas, decimal.
    pub(crate) effective_gas_price: Option<String>,
    /// Address of the deployed contract.
    pub(crate) contract_address: Option<String>,
}

/// A page of transactions, newest first.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none, example)]
pub(crate) struct TxPage {
    pub(crate) items: Vec<Tx>,
    /// Pass as `cursor` to get the next page. Absent on the last page.
    pub(crate) next_cursor: Option<String>,
}

/// Results of a batch, in the order of its items.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", example)]
pub(crate) struct BatchResponse {
    pub(crate) results: Vec<BatchResult>,
}

/// Result of one item: `txId` or `problem`.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct BatchResult {
    /// HTTP status of the item as a single request: 202 new, 200 accepted before, otherwise an error.
    pub(crate) status: u16,
    pub(crate) tx_id: Option<Uuid>,
    pub(crate) problem: Option<Problem>,
}

impl Tx {
    /// `required`: `None` for a chain that is no longer configured; its final transactions can still be read.
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
            waiting: None,
            pending_requests: None,
            submit_attempts: view.submit_attempts,
            last_submit_at: view.last_submit_at,
            created_at: view.created_at,
            updated_at: view.updated_at,
            confirmed_at: view.confirmed_at,
            finished_at: view.finished_at,
        }
    }

    /// Adds the confirming blocks. If `after` is among them, only the blocks on top of it. If it is not, the chain
    /// was reorganised, and all blocks are returned. If the blocks are not stored, nothing is added: the client keeps
    /// its list.
    pub(crate) fn with_confirmations(self, stored: &ConfirmingBlocks, after: Option<H256>) -> Tx {
        let (blocks, whole): (&[Confirmation], bool) = match stored {
            ConfirmingBlocks::Listed { blocks, whole } => (blocks, *whole),
            ConfirmingBlocks::Replaced => (&[], true),
            ConfirmingBlocks::NotStored => return self,
        };
        let known = after.and_then(|hash| blocks.iter().position(|block| block.hash == hash));
        if known.is_none() && after.is_some() && !whole {
            return self;
        }
        let new = known.map_or(blocks, |index| &blocks[index + 1..]);
        let block = |block: &Confirmation| ConfirmationBlock {
            number: block.number,
            hash: format!("{:#x}", block.hash),
        };
        Tx {
            // The blocks were read after the count, which can only have grown since.
            confirmations: self.confirmations.map(|count| count.max(blocks.len() as u64)),
            confirmation_blocks: Some(new.iter().map(block).collect()),
            new_fork: Some(known.is_none()),
            ..self
        }
    }

    /// Adds what it waits for.
    pub(crate) fn with_waiting(self, found: TxWaiting) -> Tx {
        let pending: Vec<PendingRequest> = found.pending.into_iter().map(PendingRequest::from).collect();
        Tx {
            waiting: Some(Waiting::new(found.waiting, false)),
            pending_requests: Some(pending).filter(|pending| !pending.is_empty()),
            ..self
        }
    }

    /// For lists: call data can be long.
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

/// The submitter in all examples. No server has its key: the document says that it must be replaced.
pub(crate) const EXAMPLE_SUBMITTER: &str = "0x1111111111111111111111111111111111111111";
/// The transaction in all examples.
pub(crate) const EXAMPLE_ID: Uuid = Uuid::from_u128(0x0197_3c5e_8d1a_7c43_9a55_2f60_1be7_c0de);

pub(crate) fn example_time(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_760_000_000 + seconds, 0).unwrap_or_default()
}

pub(crate) fn example_hash(byte: &str) -> String {
    format!("0x{}", byte.repeat(32))
}

impl Example for Accepted {
    fn example() -> Self {
        Accepted { tx_id: EXAMPLE_ID }
    }
}

impl Example for Tx {
    fn example() -> Self {
        Tx {
            tx_id: EXAMPLE_ID,
            chain_id: 31337,
            submitter: EXAMPLE_SUBMITTER.into(),
            request_id: "invoice-1042".into(),
            state: TxState::Tracking,
            sub_state: None,
            waiting: Some(Waiting::example()),
            pending_requests: None,
            tx_hash: Some(example_hash("4e")),
            replaced_by_hash: None,
            confirmations: Some(3),
            confirmations_required: Some(20),
            finality_tag: None,
            confirmation_blocks: None,
            new_fork: None,
            submit_attempts: 1,
            last_submit_at: Some(example_time(1)),
            last_error: None,
            mempool: None,
            error: None,
            receipt: Some(Receipt {
                tx_hash: example_hash("4e"),
                block_number: 1042,
                block_hash: example_hash("b1"),
                transaction_index: 0,
                succeeded: true,
                gas_used: "51234".into(),
                effective_gas_price: Some("1000000007".into()),
                contract_address: None,
            }),
            created_at: example_time(0),
            updated_at: example_time(13),
            confirmed_at: None,
            finished_at: None,
            payload: None,
        }
    }
}

impl Example for TxPage {
    fn example() -> Self {
        let item = Tx { waiting: None, ..Tx::example() };
        TxPage { items: vec![item], next_cursor: Some(EXAMPLE_ID.simple().to_string()) }
    }
}

impl Example for BatchResponse {
    fn example() -> Self {
        let accepted = BatchResult { status: 202, tx_id: Some(EXAMPLE_ID), problem: None };
        let refused = BatchResult { status: 422, tx_id: None, problem: Some(Problem::example()) };
        BatchResponse { results: vec![accepted, refused] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64) -> Confirmation {
        Confirmation { number, hash: H256::from_low_u64_be(number) }
    }

    /// The response for `after`: the block numbers and `newFork`.
    fn response_to(stored: ConfirmingBlocks) -> impl Fn(Option<u64>) -> Option<(Vec<u64>, bool)> {
        move |after| {
            let tx = Tx::example().with_confirmations(&stored, after.map(H256::from_low_u64_be));
            let numbers = |blocks: Vec<ConfirmationBlock>| blocks.iter().map(|block| block.number).collect();
            tx.confirmation_blocks.map(numbers).zip(tx.new_fork)
        }
    }

    #[test]
    fn blocks_after_a_known_block_are_appended_and_after_a_fork_all_are_returned() {
        let blocks = vec![block(7), block(8), block(9)];
        let response = response_to(ConfirmingBlocks::Listed { blocks, whole: true });
        assert_eq!(response(None), Some((vec![7, 8, 9], true)));
        assert_eq!(response(Some(8)), Some((vec![9], false)));
        assert_eq!(response(Some(9)), Some((vec![], false)));
        assert_eq!(response(Some(1)), Some((vec![7, 8, 9], true)));
    }

    #[test]
    fn blocks_that_are_not_stored_are_no_fork_but_replaced_blocks_are() {
        let pruned = response_to(ConfirmingBlocks::NotStored);
        assert_eq!((pruned(None), pruned(Some(7))), (None, None));
        let blocks = vec![block(7), block(8)];
        let beginning = response_to(ConfirmingBlocks::Listed { blocks, whole: false });
        assert_eq!(beginning(Some(9)), None, "it may be one of the blocks that are not stored");
        assert_eq!(beginning(Some(7)), Some((vec![8], false)));
        assert_eq!(beginning(None), Some((vec![7, 8], true)));
        let replaced = response_to(ConfirmingBlocks::Replaced);
        assert_eq!((replaced(None), replaced(Some(7))), (Some((vec![], true)), Some((vec![], true))));
    }
}

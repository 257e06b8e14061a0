//! The contracts of `ChainConnector` and `MempoolInspector`.

use std::time::Duration;

use ethers_core::types::{Address, H256, U256};

use super::Findings;
use gapless_chain::{BlockTag, CallOutcome, ChainConnector, ChainIdentity, MempoolInspector, SubmitClass};
use gapless_domain::Payload;
use gapless_store::Attempt;

/// A hash that no block and no transaction has.
const UNKNOWN_HASH: H256 = H256::repeat_byte(0xee);

/// For a connector to a running chain with at least one block. `account` may be any address; `limit` is the time
/// limit of one call.
pub async fn chain_connector(
    connector: &dyn ChainConnector,
    account: Address,
    limit: Duration,
) -> Vec<String> {
    let mut found = Findings::default();
    identity(&mut found, connector, limit).await;
    missing_objects(&mut found, connector, limit).await;
    blocks(&mut found, connector, limit).await;
    account_state(&mut found, connector, account, limit).await;
    found.0
}

async fn identity(found: &mut Findings, connector: &dyn ChainConnector, limit: Duration) {
    let remote = found.value("remote_chain_id", limit, connector.remote_chain_id()).await;
    found.expect(
        remote.is_none_or(|remote| remote == connector.chain_id()),
        format!("remote_chain_id: {remote:?}, but {} is configured", connector.chain_id()),
    );
    let Some(genesis) = found.value("genesis_hash", limit, connector.genesis_hash()).await else { return };
    if genesis.is_some() {
        let other = found.value("identity", limit, connector.identity(Some(UNKNOWN_HASH))).await;
        found.expect(
            other.is_none_or(|other| matches!(other, ChainIdentity::WrongChain { .. })),
            "identity: accepts another genesis hash",
        );
    }
    // Last: a connector may refuse calls to nodes that failed the identity check until they pass it again.
    let ours = found.value("identity", limit, connector.identity(genesis)).await;
    found.expect(
        ours.is_none_or(|ours| matches!(ours, ChainIdentity::Ours { .. })),
        "identity: rejects the chain's own genesis hash",
    );
}

async fn missing_objects(found: &mut Findings, connector: &dyn ChainConnector, limit: Duration) {
    let receipt = found.value("receipt", limit, connector.receipt(UNKNOWN_HASH)).await;
    found.expect(receipt.is_none_or(|receipt| receipt.is_none()), "receipt: found for an unknown hash");
    let receipts = found.value("receipts", limit, connector.receipts(&[UNKNOWN_HASH])).await;
    found.expect(receipts.is_none_or(|receipts| receipts.is_empty()), "receipts: found for an unknown hash");
    let any = connector.receipts_from_any_node(&[UNKNOWN_HASH], None);
    let any = found.value("receipts_from_any_node", limit, any).await;
    found.expect(any.is_none_or(|any| any.is_empty()), "receipts_from_any_node: found for an unknown hash");
    let block = found.value("block_by_hash", limit, connector.block_by_hash(UNKNOWN_HASH)).await;
    found.expect(block.is_none_or(|block| block.is_none()), "block_by_hash: found for an unknown hash");
    let future = BlockTag::Number(u64::from(u32::MAX));
    let block = found.value("block", limit, connector.block(future)).await;
    found.expect(block.is_none_or(|block| block.is_none()), "block: found at a future height");
    let receipts = found.value("block_receipts", limit, connector.block_receipts(UNKNOWN_HASH)).await;
    found.expect(
        receipts.is_none_or(|receipts| receipts.is_none()),
        "block_receipts: found for an unknown block hash",
    );
    let known = found.value("has_transaction", limit, connector.has_transaction(UNKNOWN_HASH)).await;
    found.expect(known.is_none_or(|known| !known), "has_transaction: true for an unknown hash");
}

async fn blocks(found: &mut Findings, connector: &dyn ChainConnector, limit: Duration) {
    let head = found.value("block", limit, connector.block(BlockTag::Latest)).await.flatten();
    let Some(head) = head else {
        found.expect(false, "block: the chain has no latest block");
        return;
    };
    for _ in 0..2 {
        let same = found.value("block_by_hash", limit, connector.block_by_hash(head.block.hash)).await;
        found.expect(
            same.flatten().is_some_and(|same| same.block == head.block && same.tx_hashes == head.tx_hashes),
            "block_by_hash: the hash of the latest block returns another block",
        );
    }
    let below = head.block.number.checked_sub(1);
    if let Some(below) = below {
        let parent = found.value("block", limit, connector.block(BlockTag::Number(below))).await.flatten();
        found.expect(
            parent.is_some_and(|parent| parent.block.hash == head.block.parent),
            "block: the block below the latest is not its parent",
        );
    }
}

async fn account_state(
    found: &mut Findings,
    connector: &dyn ChainConnector,
    account: Address,
    limit: Duration,
) {
    let latest = connector.transaction_count(account, BlockTag::Latest);
    let latest = found.value("transaction_count", limit, latest).await;
    let again = connector.transaction_count(account, BlockTag::Latest);
    let again = found.value("transaction_count", limit, again).await;
    found.expect(
        latest.zip(again).is_none_or(|(latest, again)| again >= latest),
        "transaction_count: decreases without a reorg",
    );
    let _ = found.value("balance", limit, connector.balance(account)).await;
    let _ = found.value("gas_price", limit, connector.gas_price()).await;
    // A failed execution is part of the outcome; an error only means that no node could be reached.
    let beyond = Payload::transfer(Address::repeat_byte(1), U256::MAX);
    let _ = found.value("estimate_gas", limit, connector.estimate_gas(account, &beyond)).await;
    let nothing = Payload::transfer(account, U256::zero());
    let outcome = found.value("call", limit, connector.call(account, &nothing, BlockTag::Latest)).await;
    found.expect(
        outcome.is_none_or(|outcome| matches!(outcome, CallOutcome::Ok(()))),
        "call: a zero-value transfer to the own address fails",
    );
}

/// Sends the same bytes twice: the second send must not be an error. The attempt must be valid on the chain.
pub async fn rebroadcast(connector: &dyn ChainConnector, attempt: &Attempt, limit: Duration) -> Vec<String> {
    let mut found = Findings::default();
    for send in ["the first send", "the same bytes again"] {
        let outcome = found.value(send, limit, connector.broadcast(attempt)).await;
        let acceptable = |class| {
            matches!(class, SubmitClass::Accepted | SubmitClass::AlreadyKnown)
                || (send != "the first send" && class == SubmitClass::NonceTooLow)
        };
        found.expect(
            outcome.as_ref().is_none_or(|outcome| acceptable(outcome.class)),
            format!("broadcast: {send}: {outcome:?}"),
        );
    }
    found.0
}

/// Inspects an unknown hash: with any kind of node, the survey must return and have at most one view per queried node.
pub async fn mempool_inspector(
    inspector: &dyn MempoolInspector,
    account: Address,
    limit: Duration,
) -> Vec<String> {
    let mut found = Findings::default();
    if let Some(survey) = found.answer("inspect", limit, inspector.inspect(account, &[UNKNOWN_HASH])).await {
        found.expect(survey.views.len() <= survey.asked, "inspect: more views than nodes");
        let known = survey.views.iter().flat_map(|view| &view.known);
        found.expect(known.count() == 0, "inspect: an unknown hash is reported as known");
        found.expect(
            survey.views.iter().all(|view| view.pending_count >= view.mined_count),
            "inspect: the pending count is below the mined count",
        );
    }
    found.0
}

//! The contracts of `ChainConnector` and `MempoolInspector`.

use std::time::Duration;

use ethers_core::types::{Address, H256, U256};

use super::Findings;
use crate::chain::{BlockTag, CallOutcome, ChainConnector, ChainIdentity, MempoolInspector, SubmitClass};
use crate::domain::Payload;
use crate::store::Attempt;

/// A hash that nothing has.
const NOTHING: H256 = H256::repeat_byte(0xee);

/// A connector to a chain that runs and has at least one block. `account` may be any address; `limit` is what one call may take.
pub async fn chain_connector(
    connector: &dyn ChainConnector,
    account: Address,
    limit: Duration,
) -> Vec<String> {
    let mut found = Findings::default();
    identity(&mut found, connector, limit).await;
    what_is_missing_is_none(&mut found, connector, limit).await;
    blocks(&mut found, connector, limit).await;
    account_state(&mut found, connector, account, limit).await;
    found.0
}

async fn identity(found: &mut Findings, connector: &dyn ChainConnector, limit: Duration) {
    let remote = found.value("remote_chain_id", limit, connector.remote_chain_id()).await;
    found.expect(
        remote.is_none_or(|remote| remote == connector.chain_id()),
        format!("remote_chain_id: {remote:?}, configured is {}", connector.chain_id()),
    );
    let Some(genesis) = found.value("genesis_hash", limit, connector.genesis_hash()).await else { return };
    if genesis.is_some() {
        let other = found.value("identity", limit, connector.identity(Some(NOTHING))).await;
        found.expect(
            other.is_none_or(|other| matches!(other, ChainIdentity::External { .. })),
            "identity: another genesis is taken for this chain's",
        );
    }
    // Last: nodes that serve another chain may not be asked anything until they are seen to serve this one.
    let ours = found.value("identity", limit, connector.identity(genesis)).await;
    found.expect(
        ours.is_none_or(|ours| matches!(ours, ChainIdentity::Ours { .. })),
        "identity: the chain's own genesis is not recognised",
    );
}

async fn what_is_missing_is_none(found: &mut Findings, connector: &dyn ChainConnector, limit: Duration) {
    let receipt = found.value("receipt", limit, connector.receipt(NOTHING)).await;
    found.expect(receipt.is_none_or(|receipt| receipt.is_none()), "receipt: of a hash that nothing has");
    let receipts = found.value("receipts", limit, connector.receipts(&[NOTHING])).await;
    found.expect(receipts.is_none_or(|receipts| receipts.is_empty()), "receipts: of a hash that nothing has");
    let any = connector.receipts_from_any_node(&[NOTHING], None);
    let any = found.value("receipts_from_any_node", limit, any).await;
    found.expect(any.is_none_or(|any| any.is_empty()), "receipts_from_any_node: of a hash that nothing has");
    let block = found.value("block_by_hash", limit, connector.block_by_hash(NOTHING)).await;
    found.expect(block.is_none_or(|block| block.is_none()), "block_by_hash: of a hash that nothing has");
    let future = BlockTag::Number(u64::from(u32::MAX));
    let block = found.value("block", limit, connector.block(future)).await;
    found.expect(block.is_none_or(|block| block.is_none()), "block: a height that is not reached");
    let receipts = found.value("block_receipts", limit, connector.block_receipts(NOTHING)).await;
    found.expect(
        receipts.is_none_or(|receipts| receipts.is_none()),
        "block_receipts: of a block that does not exist",
    );
    let known = found.value("has_transaction", limit, connector.has_transaction(NOTHING)).await;
    found.expect(known.is_none_or(|known| !known), "has_transaction: of a hash that nothing has");
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
            "block_by_hash: another block than the latest, by the hash of that one",
        );
    }
    let below = head.block.number.checked_sub(1);
    if let Some(below) = below {
        let parent = found.value("block", limit, connector.block(BlockTag::Number(below))).await.flatten();
        found.expect(
            parent.is_some_and(|parent| parent.block.hash == head.block.parent),
            "block: the one below the latest is not its parent",
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
        "transaction_count: falls, on a chain without a reorg",
    );
    let _ = found.value("balance", limit, connector.balance(account)).await;
    let _ = found.value("gas_price", limit, connector.gas_price()).await;
    // A refusal is a value: what an execution shows is in the outcome, and an error only says that nobody could be asked.
    let beyond = Payload::transfer(Address::repeat_byte(1), U256::MAX);
    let _ = found.value("estimate_gas", limit, connector.estimate_gas(account, &beyond)).await;
    let nothing = Payload::transfer(account, U256::zero());
    let outcome = found.value("call", limit, connector.call(account, &nothing, BlockTag::Latest)).await;
    found.expect(
        outcome.is_none_or(|outcome| matches!(outcome, CallOutcome::Ok(()))),
        "call: a transfer of nothing to oneself fails",
    );
}

/// The same bytes twice: the second send is no error and changes nothing. The attempt must be one that the chain takes.
pub async fn rebroadcast(connector: &dyn ChainConnector, attempt: &Attempt, limit: Duration) -> Vec<String> {
    let mut found = Findings::default();
    for send in ["the first send", "the same bytes again"] {
        let outcome = found.value(send, limit, connector.broadcast(attempt)).await;
        let fine = |class| {
            matches!(class, SubmitClass::Accepted | SubmitClass::AlreadyKnown)
                || (send != "the first send" && class == SubmitClass::NonceTooLow)
        };
        found.expect(
            outcome.as_ref().is_none_or(|outcome| fine(outcome.class)),
            format!("broadcast: {send}: {outcome:?}"),
        );
    }
    found.0
}

/// Nothing is known of these hashes; whatever the nodes are, a survey comes back and counts no more answers than questions.
pub async fn mempool_inspector(
    inspector: &dyn MempoolInspector,
    account: Address,
    limit: Duration,
) -> Vec<String> {
    let mut found = Findings::default();
    if let Some(survey) = found.answer("inspect", limit, inspector.inspect(account, &[NOTHING])).await {
        found.expect(survey.views.len() <= survey.asked, "inspect: more answers than nodes");
        let known = survey.views.iter().flat_map(|view| &view.known);
        found.expect(known.count() == 0, "inspect: a hash that nothing has is known");
        found.expect(
            survey.views.iter().all(|view| view.pending_count >= view.mined_count),
            "inspect: fewer transactions with the pool than without",
        );
    }
    found.0
}

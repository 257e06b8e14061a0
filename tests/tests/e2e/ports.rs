//! Custom adapters: the example `custom_worker` as a process, and the contract tests of all ports.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use gapless_chain::evm::EvmClient;
use gapless_chain::fees::{
    FeeHistoryPolicy, FeePolicy, FixedPolicy, GasPricePolicy, GasStationPolicy, Market,
};
use gapless_config::{self as config, ChainConfig, Secret};
use gapless_contract as contract;
use gapless_domain::bump::{BumpFacts, GasBumpPolicy, Multiply};
use gapless_domain::stuck::{Always, StuckAction, StuckFacts, StuckPolicy};
use gapless_domain::{
    ChainId, ErrorCode, Event, EventKind, Fees, Payload, SignedDraft, SubmitterKey, U256, UnsignedTx,
};
use gapless_events::{EventPublisher, LogLines, NoEvents};
use gapless_signer::{Signer, SignerError, SignerSet};
use gapless_store::{Store, Timeouts};
use gapless_testkit::{Address, Fault, Mining, Stack, Submitter, TxState, eventually, payload};

use crate::stack;

const LIMIT: Duration = Duration::from_secs(20);

/// A consortium chain: no base fee, and zero balances. The connector and the fee policy are from the example.
#[tokio::test(flavor = "multi_thread")]
async fn a_connector_of_ones_own_carries_transactions_at_a_price_of_zero() {
    let stack = stack()
        .anvil_args(&["--base-fee", "0", "--gas-price", "0", "--disable-min-priority-fee"])
        .balance(0)
        .set("adapters.connector", "zero_price")
        .set("adapters.fee_policy", "free")
        .start()
        .await;
    stack.start_api().await;
    stack.custom_worker().start().await;
    let to = Address::repeat_byte(0xa1);
    let tx_id = stack.create(stack.submitter(0), "free", &payload(to, 0)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    let hash = stack.row(tx_id).await.tx_hash.unwrap();
    let mined = stack.anvil().rpc("eth_getTransactionByHash", serde_json::json!([hash])).await;
    assert_eq!(mined["maxFeePerGas"], "0x0", "{mined}");
    stack.finish().await;
}

/// The standard worker has none of these adapters: it names the configuration key and does not start.
#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_that_is_not_registered_is_refused_at_the_start() {
    let stack = stack().set("adapters.stuck_policy", "patient").start().await;
    let worker = stack.worker().without_waiting().start().await;
    eventually("it ends", async || if worker.is_running() { Err("it runs") } else { Ok(()) }).await;
    let output = worker.log();
    let key = format!("chain.{}.adapters.stuck_policy", chain_config(&stack).name);
    assert!(
        output.contains(&key) && output.contains("`patient`") && output.contains("registered: none"),
        "{output}"
    );
    stack.finish().await;
}

/// The stuck policy requests a higher price for an accepted transaction, and the gas bump policy doubles it.
#[tokio::test(flavor = "multi_thread")]
async fn policies_of_ones_own_decide_about_what_is_stuck_and_at_which_price() {
    let stack = stack()
        .mining(Mining::Manual)
        .set("stuck.after", "1s")
        .set("adapters.stuck_policy", "patient")
        .set("adapters.gas_bump_policy", "steep")
        .start()
        .await;
    stack.start_api().await;
    stack.custom_worker().start().await;
    let to = Address::repeat_byte(0xa2);
    let tx_id = stack.create(stack.submitter(0), "slow", &payload(to, 1)).await;
    stack.wait_attempts(tx_id, 2).await;
    let open = attempts_of(&stack).await;
    let cap = |index: usize| open[index].fees().cap();
    assert_eq!(cap(1), cap(0) * 2, "doubled");
    eventually("it is mined", async || {
        stack.anvil().mine(1).await;
        let row = stack.row(tx_id).await;
        if row.state == TxState::Confirmed { Ok(()) } else { Err(row) }
    })
    .await;
    assert_eq!(stack.anvil().balance(to).await, 1.into());
    stack.finish().await;
}

/// The stored open intents of the first submitter.
async fn attempts_of(stack: &Stack) -> Vec<gapless_store::Attempt> {
    let url = Secret::new(stack.database_url());
    let store = Store::new(&url, "test", 1, Timeouts::default()).unwrap();
    let key =
        SubmitterKey { chain_id: ChainId(stack.anvil().chain_id()), address: stack.submitter(0).address() };
    let rows = store.load_lanes(&[key]).await.unwrap();
    rows.into_iter().flat_map(|lane| lane.open).flat_map(|open| open.attempts).collect()
}

/// The settings of a chain as a program reads them.
fn chain_config(stack: &Stack) -> ChainConfig {
    stack.config().chains.into_values().next().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_built_in_connector_and_inspector_keep_their_contracts() {
    let stack = stack().mining(Mining::Manual).up().await;
    stack.anvil().mine(2).await;
    let client = EvmClient::new(&chain_config(&stack)).unwrap();
    let account = stack.submitter(0).address();
    assert_eq!(contract::chain_connector(&client, account, LIMIT).await, Vec::<String>::new());
    let inspector = client.inspector(&chain_config(&stack));
    assert_eq!(contract::mempool_inspector(&inspector, account, LIMIT).await, Vec::<String>::new());
    let tx_id = stack.create(stack.submitter(0), "twice", &payload(Address::repeat_byte(0xa3), 1)).await;
    stack.wait_attempts(tx_id, 1).await;
    let attempt = attempts_of(&stack).await.remove(0);
    assert_eq!(contract::rebroadcast(&client, &attempt, LIMIT).await, Vec::<String>::new());
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

/// The control: with a node that violates the contract, the contract test of the same connector fails in each case.
#[tokio::test(flavor = "multi_thread")]
async fn a_connector_that_breaks_its_contract_is_found() {
    let stack = stack().proxied().mining(Mining::Manual).set("rpc.timeout", "30s").up().await;
    stack.anvil().mine(2).await;
    let tx_id = stack.create(stack.submitter(0), "refused", &payload(Address::repeat_byte(0xa4), 1)).await;
    stack.wait_attempts(tx_id, 1).await;
    let attempt = attempts_of(&stack).await.remove(0);
    stack.wait_pooled(attempt.tx_hash()).await;
    let mut config = chain_config(&stack);
    config.urls = vec![Secret::new(stack.proxy().url())];
    let (client, account) = (EvmClient::new(&config).unwrap(), stack.submitter(0).address());
    let refuse = |message: &str| Fault::Error { code: -32000, message: message.into() };

    stack.proxy().always("eth_getTransactionReceipt", refuse("there is no such transaction"));
    let found = contract::chain_connector(&client, account, LIMIT).await;
    assert!(found.iter().any(|found| found.starts_with("receipt: unexpected error")), "{found:?}");
    stack.proxy().clear();
    stack.proxy().always("eth_sendRawTransaction", refuse("insufficient funds for gas * price + value"));
    let found = contract::rebroadcast(&client, &attempt, LIMIT).await;
    assert_eq!(found.len(), 2, "{found:?}");
    stack.proxy().clear();
    stack.proxy().always("*", Fault::Hang);
    let found =
        contract::mempool_inspector(&client.inspector(&config), account, Duration::from_secs(2)).await;
    assert!(found.iter().any(|found| found.contains("no answer within")), "{found:?}");
    stack.proxy().clear();
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    stack.finish().await;
}

#[tokio::test]
async fn the_built_in_policies_signers_and_publishers_keep_their_contracts() {
    let none = Vec::<String>::new();
    for action in [StuckAction::Wait, StuckAction::Bump, StuckAction::Cancel] {
        assert_eq!(contract::stuck_policy(&Always(action)), none);
    }
    for multiplier in [1.1, 1.125, 2.0] {
        assert_eq!(contract::gas_bump_policy(&Multiply(multiplier)), none);
    }
    let fees = config::Fees::default();
    let policies: [Box<dyn FeePolicy>; 4] = [
        Box::new(FeeHistoryPolicy::new(fees.clone())),
        Box::new(GasPricePolicy::new(fees.clone())),
        Box::new(FixedPolicy::new(fees.clone())),
        Box::new(GasStationPolicy::new(fees)),
    ];
    for policy in policies {
        assert_eq!(contract::fee_policy(policy.as_ref()), none, "{policy:?}");
    }
    let publishers: [Box<dyn EventPublisher>; 2] = [Box::new(NoEvents), Box::new(LogLines)];
    for publisher in publishers {
        assert_eq!(contract::event_publisher(publisher.as_ref(), &event()), none, "{publisher:?}");
    }
    let signer = local_signer();
    assert_eq!(contract::signer(signer.as_ref(), ChainId(31_337), LIMIT).await, none);
}

fn event() -> Event {
    Event {
        submitter: SubmitterKey { chain_id: ChainId(31_337), address: Address::repeat_byte(1) },
        tx_id: None,
        kind: EventKind::Stuck { code: ErrorCode::Stuck, reason: "unmined".to_owned() },
    }
}

fn local_signer() -> Arc<dyn Signer> {
    Arc::new(gapless_signer::LocalSigner::new(&Secret::new(Submitter::random().key_hex())).unwrap())
}

/// Faulty implementations, each with one defect; the contract test finds it.
#[tokio::test]
async fn adapters_that_break_their_contract_are_found() {
    #[derive(Debug, Default)]
    struct Fickle(std::sync::atomic::AtomicU32);
    impl StuckPolicy for Fickle {
        fn decide(&self, _: StuckFacts) -> StuckAction {
            let asked = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if asked.is_multiple_of(2) { StuckAction::Wait } else { StuckAction::Cancel }
        }
    }
    assert!(!contract::stuck_policy(&Fickle::default()).is_empty());

    #[derive(Debug)]
    struct Timid;
    impl GasBumpPolicy for Timid {
        fn fees(&self, facts: &BumpFacts) -> Option<Fees> {
            Some(facts.previous.one_wei_more())
        }
    }
    assert!(contract::gas_bump_policy(&Timid).iter().any(|found| found.contains("below the minimum bump")));

    #[derive(Debug)]
    struct OneType;
    impl FeePolicy for OneType {
        fn price(&self, _: &Market, _: &Payload) -> Fees {
            Fees::Legacy { gas_price: U256::one() }
        }
    }
    assert!(contract::fee_policy(&OneType).iter().any(|found| found.contains("another type")));

    #[derive(Debug)]
    struct Slow;
    impl EventPublisher for Slow {
        fn publish(&self, _: &Event) {
            std::thread::sleep(Duration::from_millis(60));
        }
    }
    assert!(contract::event_publisher(&Slow, &event()).iter().any(|found| found.contains("publish")));

    #[derive(Debug)]
    struct NextNonce(Arc<dyn Signer>);
    #[async_trait]
    impl Signer for NextNonce {
        fn address(&self) -> Address {
            self.0.address()
        }
        fn kind(&self) -> &'static str {
            "wrong"
        }
        async fn sign(&self, tx: &UnsignedTx) -> Result<SignedDraft, SignerError> {
            let mut other = tx.clone();
            other.nonce.0 += 1;
            let mut draft = self.0.sign(&other).await?;
            draft.nonce = tx.nonce;
            Ok(draft)
        }
    }
    let found = contract::signer(&NextNonce(local_signer()), ChainId(1), LIMIT).await;
    assert!(found.iter().any(|found| found.contains("another nonce")), "{found:?}");
}

/// A key of the program in addition to those of the configuration; if both have it, the configured one is used.
#[tokio::test]
async fn a_signer_of_ones_own_joins_the_others() {
    let set = SignerSet::default();
    let signer = local_signer();
    assert!(set.add(signer.clone()));
    assert!(!set.add(signer.clone()), "an address has one signer");
    assert_eq!(set.addresses(), [signer.address()]);
}

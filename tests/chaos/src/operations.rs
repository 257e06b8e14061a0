//! Operations besides requests: keys used outside, reserved nonces, empty accounts, a changing base fee. The
//! operator's reactions are in `operator`.

use std::time::Duration;

use ethers_core::types::{Address, Bytes, U256};
use gapless_config::Secret;
use gapless_domain::RequestedTx;
use gapless_embed::{Gapless, NonceContext};
use gapless_testkit::Submitter;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::clients::SINK;
use super::faults::{lasts_long, long, some_ms};
use super::history::{Event, ReservationPlan};
use super::schedule::{Operation, Planned, plan};
use super::{ChaosRun, Crew};

/// How long a reserving client waits in the queue for its nonce.
const LONGEST_WAIT: Duration = Duration::from_secs(8);
const GWEI: u64 = 1_000_000_000;
const POLL: Duration = Duration::from_millis(100);
/// Interval at which the second sender of a shared key resends unmined transactions.
const RESEND_EVERY: Duration = Duration::from_millis(500);

/// Transactions of the second sender of a shared key.
#[derive(Debug, Default)]
pub(crate) struct SecondSender(Mutex<Vec<(u64, Bytes)>>);

impl SecondSender {
    fn unmined(&self) -> Vec<(u64, Bytes)> {
        self.0.lock().clone()
    }

    fn add(&self, nonce: u64, raw: Bytes) {
        self.0.lock().push((nonce, raw));
    }
}

/// Performs the operations of one kind, each at its planned time or as soon as possible after it.
pub(crate) async fn carry_out(run: &ChaosRun, kind: Operation) {
    let options = &run.options;
    if options.crew != Crew::Product || !options.varied {
        return;
    }
    for planned in plan(options.seed, options.length, options.per_hour, kind) {
        let Some(begun) = run.wait_until(planned.at).await else { return };
        // `None`: it could not be done and is not counted.
        if let Some(what) = one(run, planned).await {
            run.history.record(Event::Operation { kind, what, lasted_ms: begun.elapsed().as_millis() });
        }
    }
}

async fn one(run: &ChaosRun, planned: Planned<Operation>) -> Option<String> {
    let mut rng = StdRng::seed_from_u64(planned.seed);
    match planned.kind {
        Operation::UseKeyOutside => use_key_outside(run, &mut rng).await,
        Operation::UseSharedKey => use_shared_key(run, &mut rng).await,
        Operation::ReserveNonce => reserve_nonce(run, &mut rng).await,
        Operation::EmptyAccount => empty_account(run, &mut rng).await,
        Operation::RaiseBaseFee => raise_base_fee(run, &mut rng).await,
    }
}

/// Recipient of external transactions.
fn elsewhere() -> Address {
    Address::repeat_byte(0xee)
}

/// Signs and sends a transfer outside of Gapless. `None`: the node rejected it.
async fn send_outside(run: &ChaosRun, submitter: &Submitter, nonce: u64) -> Option<Bytes> {
    let node = run.stack.anvil();
    let (hash, raw) = submitter.sign_transfer(node.chain_id(), nonce, elsewhere(), 1);
    let hash = format!("{hash:#x}");
    run.history.record(Event::Outside { submitter: submitter.text(), nonce, hash });
    node.try_rpc("eth_sendRawTransaction", json!([raw])).await.ok().map(|_| raw)
}

async fn count(run: &ChaosRun, submitter: &Submitter, tag: &str) -> Option<u64> {
    let asked = json!([submitter.address(), tag]);
    let answer = run.stack.anvil().try_rpc("eth_getTransactionCount", asked).await.ok()?;
    u64::from_str_radix(answer.as_str()?.trim_start_matches("0x"), 16).ok()
}

/// At the next nonce, or at the oldest open one as a replacement of what is in the mempool.
async fn use_key_outside(run: &ChaosRun, rng: &mut StdRng) -> Option<String> {
    let strict: Vec<usize> =
        (0..run.options.submitters).filter(|one| Some(*one) != run.options.shared()).collect();
    let index = strict[rng.random_range(0..strict.len())];
    let submitter = run.stack.submitter(index);
    let inside = rng.random::<bool>();
    let nonce = count(run, submitter, if inside { "latest" } else { "pending" }).await?;
    send_outside(run, submitter, nonce).await?;
    let place = if inside { "the oldest open nonce" } else { "the next nonce" };
    Some(format!("submitter {index}, {place} ({nonce})"))
}

async fn use_shared_key(run: &ChaosRun, rng: &mut StdRng) -> Option<String> {
    let index = run.options.shared()?;
    let submitter = run.stack.submitter(index);
    let transactions = rng.random_range(1..=3);
    let mut taken = 0;
    for _ in 0..transactions {
        let nonce = count(run, submitter, "pending").await?;
        if let Some(raw) = send_outside(run, submitter, nonce).await {
            run.second_sender.add(nonce, raw);
            taken += 1;
        }
    }
    (taken > 0).then(|| format!("submitter {index}, {taken} transactions"))
}

/// Forever resends transactions of the second sender that were dropped or lost their block.
pub(crate) async fn resend_unmined(run: &ChaosRun) {
    loop {
        tokio::time::sleep(RESEND_EVERY).await;
        let Some(index) = run.options.shared() else { continue };
        let Some(mined) = count(run, run.stack.submitter(index), "latest").await else { continue };
        for (_, raw) in run.second_sender.unmined().iter().filter(|(nonce, _)| *nonce >= mined) {
            // Errors are expected: already known, or underpriced as a replacement.
            let _ = run.stack.anvil().try_rpc("eth_sendRawTransaction", json!([raw])).await;
        }
    }
}

async fn reserve_nonce(run: &ChaosRun, rng: &mut StdRng) -> Option<String> {
    use ReservationPlan::*;
    let index = rng.random_range(0..run.options.submitters);
    let plan = [Answer, Answer, Refuse, Hang, Abandon][rng.random_range(0..5)];
    let (reserved_for, thinks, abandoned_after) =
        (some_ms(rng, 1500, 4000), some_ms(rng, 0, 1200), some_ms(rng, 100, 3000));
    // The database may be unreachable.
    let gapless = Gapless::connect(&Secret::new(run.stack.database_url())).await.ok()?;
    let (request, submitter) = (format!("h{index}-{}", run.history.next_op()), run.stack.submitter(index));
    run.history.record(Event::Reserve { request: request.clone(), submitter: submitter.text(), plan });
    let wanted = RequestedTx {
        to: Some(SINK.to_owned()),
        value: Some("1".to_owned()),
        data: Some(format!("0x{}", hex::encode(&request))),
        ..RequestedTx::default()
    };
    let call = gapless.call(run.stack.key(index)).request_id(&request);
    let call = call.reserve_for(reserved_for).wait(LONGEST_WAIT);
    let running = call.run(async |_: NonceContext| match plan {
        Answer => {
            tokio::time::sleep(thinks).await;
            Ok(wanted)
        }
        Refuse => Err("the client wants no transaction"),
        Hang | Abandon => std::future::pending().await,
    });
    let limit = if plan == Abandon { abandoned_after } else { LONGEST_WAIT * 4 };
    let (bound, outcome) = match tokio::time::timeout(limit, running).await {
        Ok(Ok(accepted)) => (true, accepted.tx_id.to_string()),
        Ok(Err(error)) => (false, error.to_string()),
        Err(_) => (false, "the call was dropped".to_owned()),
    };
    let what = format!("submitter {index}, {plan:?} ({request}): {outcome}");
    run.history.record(Event::Reserved { request, bound, outcome });
    Some(what)
}

async fn empty_account(run: &ChaosRun, rng: &mut StdRng) -> Option<String> {
    let index = rng.random_range(0..run.options.submitters);
    // Zero, too little for one transaction, enough for a few.
    let left = [0, 10_000 * GWEI, 1_000_000 * GWEI][rng.random_range(0..3)];
    let length = if lasts_long(run, rng) { long(rng) } else { some_ms(rng, 1000, 6000) };
    let address = run.stack.submitter(index).address();
    set_balance(run, address, left.into()).await?;
    tokio::time::sleep(length).await;
    refill(run, address).await;
    Some(format!("submitter {index}: {left} wei for {length:?}"))
}

async fn set_balance(run: &ChaosRun, address: Address, wei: U256) -> Option<()> {
    run.change_chain("anvil_setBalance", json!([address, wei])).await.map(|_| ())
}

/// Refills the account and waits until no reorg can revert that.
async fn refill(run: &ChaosRun, address: Address) {
    let (node, full) = (run.stack.anvil(), U256::exp10(21));
    let mut since = None;
    loop {
        let head = node.head().await;
        if node.balance(address).await < full / 2 {
            let _ = set_balance(run, address, full).await;
            since = Some(head);
        }
        if head > *since.get_or_insert(head) + run.options.required {
            return;
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn raise_base_fee(run: &ChaosRun, rng: &mut StdRng) -> Option<String> {
    let (gwei, length) = (rng.random_range(20..900), some_ms(rng, 1000, 5000));
    let set = async |wei: u64| {
        let asked = json!([format!("{wei:#x}")]);
        run.change_chain("anvil_setNextBlockBaseFeePerGas", asked).await
    };
    set(gwei * GWEI).await?;
    tokio::time::sleep(length).await;
    set(GWEI).await;
    Some(format!("{gwei} gwei for {length:?}"))
}

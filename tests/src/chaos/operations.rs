//! What happens in a deployment besides requests: keys that others use, callers that hold nonces, accounts that run dry, a base
//! fee that moves. What the operator does about it is in `operator`.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ethers_core::types::{Address, Bytes, U256};
use gapless::config::Secret;
use gapless::domain::RequestedTx;
use gapless::embed::{Gapless, NonceContext};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::clients::SINK;
use super::faults::{lasts_long, long, some_ms};
use super::history::{Event, HoldPlan};
use super::schedule::{Operation, Planned, plan};
use super::{Arena, Crew};
use crate::submitter::Submitter;

/// How long a caller waits for its nonce. It stands in the queue like everybody else.
const LONGEST_WAIT: Duration = Duration::from_secs(8);
const GWEI: u64 = 1_000_000_000;
const POLL: Duration = Duration::from_millis(100);
/// A second sender on a shared key looks so often whether its transactions are mined.
const RESEND_EVERY: Duration = Duration::from_millis(500);

/// What the second sender of a shared key has on its way.
#[derive(Debug, Default)]
pub(super) struct SecondSender(Mutex<Vec<(u64, Bytes)>>);

impl SecondSender {
    fn unmined(&self) -> Vec<(u64, Bytes)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, nonce: u64, raw: Bytes) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((nonce, raw));
    }
}

/// Carries out the operations of one kind, each at its time or as soon after it as it can be.
pub(super) async fn carry_out(arena: &Arena, kind: Operation) {
    let options = &arena.options;
    if options.crew != Crew::Product || !options.varied {
        return;
    }
    for planned in plan(options.seed, options.length, options.per_hour, kind) {
        let Some(begun) = arena.wait_until(planned.at).await else { return };
        // `None`: it could not be done, and does not count.
        if let Some(what) = one(arena, planned).await {
            arena.history.note(Event::Operation { kind, what, lasted_ms: begun.elapsed().as_millis() });
        }
    }
}

async fn one(arena: &Arena, planned: Planned<Operation>) -> Option<String> {
    let mut dice = StdRng::seed_from_u64(planned.dice);
    match planned.kind {
        Operation::UseKeyOutside => use_key_outside(arena, &mut dice).await,
        Operation::UseSharedKey => use_shared_key(arena, &mut dice).await,
        Operation::HoldNonce => hold_nonce(arena, &mut dice).await,
        Operation::EmptyAccount => empty_account(arena, &mut dice).await,
        Operation::RaiseBaseFee => raise_base_fee(arena, &mut dice).await,
    }
}

/// Where the transactions of others go.
fn elsewhere() -> Address {
    Address::repeat_byte(0xee)
}

/// Signs and sends a transfer that Gapless knows nothing of. `None`: the node did not take it.
async fn send_outside(arena: &Arena, submitter: &Submitter, nonce: u64) -> Option<Bytes> {
    let node = arena.stack.anvil();
    let (hash, raw) = submitter.sign_transfer(node.chain_id(), nonce, elsewhere(), 1);
    let hash = format!("{hash:#x}");
    arena.history.note(Event::Outside { submitter: submitter.text(), nonce, hash });
    node.try_rpc("eth_sendRawTransaction", json!([raw])).await.ok().map(|_| raw)
}

async fn count(arena: &Arena, submitter: &Submitter, tag: &str) -> Option<u64> {
    let asked = json!([submitter.address(), tag]);
    let answer = arena.stack.anvil().try_rpc("eth_getTransactionCount", asked).await.ok()?;
    u64::from_str_radix(answer.as_str()?.trim_start_matches("0x"), 16).ok()
}

/// At the next nonce, or instead of a transaction that waits in the pool.
async fn use_key_outside(arena: &Arena, dice: &mut StdRng) -> Option<String> {
    let strict: Vec<usize> =
        (0..arena.options.submitters).filter(|one| Some(*one) != arena.options.shared()).collect();
    let index = strict[dice.random_range(0..strict.len())];
    let submitter = arena.stack.submitter(index);
    let inside = dice.random::<bool>();
    let nonce = count(arena, submitter, if inside { "latest" } else { "pending" }).await?;
    send_outside(arena, submitter, nonce).await?;
    let place = if inside { "the oldest open nonce" } else { "the next nonce" };
    Some(format!("submitter {index}, {place} ({nonce})"))
}

async fn use_shared_key(arena: &Arena, dice: &mut StdRng) -> Option<String> {
    let index = arena.options.shared()?;
    let submitter = arena.stack.submitter(index);
    let transactions = dice.random_range(1..=3);
    let mut taken = 0;
    for _ in 0..transactions {
        let nonce = count(arena, submitter, "pending").await?;
        if let Some(raw) = send_outside(arena, submitter, nonce).await {
            arena.second_sender.add(nonce, raw);
            taken += 1;
        }
    }
    (taken > 0).then(|| format!("submitter {index}, {taken} transactions"))
}

/// For ever: like any sender, the second one sends again what was dropped or lost its block.
pub(super) async fn send_again(arena: &Arena) {
    loop {
        tokio::time::sleep(RESEND_EVERY).await;
        let Some(index) = arena.options.shared() else { continue };
        let Some(mined) = count(arena, arena.stack.submitter(index), "latest").await else { continue };
        for (_, raw) in arena.second_sender.unmined().iter().filter(|(nonce, _)| *nonce >= mined) {
            // Known, or too cheap to replace what is there: whatever is mined decides.
            let _ = arena.stack.anvil().try_rpc("eth_sendRawTransaction", json!([raw])).await;
        }
    }
}

async fn hold_nonce(arena: &Arena, dice: &mut StdRng) -> Option<String> {
    use HoldPlan::*;
    let index = dice.random_range(0..arena.options.submitters);
    let plan = [Answer, Answer, Refuse, Hang, Vanish][dice.random_range(0..5)];
    let (hold, thinks, vanishes) =
        (some_ms(dice, 1500, 4000), some_ms(dice, 0, 1200), some_ms(dice, 100, 3000));
    // The database may be away just now.
    let gapless = Gapless::connect(&Secret::new(arena.stack.database_url())).await.ok()?;
    let (request, submitter) =
        (format!("h{index}-{}", arena.history.next_op()), arena.stack.submitter(index));
    arena.history.note(Event::Reserve { request: request.clone(), submitter: submitter.text(), plan });
    let wanted = RequestedTx {
        to: Some(SINK.to_owned()),
        value: Some("1".to_owned()),
        data: Some(format!("0x{}", hex::encode(&request))),
        ..RequestedTx::default()
    };
    let call = gapless.call(arena.stack.key(index)).request_id(&request).hold(hold).wait(LONGEST_WAIT);
    let running = call.run(async |_: NonceContext| match plan {
        Answer => {
            tokio::time::sleep(thinks).await;
            Ok(wanted)
        }
        Refuse => Err("the caller wants nothing"),
        Hang | Vanish => std::future::pending().await,
    });
    let patience = if plan == Vanish { vanishes } else { LONGEST_WAIT * 4 };
    let (bound, outcome) = match tokio::time::timeout(patience, running).await {
        Ok(Ok(accepted)) => (true, accepted.tx_id.to_string()),
        Ok(Err(error)) => (false, error.to_string()),
        Err(_) => (false, "the call was dropped".to_owned()),
    };
    let what = format!("submitter {index}, {plan:?} ({request}): {outcome}");
    arena.history.note(Event::Reserved { request, bound, outcome });
    Some(what)
}

async fn empty_account(arena: &Arena, dice: &mut StdRng) -> Option<String> {
    let index = dice.random_range(0..arena.options.submitters);
    // Nothing, not enough for one, enough for a few.
    let left = [0, 10_000 * GWEI, 1_000_000 * GWEI][dice.random_range(0..3)];
    let length = if lasts_long(arena, dice) { long(dice) } else { some_ms(dice, 1000, 6000) };
    let address = arena.stack.submitter(index).address();
    set_balance(arena, address, left.into()).await?;
    tokio::time::sleep(length).await;
    refill(arena, address).await;
    Some(format!("submitter {index}: {left} wei for {length:?}"))
}

async fn set_balance(arena: &Arena, address: Address, wei: U256) -> Option<()> {
    arena.stack.anvil().try_rpc("anvil_setBalance", json!([address, wei])).await.ok().map(|_| ())
}

/// Until no reorg can take it back any more.
async fn refill(arena: &Arena, address: Address) {
    let (node, full) = (arena.stack.anvil(), U256::exp10(21));
    let mut since = None;
    loop {
        let head = node.head().await;
        if node.balance(address).await < full / 2 {
            let _ = set_balance(arena, address, full).await;
            since = Some(head);
        }
        if head > *since.get_or_insert(head) + arena.options.required {
            return;
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn raise_base_fee(arena: &Arena, dice: &mut StdRng) -> Option<String> {
    let (gwei, length) = (dice.random_range(20..900), some_ms(dice, 1000, 5000));
    let set = async |wei: u64| {
        let asked = json!([format!("{wei:#x}")]);
        arena.stack.anvil().try_rpc("anvil_setNextBlockBaseFeePerGas", asked).await.ok()
    };
    set(gwei * GWEI).await?;
    tokio::time::sleep(length).await;
    set(GWEI).await;
    Some(format!("{gwei} gwei for {length:?}"))
}

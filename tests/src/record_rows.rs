//! `gapless-record-rows`: brings transactions into every state with the programs of a release, and records rows and chain
//! for the tests of the next one (tests/tests/e2e/upgrade/). `make record-rows` runs it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use gapless_domain::ReservationState;
use gapless_testkit::{Address, Mining, Stack, StackBuilder, Submitter, TxId, TxState, eventually, payload};
use serde_json::json;

#[derive(Debug, Parser)]
struct Args {
    /// The `gapless-stack` of the release
    #[arg(long)]
    program: PathBuf,
    /// Directory of the recording
    #[arg(long)]
    out: PathBuf,
}

/// Always reverts.
const REVERTS: &str = "0x60006000fd";
const CONFIRMATIONS: u64 = 3;

const FINAL: usize = 0;
const TRACKING: usize = 1;
const SUBMITTED: usize = 2;
const IN_FLIGHT: usize = 3;
const REPLACED: usize = 4;
const CANCELLING: usize = 5;
const STUCK: usize = 6;
const PROTECTED: usize = 7;
const UNFUNDED: usize = 8;
const PAUSED: usize = 9;
const REQUESTED: usize = 10;
const RESERVED: usize = 11;
const NEW: usize = 12;
const COUNT: usize = 13;

#[tokio::main]
async fn main() {
    let args = Args::parse();
    let program = args.program.to_str().expect("a UTF-8 path");
    let stack = StackBuilder::new(program)
        .migrated_by(Some(args.program.clone()))
        .submitters(COUNT)
        .confirmations(CONFIRMATIONS)
        .mining(Mining::Manual)
        .set("resubmit.interval", "500ms")
        .start()
        .await;
    stack.start_api().await;
    final_states(&stack).await;
    protected(&stack).await;
    tracking(&stack).await;
    // No more blocks: everything after this stays open.
    open_states(&stack).await;
    stack.record(&args.out).await;
    let states: Vec<(String, i64)> =
        sqlx::query_as("SELECT state, count(*) FROM managed_tx GROUP BY 1 ORDER BY 1")
            .fetch_all(stack.db())
            .await
            .expect("the states");
    for (state, count) in states {
        gapless_cli::output::line(format!("{count} {state}"));
    }
    stack.close(false).await;
}

fn to(number: usize) -> Address {
    Address::repeat_byte(0xb0 + number as u8)
}

async fn create(stack: &Stack, index: usize, request: &str) -> TxId {
    stack.create(stack.submitter(index), request, &payload(to(index), 1)).await
}

async fn cancel(stack: &Stack, tx_id: TxId) {
    let answer = stack.client().post_to(&format!("/api/v1/tx/{tx_id}/cancel"), &json!({})).await;
    assert!(answer.status < 300, "{}", answer.body);
}

/// CONFIRMED, FAILED before and after a nonce, CANCELLED.
async fn final_states(stack: &Stack) {
    let worker = stack.worker().only_keys(&[FINAL]).start().await;
    let (submitter, wall) = (stack.submitter(FINAL), Address::repeat_byte(0xaf));
    stack.anvil().set_code(wall, REVERTS).await;
    let confirmed = create(stack, FINAL, "confirmed").await;
    let mut reverting = payload(wall, 0);
    reverting["gasLimit"] = json!("100000");
    let reverted = stack.create(submitter, "reverted", &reverting).await;
    let refused = stack.create(submitter, "refused", &payload(wall, 0)).await;
    for (tx_id, state) in
        [(confirmed, TxState::Confirmed), (reverted, TxState::Failed), (refused, TxState::Failed)]
    {
        mine_until(stack, tx_id, state).await;
    }
    stack.submitter_action(submitter, "pause", "to cancel one").await;
    let cancelled = create(stack, FINAL, "cancelled").await;
    cancel(stack, cancelled).await;
    stack.wait_for(cancelled, TxState::Cancelled).await;
    stack.submitter_action(submitter, "resume", "done").await;
    worker.stop_sigterm().await;
}

/// Mines until the intent is in this state.
async fn mine_until(stack: &Stack, tx_id: TxId, state: TxState) {
    eventually(&format!("{tx_id} is {state}"), async || {
        stack.anvil().mine(1).await;
        let row = stack.row(tx_id).await;
        if row.state == state { Ok(()) } else { Err(row) }
    })
    .await;
}

/// Its nonce is consumed by a transaction that is not ours; a second intent waits behind it.
async fn protected(stack: &Stack) {
    let worker = stack.worker().only_keys(&[PROTECTED]).start().await;
    let displaced = create(stack, PROTECTED, "displaced").await;
    let nonce = stack.wait_for(displaced, TxState::Submitted).await.nonce;
    create(stack, PROTECTED, "behind").await;
    worker.sigstop();
    stack.anvil().drop_all().await;
    let submitter: &Submitter = stack.submitter(PROTECTED);
    submitter.spend_outside(stack.anvil(), nonce).await;
    stack.anvil().mine(CONFIRMATIONS + 1).await;
    worker.sigcont();
    stack.wait_for(displaced, TxState::Protect).await;
    worker.stop_sigterm().await;
}

async fn tracking(stack: &Stack) {
    let worker = stack.worker().only_keys(&[TRACKING]).start().await;
    let mined = create(stack, TRACKING, "mined").await;
    stack.wait_for(mined, TxState::Submitted).await;
    stack.anvil().mine(1).await;
    stack.wait_for(mined, TxState::Tracking).await;
    create(stack, TRACKING, "behind").await;
    worker.stop_sigterm().await;
}

async fn open_states(stack: &Stack) {
    stack.anvil().set_balance(stack.submitter(UNFUNDED).address(), 0).await;
    let stuck = stack.worker().only_keys(&[STUCK]).set("stuck.after", "1s").start().await;
    let unmined = create(stack, STUCK, "unmined").await;
    stack.wait_for(unmined, TxState::Stuck).await;
    stuck.stop_sigterm().await;

    let others = [SUBMITTED, REPLACED, CANCELLING, UNFUNDED, PAUSED, RESERVED];
    let worker = stack.worker().only_keys(&others).start().await;
    let sent = create(stack, SUBMITTED, "sent").await;
    create(stack, SUBMITTED, "behind").await;
    let replaced = create(stack, REPLACED, "replaced").await;
    let cancelling = create(stack, CANCELLING, "cancelling").await;
    for tx_id in [sent, replaced, cancelling] {
        stack.wait_for(tx_id, TxState::Submitted).await;
    }
    let path = format!("/api/v1/tx/{replaced}/speed-up");
    let answer = stack.client().admin_post(&path, &json!({ "reason": "for the recording" })).await;
    assert!(answer.status < 300, "{}", answer.body);
    cancel(stack, cancelling).await;
    stack.wait_attempts(replaced, 2).await;
    stack.wait_attempts(cancelling, 2).await;
    let unfunded = create(stack, UNFUNDED, "unfunded").await;
    wait_sub_state(stack, unfunded, "waiting_funds").await;
    stack.submitter_action(stack.submitter(PAUSED), "pause", "for the recording").await;
    create(stack, PAUSED, "paused").await;
    let _client = stack.start_reservation_client(RESERVED, "reserved");
    stack.wait_reservation(stack.submitter(RESERVED), ReservationState::Reserved).await;
    worker.kill9();

    // Killed between commit and send.
    let dies = stack.worker().only_keys(&[IN_FLIGHT]).failpoint("committed").start().await;
    let in_flight = create(stack, IN_FLIGHT, "in-flight").await;
    dies.wait_exit().await;
    stack.wait_for(in_flight, TxState::InFlight).await;
    // Requested while no worker runs.
    let announces = stack.worker().only_keys(&[REQUESTED, NEW]).start().await;
    let requested = create(stack, REQUESTED, "requested").await;
    stack.wait_for_within(Duration::from_secs(60), requested, TxState::Submitted).await;
    announces.kill9();
    cancel(stack, requested).await;
    create(stack, NEW, "new").await;
}

async fn wait_sub_state(stack: &Stack, tx_id: TxId, sub_state: &str) {
    eventually(&format!("{tx_id} is {sub_state}"), async || {
        let row = stack.row(tx_id).await;
        if row.sub_state.as_deref() == Some(sub_state) { Ok(()) } else { Err(row) }
    })
    .await;
}

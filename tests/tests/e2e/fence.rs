//! The fence on a real database. No process runs: here the tests themselves are the owners.

mod race;

use std::time::Duration;

use gapless::config;
use gapless::domain::{
    Bytes, ChainId, Event, EventKind, Fees, NodeId, Nonce, Payload, Receipt, SignedDraft, SubmitterKey,
};
use gapless::store::{
    Applied, AttemptKind, CursorWrite, DoneAction, FencedWrite, IntakeOutcome, LaneRows, Lease, Move, NewIntent,
    OpenIntent, SentNote, Store, StoreError, Timeouts,
};
use gapless_tests::{Address, H256, Stack, TxId, TxState, U256, eventually};
use serde_json::{Value, json};

use crate::stack;

/// Nobody waits for these leases to run out: tests end them by hand.
const LEASE: config::Lease = config::Lease {
    duration: Duration::from_secs(60),
    renew_interval: Duration::from_secs(20),
    clock_skew: Duration::ZERO,
};

/// A database and a chain, and the store as a worker uses it.
struct Desk {
    stack: Stack,
    store: Store,
}

impl Desk {
    async fn open(submitters: usize) -> Desk {
        let stack = stack().submitters(submitters).start().await;
        let url = config::Secret::new(stack.database_url());
        let store = Store::new(&url, "owners of the test", 12, Timeouts::default()).unwrap();
        let desk = Desk { stack, store };
        let keys: Vec<SubmitterKey> = (0..submitters).map(|index| desk.key(index)).collect();
        desk.store.announce(&keys, &vec!["raw_key"; submitters]).await.unwrap();
        desk
    }

    fn key(&self, submitter: usize) -> SubmitterKey {
        let chain_id = ChainId(self.stack.anvil().chain_id());
        SubmitterKey { chain_id, address: self.stack.submitter(submitter).address() }
    }

    async fn queue(&self, submitter: usize, request_id: &str) -> TxId {
        let payload = Payload::transfer(Address::repeat_byte(0x77), U256::one());
        let intent = NewIntent::new(self.key(submitter), request_id.to_owned(), payload, None);
        match &self.store.insert_group(&[intent], false).await.unwrap()[..] {
            [IntakeOutcome::Created(tx_id)] => *tx_id,
            other => panic!("{request_id}: {other:?}"),
        }
    }

    async fn claim(&self, node: &str, submitter: usize) -> Option<Lease> {
        self.store.claim(&NodeId(node.into()), &[self.key(submitter)], &LEASE).await.unwrap().pop()
    }

    /// Time passes for every lease.
    async fn expire_leases(&self) {
        self.stack.sql("UPDATE submitter_lease SET expires_at = clock_timestamp() - INTERVAL '1 hour'").await;
    }

    async fn rows(&self, submitter: usize) -> LaneRows {
        self.store.load_lanes(&[self.key(submitter)]).await.unwrap().remove(0)
    }

    async fn apply(&self, write: FencedWrite) -> Result<Applied, StoreError> {
        Ok(self.store.apply(&[write]).await?.remove(0))
    }

    async fn must_apply(&self, write: FencedWrite) {
        let applied = self.apply(write).await.unwrap();
        assert!(matches!(applied, Applied::Yes(_)), "{applied:?}");
    }

    /// The step of a lane that gives a nonce: cursor, intent and bytes together.
    async fn give_nonce(&self, lease: &Lease, submitter: usize, tx_id: TxId) -> FencedWrite {
        let next = self.rows(submitter).await.cursor.map(|cursor| cursor.next);
        self.give(lease, submitter, tx_id, next)
    }

    /// The same with a nonce that was read before.
    fn give(&self, lease: &Lease, submitter: usize, tx_id: TxId, expect_next: Option<Nonce>) -> FencedWrite {
        let nonce = expect_next.unwrap_or(Nonce(0));
        let draft = self.sign(submitter, nonce, tx_id);
        let mut write = FencedWrite::new(lease);
        write.cursor(CursorWrite {
            expect_next,
            start: Nonce(0),
            next: nonce.next(),
            in_flight: Some((tx_id, nonce)),
            protect: None,
            max_in_flight: 1,
        });
        let (tx_hash, gas_params) = (Some(draft.tx_hash), Some(draft.gas_params()));
        let given = change(tx_id, TxState::Queued, TxState::InFlight);
        write.change(Move { nonce: Some(nonce), tx_hash, gas_params, sends: 1, ..given });
        write.record(tx_id, AttemptKind::Original, draft);
        write
    }

    /// Bytes that differ for each intent, as they would with another payload.
    fn sign(&self, submitter: usize, nonce: Nonce, tx_id: TxId) -> SignedDraft {
        let value = tx_id.0.as_u64_pair().1 % 1_000_000;
        let to = Address::repeat_byte(0x77);
        let signer = self.stack.submitter(submitter);
        let (tx_hash, raw) = signer.sign_transfer(self.stack.anvil().chain_id(), nonce.0, to, value);
        let (gas_limit, gas_price) = (U256::from(21_000), U256::exp10(11));
        let max_cost = gas_limit * gas_price + value;
        SignedDraft { nonce, raw, tx_hash, gas_limit, fees: Fees::Legacy { gas_price }, max_cost }
    }

    /// Sends, and confirms with what the chain says.
    async fn carry_to_the_end(&self, lease: &Lease, open: &OpenIntent) {
        let raw: &Bytes = open.attempts[0].raw();
        self.stack.anvil().rpc("eth_sendRawTransaction", json!([raw])).await;
        let receipt = self.stack.anvil().receipt(open.tx_hash).await.expect("mined at once");
        let mut write = FencedWrite::new(lease);
        let done = Move { receipt: Some(receipt_of(&receipt)), ..keep(open, TxState::Confirmed) };
        write.change(done);
        write.sent(SentNote { attempt_id: open.attempts[0].id(), outcome: "accepted" });
        self.must_apply(write).await;
    }

    /// Every row that a worker can write, as text.
    async fn everything(&self) -> Vec<String> {
        sqlx::query_scalar(
            "SELECT 'lease ' || to_jsonb(t)::TEXT FROM submitter_lease t
             UNION ALL SELECT 'cursor ' || to_jsonb(t)::TEXT FROM submitter_nonce_cursor t
             UNION ALL SELECT 'intent ' || to_jsonb(t)::TEXT FROM managed_tx t
             UNION ALL SELECT 'attempt ' || to_jsonb(t)::TEXT FROM tx_attempt t
             UNION ALL SELECT 'event ' || to_jsonb(t)::TEXT FROM outbox_event t
             UNION ALL SELECT 'action ' || to_jsonb(t)::TEXT FROM audit_log t
             ORDER BY 1",
        )
        .fetch_all(self.stack.db())
        .await
        .unwrap()
    }

    async fn close(self) {
        self.store.close().await;
        self.stack.finish().await;
    }
}

fn change(tx_id: TxId, from: TxState, to: TxState) -> Move {
    Move {
        tx_id,
        from,
        to,
        sub_state: None,
        nonce: None,
        tx_hash: None,
        last_error: None,
        gas_params: None,
        receipt: None,
        sends: 0,
        resubmit_in: None,
    }
}

/// A move that keeps nonce and hash.
fn keep(open: &OpenIntent, to: TxState) -> Move {
    let gas_params = open.gas_params.clone();
    Move {
        nonce: Some(open.nonce),
        tx_hash: Some(open.tx_hash),
        gas_params,
        ..change(open.tx_id, open.state, to)
    }
}

fn receipt_of(receipt: &Value) -> Receipt {
    let get = |name: &str| -> Value { receipt[name].clone() };
    let number: U256 = serde_json::from_value(get("blockNumber")).unwrap();
    Receipt {
        tx_hash: serde_json::from_value(get("transactionHash")).unwrap(),
        block_number: number.as_u64(),
        block_hash: serde_json::from_value::<H256>(get("blockHash")).unwrap(),
        transaction_index: 0,
        succeeded: true,
        gas_used: U256::from(21_000),
        effective_gas_price: None,
        contract_address: None,
    }
}

/// One of each kind of write there is.
async fn every_write(
    desk: &Desk,
    lease: &Lease,
    open: &OpenIntent,
    queued: TxId,
) -> Vec<(&'static str, FencedWrite)> {
    let write = |fill: &dyn Fn(&mut FencedWrite)| {
        let mut write = FencedWrite::new(lease);
        fill(&mut write);
        write
    };
    let dead =
        || Move { last_error: Some("too late".into()), ..change(queued, TxState::Queued, TxState::Failed) };
    let event =
        || Event { submitter: lease.key(), tx_id: None, kind: EventKind::Stuck { reason: "no".into() } };
    let protect = || CursorWrite {
        expect_next: Some(open.nonce.next()),
        start: Nonce(0),
        next: open.nonce.next(),
        in_flight: None,
        protect: Some("no".into()),
        max_in_flight: 1,
    };
    let note = || SentNote { attempt_id: open.attempts[0].id(), outcome: "accepted" };
    let done = || DoneAction { audit_id: 1, outcome: Ok("done".into()) };
    let replacement = || desk.sign(0, open.nonce, TxId::new());
    vec![
        ("a nonce for the next intent", desk.give_nonce(lease, 0, queued).await),
        ("SUBMITTED", write(&|w| w.change(keep(open, TxState::Submitted)))),
        ("an intent that failed", write(&|w| w.change(dead()))),
        ("the cursor", write(&|w| w.cursor(protect()))),
        ("an answer of the node", write(&|w| w.sent(note()))),
        ("other bytes", write(&|w| w.record(open.tx_id, AttemptKind::Replacement, replacement()))),
        ("displaced bytes", write(&|w| w.displace(open.tx_id))),
        ("an operator's request", write(&|w| w.action_done(done()))),
        ("an event", write(&|w| w.event(event()))),
        ("nothing at all", write(&|_| {})),
    ]
}

/// Scenario 15.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_takeover_every_write_of_the_former_owner_changes_no_row_and_the_successor_finishes() {
    let desk = Desk::open(1).await;
    let (first, second) = (desk.queue(0, "first").await, desk.queue(0, "second").await);
    desk.stack
        .sql("INSERT INTO audit_log (chain_id, submitter, action, reason, actor) SELECT chain_id, submitter, 'release', 'x', 'x' FROM submitter")
        .await;
    let former = desk.claim("former", 0).await.expect("it is free");
    desk.must_apply(desk.give_nonce(&former, 0, first).await).await;
    assert!(desk.claim("successor", 0).await.is_none(), "the lease lives");
    desk.expire_leases().await;
    let successor = desk.claim("successor", 0).await.expect("the lease is over");
    assert_eq!((former.token().0, successor.token().0), (1, 2));

    let open = desk.rows(0).await.open.remove(0);
    let before = desk.everything().await;
    for (what, write) in every_write(&desk, &former, &open, second).await {
        let applied = desk.apply(write).await.unwrap();
        assert!(matches!(applied, Applied::LeaseLost), "{what}: {applied:?}");
        assert_eq!(desk.everything().await, before, "{what}");
    }
    assert_eq!(
        desk.store.renew(&[former.tag()], &LEASE).await.unwrap(),
        [desk.key(0)],
        "the renewal is told"
    );
    assert_eq!(desk.store.release(vec![former]).await.unwrap(), 0, "not the former owner's to give");
    assert_eq!(desk.everything().await, before);

    desk.carry_to_the_end(&successor, &open).await;
    desk.must_apply(desk.give_nonce(&successor, 0, second).await).await;
    desk.carry_to_the_end(&successor, &desk.rows(0).await.open[0]).await;
    assert_eq!(desk.stack.row(first).await.state, TxState::Confirmed);
    assert_eq!(desk.stack.row(second).await.nonce, Some(1));
    assert_eq!(desk.stack.attempts(first).await.len(), 1);
    desk.close().await;
}

/// Scenario 17.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_acquires_again_is_refused_with_its_older_lease() {
    let desk = Desk::open(1).await;
    let first = desk.queue(0, "first").await;
    let older = desk.claim("node", 0).await.expect("it is free");
    let stale = desk.give_nonce(&older, 0, first).await;
    desk.expire_leases().await;
    let newer = desk.claim("node", 0).await.expect("the lease is over");
    assert_eq!(newer.token().0, older.token().0 + 1);
    let before = desk.everything().await;
    assert!(
        matches!(desk.apply(stale).await.unwrap(), Applied::LeaseLost),
        "the same name is not the same ownership"
    );
    assert_eq!(desk.store.renew(&[older.tag()], &LEASE).await.unwrap(), [desk.key(0)]);
    assert_eq!(desk.store.release(vec![older]).await.unwrap(), 0);
    assert_eq!(desk.everything().await, before);
    desk.must_apply(desk.give_nonce(&newer, 0, first).await).await;
    assert_eq!(desk.stack.row(first).await.fencing_token, Some(newer.token().0));
    desk.close().await;
}

/// Scenario 15, in a batch with others.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_in_a_batch_takes_nothing_from_its_neighbours() {
    let desk = Desk::open(3).await;
    let mut batch = Vec::new();
    for submitter in 0..3 {
        let tx_id = desk.queue(submitter, "only").await;
        let lease = desk.claim("former", submitter).await.unwrap();
        batch.push(desk.give_nonce(&lease, submitter, tx_id).await);
    }
    desk.expire_leases().await;
    desk.claim("successor", 1).await.expect("the lease is over");
    let answers = desk.store.apply(&batch).await.unwrap();
    assert!(matches!(answers[..], [Applied::Yes(_), Applied::LeaseLost, Applied::Yes(_)]), "{answers:?}");
    let nonces: Vec<_> =
        [desk.rows(0).await, desk.rows(1).await, desk.rows(2).await].map(|rows| rows.open.len()).into();
    assert_eq!(nonces, [1, 0, 1]);
    desk.close().await;
}

/// Scenario 23: what the worker's writer builds upon. Nothing of such a batch is written, so that halves can be tried.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_not_as_believed_refuses_its_batch_as_a_whole_and_no_other() {
    let desk = Desk::open(3).await;
    let mut leases = Vec::new();
    let mut tx_ids = Vec::new();
    for submitter in 0..3 {
        tx_ids.push(desk.queue(submitter, "only").await);
        leases.push(desk.claim("owner", submitter).await.unwrap());
    }
    let write =
        async |submitter: usize| desk.give_nonce(&leases[submitter], submitter, tx_ids[submitter]).await;
    let batch = [write(0).await, write(1).await, write(2).await];
    let (left, middle, right) = (write(0).await, write(1).await, write(2).await);
    let tampered = sqlx::query(
        "UPDATE managed_tx SET state = 'CANCELLED', finished_at = now(), fencing_token = 1 WHERE tx_id = $1",
    );
    tampered.bind(tx_ids[1].0).execute(desk.stack.db()).await.unwrap();

    let before = desk.everything().await;
    let refused = desk.store.apply(&batch).await.unwrap_err();
    assert!(matches!(refused, StoreError::RowsAffected { expected: 3, found: 2, .. }), "{refused}");
    assert!(!refused.is_connection(), "a row is to blame");
    assert_eq!(desk.everything().await, before);
    desk.must_apply(left).await;
    desk.must_apply(right).await;
    assert!(matches!(desk.apply(middle).await, Err(StoreError::RowsAffected { expected: 1, found: 0, .. })));
    assert_eq!(
        desk.stack.cursor(desk.stack.submitter(1)).await.map(|cursor| cursor.next),
        None,
        "no nonce is burnt"
    );
    desk.close().await;
}

/// How many sessions of the desk's store wait for a lock.
async fn waiting(desk: &Desk) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = 'owners of the test' AND wait_event_type = 'Lock'",
    )
    .fetch_one(desk.stack.db())
    .await
    .unwrap()
}

/// The proof of the fence as a schedule: the write came first, so the takeover comes after it and sees it.
#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_during_a_write_finds_the_lease_locked_and_afterwards_sees_what_was_written() {
    let desk = Desk::open(1).await;
    let first = desk.queue(0, "first").await;
    let former = desk.claim("former", 0).await.unwrap();
    desk.expire_leases().await;
    let write = desk.give_nonce(&former, 0, first).await;
    // Stops the write in its middle: it has the lease row and waits for this one.
    let mut obstacle = desk.stack.db().begin().await.unwrap();
    sqlx::query("SELECT FROM managed_tx FOR UPDATE").execute(&mut *obstacle).await.unwrap();
    let during = async {
        eventually("the write is under way", async || match waiting(&desk).await {
            1 => Ok(()),
            other => Err(other),
        })
        .await;
        assert!(
            desk.claim("successor", 0).await.is_none(),
            "passed over at once, although the lease is over"
        );
        obstacle.commit().await.unwrap();
    };
    let (applied, ()) = tokio::join!(desk.apply(write), during);
    assert!(matches!(applied.unwrap(), Applied::Yes(_)), "nobody took over: it is still the owner");
    let successor = desk.claim("successor", 0).await.expect("nothing is locked any more");
    let open = desk.rows(0).await.open;
    assert_eq!((open[0].tx_id, open[0].nonce), (first, Nonce(0)));
    desk.carry_to_the_end(&successor, &open[0]).await;
    desk.close().await;
}

/// Scenario 19: whoever claims is never passed over because of inserts, however many.
#[tokio::test(flavor = "multi_thread")]
async fn inserts_at_full_rate_never_make_a_claim_fail() {
    let desk = Desk::open(1).await;
    let full_rate = async |client: usize| {
        for group in 0..15 {
            let intents: Vec<NewIntent> = (0..40)
                .map(|n| {
                    let payload = Payload::transfer(Address::repeat_byte(0x77), U256::one());
                    NewIntent::new(desk.key(0), format!("{client}-{group}-{n}"), payload, None)
                })
                .collect();
            let outcomes = desk.store.insert_group(&intents, false).await.unwrap();
            assert!(outcomes.iter().all(|outcome| matches!(outcome, IntakeOutcome::Created(_))));
        }
    };
    let inserts = async { tokio::join!(full_rate(0), full_rate(1), full_rate(2)) };
    let claims = async {
        for round in 1..=60 {
            let lease =
                desk.claim("owner", 0).await.unwrap_or_else(|| panic!("claim {round} was passed over"));
            assert_eq!(desk.store.release(vec![lease]).await.unwrap(), 1);
        }
    };
    tokio::join!(inserts, claims);
    assert_eq!(desk.stack.rows(desk.stack.submitter(0)).await.len(), 3 * 15 * 40);
    desk.close().await;
}

/// Scenario 19: an insert that is not even committed yet is in nobody's way.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_succeeds_at_once_while_an_insert_for_the_submitter_is_open() {
    let desk = Desk::open(1).await;
    let mut open = desk.stack.db().begin().await.unwrap();
    sqlx::query(
        "INSERT INTO managed_tx (tx_id, chain_id, submitter, request_id, payload, payload_hash)
         SELECT gen_random_uuid(), chain_id, submitter, 'uncommitted', '{}', '' FROM submitter",
    )
    .execute(&mut *open)
    .await
    .unwrap();
    let lease = desk.claim("owner", 0).await.expect("not passed over");
    let first = desk.queue(0, "first").await;
    desk.must_apply(desk.give_nonce(&lease, 0, first).await).await;
    open.rollback().await.unwrap();
    desk.close().await;
}

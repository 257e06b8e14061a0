//! The fence on a real database. Without worker processes: the tests act as owners.

mod fixture;
mod race;

use gapless_domain::mempool::{PoolSurvey, diagnose};
use gapless_domain::{ErrorCode, Event, EventKind, Nonce, Payload, TxError};
use gapless_store::{
    Applied, AskedBy, AttemptKind, Cursor, CursorWrite, DoneAction, ExternalCause, ExternalNonces,
    FencedWrite, IntakeOutcome, Lease, Move, NewIntent, OpenIntent, StoreError,
};
use gapless_testkit::{Address, TxId, TxState, U256, eventually};
use serde_json::json;

use self::fixture::{Fixture, keep, sent};

/// One of each kind of write.
async fn every_write(
    fixture: &Fixture,
    lease: &Lease,
    open: &OpenIntent,
    queued: TxId,
) -> Vec<(&'static str, FencedWrite)> {
    let write = |fill: &dyn Fn(&mut FencedWrite)| {
        let mut write = FencedWrite::new(lease);
        fill(&mut write);
        write
    };
    let error = || Some(TxError::new(ErrorCode::Invalid, "too late"));
    let dead = || Move { last_error: error(), ..Move::new(queued, TxState::Queued, TxState::Failed) };
    let stuck = || EventKind::Stuck { code: ErrorCode::Stuck, reason: "no".into() };
    let event = || Event { submitter: lease.key(), tx_id: None, kind: stuck() };
    let before =
        || Cursor { next: open.nonce.next(), open_from: open.nonce, ..Cursor::starting_at(Nonce(0), 1) };
    let protect =
        || CursorWrite { before: Some(before()), after: Cursor { protect: Some("no".into()), ..before() } };
    let others = || ExternalNonces { first: Nonce(7), last: Nonce(7), cause: ExternalCause::SteppedOver };
    let note = || sent(open);
    let done = || DoneAction { asked_by: AskedBy::Audit(1), outcome: Ok("done".into()) };
    let diagnosis = || diagnose(open.nonce, &[open.tx_hash], &PoolSurvey::default());
    let replacement = || fixture.sign(0, open.nonce, TxId::new());
    vec![
        ("a nonce for the next intent", fixture.give_nonce(lease, 0, queued).await),
        ("SUBMITTED", write(&|w| w.change(keep(open, TxState::Submitted)))),
        ("an intent that failed", write(&|w| w.change(dead()))),
        ("the cursor", write(&|w| w.cursor(protect()))),
        ("an answer of the node", write(&|w| w.sent(note()))),
        ("a mempool diagnosis", write(&|w| w.diagnosed(open.tx_id, diagnosis()))),
        ("other bytes", write(&|w| w.record(open.tx_id, AttemptKind::Replacement, replacement()))),
        ("nonces of others", write(&|w| w.external(others()))),
        ("displaced bytes", write(&|w| w.displace(open.tx_id))),
        ("an operator's request", write(&|w| w.action_done(done()))),
        ("an event", write(&|w| w.event(event()))),
        ("nothing at all", write(&|_| {})),
    ]
}

/// Scenario 15.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_takeover_every_write_of_the_former_owner_changes_no_row_and_the_successor_finishes() {
    let fixture = Fixture::open(1).await;
    let (first, second) = (fixture.queue(0, "first").await, fixture.queue(0, "second").await);
    fixture
        .stack
        .sql(
            "INSERT INTO audit_log (chain_id, submitter, action, reason, actor)
             SELECT chain_id, submitter, 'release', 'a test', 'an operator' FROM submitter",
        )
        .await;
    let former = fixture.claim("former", 0).await.expect("it is free");
    fixture.must_apply(fixture.give_nonce(&former, 0, first).await).await;
    assert!(fixture.claim("successor", 0).await.is_none(), "the lease lives");
    fixture.expire_leases().await;
    let successor = fixture.claim("successor", 0).await.expect("the lease is over");
    assert_eq!((former.token().0, successor.token().0), (1, 2));

    let open = fixture.rows(0).await.open.remove(0);
    let before = fixture.everything().await;
    for (what, write) in every_write(&fixture, &former, &open, second).await {
        let applied = fixture.apply(write).await.unwrap();
        assert!(matches!(applied, Applied::LeaseLost), "{what}: {applied:?}");
        assert_eq!(fixture.everything().await, before, "{what}");
    }
    assert_eq!(fixture.lost_on_renewal(&former).await, 1, "the renewal reports the loss");
    assert_eq!(fixture.store.release(vec![former]).await.unwrap(), 0, "the former owner must not release it");
    assert_eq!(fixture.everything().await, before);

    fixture.carry_to_the_end(&successor, &open).await;
    fixture.must_apply(fixture.give_nonce(&successor, 0, second).await).await;
    fixture.carry_to_the_end(&successor, &fixture.rows(0).await.open[0]).await;
    assert_eq!(fixture.stack.row(first).await.state, TxState::Confirmed);
    assert_eq!(fixture.stack.row(second).await.nonce, Some(1));
    assert_eq!(fixture.stack.attempts(first).await.len(), 1);
    fixture.close().await;
}

/// Scenario 17.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_acquires_again_is_refused_with_its_older_lease() {
    let fixture = Fixture::open(1).await;
    let first = fixture.queue(0, "first").await;
    let older = fixture.claim("node", 0).await.expect("it is free");
    let stale = fixture.give_nonce(&older, 0, first).await;
    fixture.expire_leases().await;
    let newer = fixture.claim("node", 0).await.expect("the lease is over");
    assert_eq!(newer.token().0, older.token().0 + 1);
    let before = fixture.everything().await;
    assert!(
        matches!(fixture.apply(stale).await.unwrap(), Applied::LeaseLost),
        "the same name is not the same ownership"
    );
    assert_eq!(fixture.lost_on_renewal(&older).await, 1);
    assert_eq!(fixture.store.release(vec![older]).await.unwrap(), 0);
    assert_eq!(fixture.everything().await, before);
    fixture.must_apply(fixture.give_nonce(&newer, 0, first).await).await;
    assert_eq!(fixture.stack.row(first).await.fencing_token, Some(newer.token().0));
    fixture.close().await;
}

/// Scenario 15, in a batch with others.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_in_a_batch_takes_nothing_from_its_neighbours() {
    let fixture = Fixture::open(3).await;
    let mut batch = Vec::new();
    for submitter in 0..3 {
        let tx_id = fixture.queue(submitter, "only").await;
        let lease = fixture.claim("former", submitter).await.unwrap();
        batch.push(fixture.give_nonce(&lease, submitter, tx_id).await);
    }
    fixture.expire_leases().await;
    fixture.claim("successor", 1).await.expect("the lease is over");
    let answers = fixture.store.apply(&batch).await.unwrap();
    assert!(matches!(answers[..], [Applied::Yes(_), Applied::LeaseLost, Applied::Yes(_)]), "{answers:?}");
    let nonces: Vec<_> = [fixture.rows(0).await, fixture.rows(1).await, fixture.rows(2).await]
        .map(|rows| rows.open.len())
        .into();
    assert_eq!(nonces, [1, 0, 1]);
    fixture.close().await;
}

/// Scenario 23, for the worker's writer: nothing of such a batch is written, so that it can retry halves.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_not_as_believed_refuses_its_batch_as_a_whole_and_no_other() {
    let fixture = Fixture::open(3).await;
    let mut leases = Vec::new();
    let mut tx_ids = Vec::new();
    for submitter in 0..3 {
        tx_ids.push(fixture.queue(submitter, "only").await);
        leases.push(fixture.claim("owner", submitter).await.unwrap());
    }
    let write =
        async |submitter: usize| fixture.give_nonce(&leases[submitter], submitter, tx_ids[submitter]).await;
    let batch = [write(0).await, write(1).await, write(2).await];
    let (left, middle, right) = (write(0).await, write(1).await, write(2).await);
    let tampered = sqlx::query(
        "UPDATE managed_tx SET state = 'CANCELLED', finished_at = now(), fencing_token = 1 WHERE tx_id = $1",
    );
    tampered.bind(tx_ids[1].0).execute(fixture.stack.db()).await.unwrap();

    let before = fixture.everything().await;
    let refused = fixture.store.apply(&batch).await.unwrap_err();
    assert!(matches!(refused, StoreError::RowsAffected { expected: 3, found: 2, .. }), "{refused}");
    assert!(!refused.is_connection(), "the error is about a row");
    assert_eq!(fixture.everything().await, before);
    fixture.must_apply(left).await;
    fixture.must_apply(right).await;
    assert!(matches!(
        fixture.apply(middle).await,
        Err(StoreError::RowsAffected { expected: 1, found: 0, .. })
    ));
    assert_eq!(
        fixture.stack.cursor(fixture.stack.submitter(1)).await.map(|cursor| cursor.next),
        None,
        "no nonce is burnt"
    );
    fixture.close().await;
}

/// Number of sessions of the fixture's store that wait for a lock.
async fn waiting(fixture: &Fixture) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name LIKE 'owners of the test%' AND wait_event_type = 'Lock'",
    )
    .fetch_one(fixture.stack.db())
    .await
    .unwrap()
}

/// The fence as a schedule: the write came first, so the takeover waits for it and sees it.
#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_during_a_write_finds_the_lease_locked_and_afterwards_sees_what_was_written() {
    let fixture = Fixture::open(1).await;
    let first = fixture.queue(0, "first").await;
    let former = fixture.claim("former", 0).await.unwrap();
    fixture.expire_leases().await;
    let write = fixture.give_nonce(&former, 0, first).await;
    // Stops the write halfway: it has locked the lease row and waits for this one.
    let mut obstacle = fixture.stack.db().begin().await.unwrap();
    sqlx::query("SELECT FROM managed_tx FOR UPDATE").execute(&mut *obstacle).await.unwrap();
    let during = async {
        eventually("the write is under way", async || match waiting(&fixture).await {
            1 => Ok(()),
            other => Err(other),
        })
        .await;
        assert!(
            fixture.claim("successor", 0).await.is_none(),
            "passed over at once, although the lease is over"
        );
        obstacle.commit().await.unwrap();
    };
    let (applied, ()) = tokio::join!(fixture.apply(write), during);
    assert!(matches!(applied.unwrap(), Applied::Yes(_)), "no takeover: it is still the owner");
    let successor = fixture.claim("successor", 0).await.expect("nothing is locked any more");
    let open = fixture.rows(0).await.open;
    assert_eq!((open[0].tx_id, open[0].nonce), (first, Nonce(0)));
    fixture.carry_to_the_end(&successor, &open[0]).await;
    fixture.close().await;
}

/// Scenario 19: claims are never starved by inserts.
#[tokio::test(flavor = "multi_thread")]
async fn inserts_at_full_rate_never_make_a_claim_fail() {
    let fixture = Fixture::open(1).await;
    let full_rate = async |client: usize| {
        for group in 0..15 {
            let intents: Vec<NewIntent> = (0..40)
                .map(|n| {
                    let payload = Payload::transfer(Address::repeat_byte(0x77), U256::one());
                    NewIntent::new(fixture.key(0), format!("{client}-{group}-{n}"), payload, None)
                })
                .collect();
            let outcomes = fixture.store.insert_group(&intents).await.unwrap();
            assert!(outcomes.iter().all(|outcome| matches!(outcome, IntakeOutcome::Created(_))));
        }
    };
    let inserts = async { tokio::join!(full_rate(0), full_rate(1), full_rate(2)) };
    let claims = async {
        for round in 1..=60 {
            let lease =
                fixture.claim("owner", 0).await.unwrap_or_else(|| panic!("claim {round} was passed over"));
            assert_eq!(fixture.store.release(vec![lease]).await.unwrap(), 1);
        }
    };
    tokio::join!(inserts, claims);
    assert_eq!(fixture.stack.rows(fixture.stack.submitter(0)).await.len(), 3 * 15 * 40);
    fixture.close().await;
}

/// Scenario 19: an uncommitted insert blocks nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_succeeds_at_once_while_an_insert_for_the_submitter_is_open() {
    let fixture = Fixture::open(1).await;
    let mut open = fixture.stack.db().begin().await.unwrap();
    sqlx::query(
        "INSERT INTO managed_tx (tx_id, chain_id, submitter, request_id, payload, payload_hash)
         SELECT gen_random_uuid(), chain_id, submitter, 'uncommitted', '{}', '' FROM submitter",
    )
    .execute(&mut *open)
    .await
    .unwrap();
    let lease = fixture.claim("owner", 0).await.expect("not passed over");
    let first = fixture.queue(0, "first").await;
    fixture.must_apply(fixture.give_nonce(&lease, 0, first).await).await;
    open.rollback().await.unwrap();
    fixture.close().await;
}

/// A COMMIT whose response is lost may be undecided. A read after passing the fence sees its result.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_write_waits_until_an_undecided_one_is_decided() {
    let fixture = Fixture::open(1).await;
    let lease = fixture.claim("owner", 0).await.unwrap();
    let tx_id = fixture.queue(0, "first").await;
    let mut undecided = fixture.stack.db().begin().await.unwrap();
    for statement in [
        "SELECT 1 FROM submitter_lease FOR NO KEY UPDATE",
        "UPDATE managed_tx SET state = 'FAILED', finished_at = now(), fencing_token = 1",
    ] {
        sqlx::query(statement).execute(&mut *undecided).await.unwrap();
    }
    let fence = tokio::spawn({
        let (store, write) = (fixture.store.clone(), FencedWrite::new(&lease));
        async move { store.apply(&[write]).await }
    });
    eventually("the fence waits", async || {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '-- fence%'",
        )
        .fetch_one(fixture.stack.db())
        .await
        .unwrap();
        if waiting == 1 { Ok(()) } else { Err(waiting) }
    })
    .await;
    assert!(!fence.is_finished());
    undecided.commit().await.unwrap();
    assert!(matches!(fence.await.unwrap().unwrap()[..], [Applied::Yes(_)]));
    assert_eq!(fixture.stack.row(tx_id).await.state, TxState::Failed);
    fixture.close().await;
}

/// Scenario 18: transactions that are sent before the commit look external to the next owner.
#[tokio::test(flavor = "multi_thread")]
async fn the_audit_catches_bytes_that_were_sent_before_they_were_committed() {
    let fixture = Fixture::open(1).await;
    let (first, second) = (fixture.queue(0, "first").await, fixture.queue(0, "second").await);
    let hasty = fixture.claim("hasty", 0).await.unwrap();
    let draft = fixture.sign(0, Nonce(0), first);
    fixture.stack.anvil().rpc("eth_sendRawTransaction", json!([draft.raw])).await;
    // It crashes before the commit. The next owner does not know of it, and assigns the nonce to the next intent.
    drop(hasty);
    fixture.expire_leases().await;
    let successor = fixture.claim("successor", 0).await.unwrap();
    fixture.must_apply(fixture.give_nonce(&successor, 0, second).await).await;
    fixture.store.close().await;
    fixture.stack.finish_unsound("nonces on chain are contiguous and recorded").await;
}

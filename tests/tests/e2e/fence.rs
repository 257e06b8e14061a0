//! The fence on a real database. No process runs: here the tests themselves are the owners.

mod desk;
mod race;

use gapless::domain::mempool::{PoolSurvey, diagnose};
use gapless::domain::{ErrorCode, Event, EventKind, Nonce, Payload, TxError};
use gapless::store::{
    Applied, AskedBy, AttemptKind, CursorWrite, DoneAction, ExternalCause, ExternalNonces, FencedWrite,
    IntakeOutcome, Lease, Move, NewIntent, OpenIntent, StoreError,
};
use gapless_tests::{Address, TxId, TxState, U256, eventually};
use serde_json::json;

use self::desk::{Desk, keep, sent};

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
    let error = || Some(TxError::new(ErrorCode::Invalid, "too late"));
    let dead = || Move { last_error: error(), ..Move::new(queued, TxState::Queued, TxState::Failed) };
    let stuck = || EventKind::Stuck { code: ErrorCode::Stuck, reason: "no".into() };
    let event = || Event { submitter: lease.key(), tx_id: None, kind: stuck() };
    let protect = || CursorWrite {
        expect_next: Some(open.nonce.next()),
        expect_protected: false,
        start: Nonce(0),
        next: open.nonce.next(),
        in_flight: None,
        open_from: open.nonce,
        protect: Some("no".into()),
        max_in_flight: 1,
        delegated: false,
    };
    let others = || ExternalNonces { first: Nonce(7), last: Nonce(7), cause: ExternalCause::SteppedOver };
    let note = || sent(open);
    let done = || DoneAction { asked_by: AskedBy::Audit(1), outcome: Ok("done".into()) };
    let diagnosis = || diagnose(open.nonce, &[open.tx_hash], &PoolSurvey::default());
    let replacement = || desk.sign(0, open.nonce, TxId::new());
    vec![
        ("a nonce for the next intent", desk.give_nonce(lease, 0, queued).await),
        ("SUBMITTED", write(&|w| w.change(keep(open, TxState::Submitted)))),
        ("an intent that failed", write(&|w| w.change(dead()))),
        ("the cursor", write(&|w| w.cursor(protect()))),
        ("an answer of the node", write(&|w| w.sent(note()))),
        ("a mempool diagnosis", write(&|w| w.diagnosed(open.tx_id, diagnosis()))),
        ("other bytes", write(&|w| w.record(open.tx_id, AttemptKind::Replacement, replacement()))),
        ("nonces of others", write(&|w| w.foreign(others()))),
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
        .sql(
            "INSERT INTO audit_log (chain_id, submitter, action, reason, actor)
             SELECT chain_id, submitter, 'release', 'a test', 'an operator' FROM submitter",
        )
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
    assert_eq!(desk.lost_on_renewal(&former).await, 1, "the renewal is told");
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
    assert_eq!(desk.lost_on_renewal(&older).await, 1);
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

/// A COMMIT whose answer is lost may still be undecided. Whoever reads behind the fence reads what came of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_write_waits_until_an_undecided_one_is_decided() {
    let desk = Desk::open(1).await;
    let lease = desk.claim("owner", 0).await.unwrap();
    let tx_id = desk.queue(0, "first").await;
    let mut undecided = desk.stack.db().begin().await.unwrap();
    for statement in [
        "SELECT 1 FROM submitter_lease FOR NO KEY UPDATE",
        "UPDATE managed_tx SET state = 'FAILED', finished_at = now(), fencing_token = 1",
    ] {
        sqlx::query(statement).execute(&mut *undecided).await.unwrap();
    }
    let fence = tokio::spawn({
        let (store, write) = (desk.store.clone(), FencedWrite::new(&lease));
        async move { store.apply(&[write]).await }
    });
    eventually("the fence waits", async || {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '-- fence%'",
        )
        .fetch_one(desk.stack.db())
        .await
        .unwrap();
        if waiting == 1 { Ok(()) } else { Err(waiting) }
    })
    .await;
    assert!(!fence.is_finished());
    undecided.commit().await.unwrap();
    assert!(matches!(fence.await.unwrap().unwrap()[..], [Applied::Yes(_)]));
    assert_eq!(desk.stack.row(tx_id).await.state, TxState::Failed);
    desk.close().await;
}

/// Scenario 18: bytes that leave before they are on disk are somebody else's to whoever comes next.
#[tokio::test(flavor = "multi_thread")]
async fn the_audit_catches_bytes_that_were_sent_before_they_were_committed() {
    let desk = Desk::open(1).await;
    let (first, second) = (desk.queue(0, "first").await, desk.queue(0, "second").await);
    let hasty = desk.claim("hasty", 0).await.unwrap();
    let draft = desk.sign(0, Nonce(0), first);
    desk.stack.anvil().rpc("eth_sendRawTransaction", json!([draft.raw])).await;
    // It dies before the commit. Its successor knows of nothing, and gives the nonce to the next in the queue.
    drop(hasty);
    desk.expire_leases().await;
    let successor = desk.claim("successor", 0).await.unwrap();
    desk.must_apply(desk.give_nonce(&successor, 0, second).await).await;
    desk.store.close().await;
    desk.stack.finish_unsound("nonces on chain are contiguous and all ours").await;
}

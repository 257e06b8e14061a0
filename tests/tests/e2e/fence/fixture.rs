//! The store as a worker uses it, with a database and a chain, without a worker: tests act as owners.

use std::time::Duration;

use gapless_config as config;
use gapless_domain::{Bytes, ChainId, Fees, Nonce, Payload, Receipt, SignedDraft, SubmitterKey, WorkerId};
use gapless_store::{
    Announced, Applied, AttemptKind, Cursor, CursorWrite, FencedWrite, IntakeOutcome, LaneRows, Lease, Move,
    NewIntent, OpenIntent, SentNote, Store, StoreError, Timeouts,
};
use gapless_testkit::{Address, H256, Stack, TxId, TxState, U256, eventually};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::stack;

/// These leases do not expire during a test: tests end them explicitly.
pub(super) const LEASE: config::Lease = config::Lease {
    duration: Duration::from_secs(60),
    renew_interval: Duration::from_secs(20),
    clock_skew: Duration::ZERO,
};

/// A database, a chain, and the store.
pub(super) struct Fixture {
    pub(super) stack: Stack,
    pub(super) store: Store,
}

impl Fixture {
    pub(super) async fn open(submitters: usize) -> Fixture {
        let stack = stack().submitters(submitters).start().await;
        let url = config::Secret::new(stack.database_url());
        let store = Store::new(&url, "owners of the test", 12, Timeouts::default()).unwrap();
        let fixture = Fixture { stack, store };
        let announced =
            |index| Announced { key: fixture.key(index), signer: "raw_key", shared: false, low_level: false };
        fixture.store.announce(&(0..submitters).map(announced).collect::<Vec<_>>()).await.unwrap();
        fixture
    }

    pub(super) fn key(&self, submitter: usize) -> SubmitterKey {
        let chain_id = ChainId(self.stack.anvil().chain_id());
        SubmitterKey { chain_id, address: self.stack.submitter(submitter).address() }
    }

    pub(super) async fn queue(&self, submitter: usize, request_id: &str) -> TxId {
        let payload = Payload::transfer(Address::repeat_byte(0x77), U256::one());
        let intent = NewIntent::new(self.key(submitter), request_id.to_owned(), payload, None);
        match &self.store.insert_group(&[intent]).await.unwrap()[..] {
            [IntakeOutcome::Created(tx_id)] => *tx_id,
            other => panic!("{request_id}: {other:?}"),
        }
    }

    pub(super) async fn claim(&self, node: &str, submitter: usize) -> Option<Lease> {
        self.store.claim(&WorkerId(node.into()), &[self.key(submitter)], &LEASE).await.unwrap().pop()
    }

    pub(super) async fn lost_on_renewal(&self, lease: &Lease) -> usize {
        self.store.renew(&[lease.tag()], &LEASE).await.unwrap().len()
    }

    /// Expires every lease.
    pub(super) async fn expire_leases(&self) {
        self.stack.sql("UPDATE submitter_lease SET expires_at = clock_timestamp() - INTERVAL '1 hour'").await;
    }

    pub(super) async fn rows(&self, submitter: usize) -> LaneRows {
        self.store.load_lanes(&[self.key(submitter)]).await.unwrap().remove(0)
    }

    pub(super) async fn apply(&self, write: FencedWrite) -> Result<Applied, StoreError> {
        Ok(self.store.apply(&[write]).await?.remove(0))
    }

    pub(super) async fn must_apply(&self, write: FencedWrite) {
        let applied = self.apply(write).await.unwrap();
        assert!(matches!(applied, Applied::Yes(_)), "{applied:?}");
    }

    /// Assigns a nonce, as a lane does: cursor, intent and attempt together.
    pub(super) async fn give_nonce(&self, lease: &Lease, submitter: usize, tx_id: TxId) -> FencedWrite {
        let next = self.rows(submitter).await.cursor.map(|cursor| cursor.next);
        self.give(lease, submitter, tx_id, next)
    }

    /// The same with a nonce that was read before.
    pub(super) fn give(
        &self,
        lease: &Lease,
        submitter: usize,
        tx_id: TxId,
        expect_next: Option<Nonce>,
    ) -> FencedWrite {
        let nonce = expect_next.unwrap_or(Nonce(0));
        let draft = self.sign(submitter, nonce, tx_id);
        let mut write = FencedWrite::new(lease);
        let cursor = |next| Cursor { next, ..Cursor::starting_at(Nonce(0), 1) };
        write.cursor(CursorWrite {
            before: expect_next.map(cursor),
            after: Cursor { in_flight: Some((tx_id, nonce)), ..cursor(nonce.next()) },
        });
        let tx_hash = Some(draft.tx_hash);
        let given = Move::new(tx_id, TxState::Queued, TxState::InFlight);
        write.change(Move { nonce: Some(nonce), tx_hash, sends: 1, ..given });
        write.record(tx_id, AttemptKind::Original, draft);
        write
    }

    /// Bytes that differ per intent.
    pub(super) fn sign(&self, submitter: usize, nonce: Nonce, tx_id: TxId) -> SignedDraft {
        let value = tx_id.0.as_u64_pair().1 % 1_000_000;
        let to = Address::repeat_byte(0x77);
        let signer = self.stack.submitter(submitter);
        let (tx_hash, raw) = signer.sign_transfer(self.stack.anvil().chain_id(), nonce.0, to, value);
        let (gas_limit, gas_price) = (U256::from(21_000), U256::exp10(11));
        let max_cost = gas_limit * gas_price + value;
        SignedDraft { nonce, raw, tx_hash, gas_limit, fees: Fees::Legacy { gas_price }, max_cost }
    }

    /// Sends, and confirms with the receipt of the chain.
    pub(super) async fn carry_to_the_end(&self, lease: &Lease, open: &OpenIntent) {
        let raw: &Bytes = open.attempts[0].raw();
        self.stack.anvil().rpc("eth_sendRawTransaction", json!([raw])).await;
        let receipt = eventually("it is mined", async || {
            self.stack.anvil().receipt(open.tx_hash).await.ok_or("not yet")
        })
        .await;
        let mut write = FencedWrite::new(lease);
        let done = Move { receipt: Some(receipt_of(&receipt)), ..keep(open, TxState::Confirmed) };
        write.change(done);
        write.sent(sent(open));
        self.must_apply(write).await;
    }

    /// All rows that a worker can write, as text.
    pub(super) async fn everything(&self) -> Vec<String> {
        sqlx::query_scalar(
            "SELECT 'lease ' || to_jsonb(t)::TEXT FROM submitter_lease t
             UNION ALL SELECT 'cursor ' || to_jsonb(t)::TEXT FROM submitter_nonce_cursor t
             UNION ALL SELECT 'intent ' || to_jsonb(t)::TEXT FROM managed_tx t
             UNION ALL SELECT 'attempt ' || to_jsonb(t)::TEXT FROM tx_attempt t
             UNION ALL SELECT 'external ' || to_jsonb(t)::TEXT FROM external_nonce t
             UNION ALL SELECT 'event ' || to_jsonb(t)::TEXT FROM outbox_event t
             UNION ALL SELECT 'logged event ' || to_jsonb(t)::TEXT FROM event_log t
             UNION ALL SELECT 'action ' || to_jsonb(t)::TEXT FROM audit_log t
             ORDER BY 1",
        )
        .fetch_all(self.stack.db())
        .await
        .unwrap()
    }

    pub(super) async fn close(self) {
        self.store.close().await;
        self.stack.finish().await;
    }
}

/// A transition that keeps nonce and hash.
pub(super) fn keep(open: &OpenIntent, to: TxState) -> Move {
    Move { nonce: Some(open.nonce), tx_hash: Some(open.tx_hash), ..Move::new(open.tx_id, open.state, to) }
}

pub(super) fn receipt_of(receipt: &Value) -> Receipt {
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

/// The node's response that it accepted the first attempt of an intent.
pub(super) fn sent(open: &OpenIntent) -> SentNote {
    let (tx_id, attempt_id) = (open.tx_id, open.attempts[0].id());
    SentNote { tx_id, attempt_id, outcome: Some("accepted"), answer: None, at: Instant::now(), sends: 1 }
}

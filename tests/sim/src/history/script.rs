//! Scripted histories, each for one case.

use std::time::Duration;

use gapless_worker::sim_driver::Next;

use super::op::Op;
use super::{History, STEPS};
use crate::clock;
use crate::process::{Process, Stepped};

impl History<'_> {
    /// Three are sent; an external transaction consumes the nonce of the first, and the other two become final.
    pub(crate) async fn lose_the_first_of_three(&mut self) {
        self.parts.config.nonce.max_in_flight = 3;
        self.processes[0] = Process::start('A', &self.parts);
        for _ in 0..3 {
            self.apply(Op::Submit).await;
        }
        self.apply(Op::Claim(0)).await;
        self.processes[0].poll_head(false).await;
        for _ in 0..STEPS {
            if !matches!(self.step(0, None).await, Stepped::To(Next::Again)) {
                break;
            }
        }
        assert_eq!(self.ledger().arrived().len(), 3, "all three are sent");
        self.apply_to_chain(Op::Outside);
        for _ in 0..5 {
            self.apply_to_chain(Op::Mine(10));
        }
    }

    /// The key was used before; the first request gets the next nonce, and a reorg removes the external transaction.
    pub(crate) async fn lose_what_others_did_before(&mut self) {
        self.apply_to_chain(Op::Outside);
        self.apply(Op::Submit).await;
        self.apply(Op::Claim(0)).await;
        self.processes[0].poll_head(false).await;
        while self.step(0, None).await == Stepped::To(Next::Again) {}
        assert_eq!(self.ledger().arrived().iter().map(|tx| tx.nonce).collect::<Vec<_>>(), [1]);
        self.apply_to_chain(Op::Reorg { depth: 1, keep: false });
    }

    /// A lane with a full mailbox misses the events of the block with its transaction and of its reorg. The clock is
    /// paused, so no timer helps. Returns the violations.
    pub(crate) async fn flood_the_mailbox(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        self.apply(Op::Submit).await;
        self.apply(Op::Claim(0)).await;
        self.processes[0].poll_head(false).await;
        self.step_on(0).await;
        assert_eq!(self.ledger().arrived().len(), 1, "it is sent");
        let mined = Op::Mine(10);
        let replaced = Op::Reorg { depth: 1, keep: false };
        for (op, expected) in [(mined, "TRACKING"), (replaced, "SUBMITTED"), (mined, "TRACKING")] {
            let waiting = self.processes[0].flood();
            if waiting > 1_000 {
                problems.push(format!("{waiting} events are queued for a lane that reads none"));
            }
            self.apply_to_chain(op);
            if matches!(op, Op::Reorg { .. }) {
                // A block counts as replaced only when another one exists at its height.
                (0..2).for_each(|_| self.apply_to_chain(Op::Mine(0)));
            }
            self.processes[0].poll_head(false).await;
            self.step_on(0).await;
            let state: String = sqlx::query_scalar("SELECT state FROM managed_tx WHERE chain_id = $1")
                .bind(self.key.chain_id.as_i64())
                .fetch_one(&self.context.db)
                .await
                .unwrap();
            if state != expected {
                problems.push(format!("after {op:?} it is {state}, expected {expected}"));
            }
        }
        problems
    }

    /// Steps until the lane needs an event.
    async fn step_on(&mut self, who: usize) {
        for _ in 0..STEPS {
            if !matches!(self.step(who, None).await, Stepped::To(Next::Again)) {
                break;
            }
        }
    }

    /// Ten minutes of node errors, with work before and during them. Returns intents that end, or wait without
    /// `waiting_node`.
    pub(crate) async fn outage(&mut self, with: &'static str) -> Vec<String> {
        let mut problems = Vec::new();
        self.apply(Op::Submit).await;
        self.apply(Op::Claim(0)).await;
        self.processes[0].poll_head(false).await;
        for ten_seconds in 0..60 {
            if ten_seconds == 1 {
                self.log_event(format!("`{with}` is rejected: rate limit exceeded"));
                self.ledger().outage = Some(with);
            }
            if ten_seconds == 1 || ten_seconds == 6 {
                self.apply(Op::Submit).await;
                self.processes[0].announce_work();
            }
            for _ in 0..4 {
                self.claim(0).await;
                self.apply_to_chain(Op::Mine(10));
                self.processes[0].poll_head(false).await;
                for _ in 0..STEPS {
                    let stepped = self.step(0, None).await;
                    if !matches!(stepped, Stepped::To(Next::Again) | Stepped::Stopped) {
                        break;
                    }
                }
                clock::advance(&self.context.db, Duration::from_millis(2_500)).await;
                self.renew(0).await;
            }
            if ten_seconds > 2 {
                problems.extend(self.silent().await);
            }
            if !problems.is_empty() {
                break;
            }
        }
        self.ledger().outage = None;
        problems
    }

    /// Intents that failed or were cancelled, and the oldest open one if its sub-state is not `waiting_node`.
    async fn silent(&self) -> Vec<String> {
        let rows: Vec<(String, String, Option<String>)> = sqlx::query_as(
            "SELECT tx_id::TEXT, state, sub_state FROM managed_tx
             WHERE chain_id = $1 AND state IN ('FAILED', 'CANCELLED') AND sub_state IS DISTINCT FROM 'reverted'
             UNION ALL
             SELECT tx_id::TEXT, state, sub_state
             FROM (SELECT * FROM managed_tx WHERE chain_id = $1 AND finished_at IS NULL ORDER BY seq LIMIT 1) oldest
             WHERE sub_state IS DISTINCT FROM 'waiting_node'",
        )
        .bind(self.key.chain_id.as_i64())
        .fetch_all(&self.context.db)
        .await
        .unwrap();
        rows.iter().map(|row| format!("during the node errors: {row:?}")).collect()
    }

    /// Transfers without an effect.
    pub(crate) async fn unconfirmed(&self) -> Vec<String> {
        let rows: Vec<(String, Option<String>, Option<String>)> = sqlx::query_as(
            "SELECT state, sub_state, last_error FROM managed_tx
             WHERE chain_id = $1 AND state <> 'CONFIRMED' AND sub_state IS DISTINCT FROM 'reverted'",
        )
        .bind(self.key.chain_id.as_i64())
        .fetch_all(&self.context.db)
        .await
        .unwrap();
        rows.iter().map(|row| format!("in the end: {row:?}")).collect()
    }
}

//! The way to the end, on which nothing bad happens any more.

use std::time::Duration;

use gapless::store::OperatorAction;
use gapless_worker::sim_driver::Next;

use super::clients::Pointer;
use super::op::Op;
use super::{History, STEPS};
use crate::sim::Sabotage;
use crate::sim::clock;
use crate::sim::process::{Process, Stepped};

/// Rounds on the way to the end: far more than the longest way takes.
const ROUNDS: u32 = 200;

impl History<'_> {
    /// Nothing bad happens any more. True: everything has ended.
    pub(in crate::sim) async fn drain(&mut self) -> bool {
        self.say("from here on all is well".to_owned());
        self.ledger().mend();
        self.features.is_varied = false;
        for round in 0..ROUNDS {
            // What a fleet does by the clock, and what its notifications may have failed to tell.
            if round % 4 == 0 {
                for who in 0..self.processes.len() {
                    self.renew(who).await;
                    self.processes[who].announce_work();
                    self.processes[who].announce_requests();
                }
                self.operate_if_needed(round).await;
                self.hear_all_callers().await;
            }
            if self.features.is_shared && round % 24 == 23 {
                self.submit_another().await;
            }
            if !self.processes.iter().any(Process::has_lane) {
                self.expire().await;
                self.claim(0).await;
            }
            for who in 0..self.processes.len() {
                self.processes[who].look(false).await;
                for _ in 0..STEPS {
                    let stepped = self.step(who, None).await;
                    if !matches!(stepped, Stepped::To(Next::Again) | Stepped::Stopped) {
                        break;
                    }
                }
            }
            self.befall_the_chain(Op::Mine(10));
            if round >= 2 && self.is_over().await {
                return true;
            }
            // Long pauses now and then: timers of a minute come to pass as well.
            let pause = if round % 8 == 7 { 61 } else { 2 };
            clock::advance(&self.bench.db, Duration::from_secs(pause)).await;
        }
        false
    }

    /// Only about a key that was used outside: everything else must come right without anybody.
    async fn operate_if_needed(&mut self, round: u32) {
        if !self.ledger().was_used_outside() && self.bench.sabotage != Sabotage::ForgedTaker {
            return;
        }
        match round % 16 {
            8 => self.operate(OperatorAction::Release, None).await,
            12 => self.operate(OperatorAction::Adopt, Some(Pointer::Right)).await,
            _ => self.operate(OperatorAction::Adopt, None).await,
        }
    }

    /// What a person wants to see of a history that does not end.
    pub(in crate::sim) async fn where_it_stands(&self) -> Vec<String> {
        sqlx::query_scalar(
            "SELECT 'the cursor: ' || to_jsonb(c)::TEXT FROM submitter_nonce_cursor c WHERE chain_id = $1
             UNION ALL
             (SELECT DISTINCT 'asked: ' || action || ', ' || coalesce(outcome, 'not answered') FROM audit_log
              WHERE chain_id = $1)
             UNION ALL
             SELECT concat_ws(' ', 'open:', value, state, sub_state, last_error)
             FROM (SELECT *, payload ->> 'value' AS value FROM managed_tx WHERE chain_id = $1 AND finished_at IS NULL) t",
        )
        .bind(self.key.chain_id.as_i64())
        .fetch_all(&self.bench.db)
        .await
        .unwrap()
    }

    /// For the log: how everything ended.
    pub(in crate::sim) async fn tell_ends(&self) {
        let lines: Vec<String> = sqlx::query_scalar(
            "(SELECT format('intent %s ends as %s (%s)', request_id, state, error ->> 'code') FROM managed_tx
              WHERE chain_id = $1 ORDER BY seq)
             UNION ALL
             (SELECT format('nonces %s to %s are left to others, as %s', first_nonce, last_nonce, cause)
              FROM foreign_nonce WHERE chain_id = $1 ORDER BY first_nonce, cause)
             UNION ALL
             -- Identifiers are not the same twice.
             (SELECT concat(action, ' with ', reason, ': ', regexp_replace(outcome, '[0-9a-f]{8}-[0-9a-f-]{27}', '…', 'g'))
              FROM audit_log WHERE chain_id = $1 ORDER BY audit_id)",
        )
        .bind(self.key.chain_id.as_i64())
        .fetch_all(&self.bench.db)
        .await
        .unwrap();
        lines.into_iter().for_each(|line| self.say(line));
    }

    async fn is_over(&self) -> bool {
        let open: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM managed_tx WHERE chain_id = $1 AND finished_at IS NULL)",
        )
        .bind(self.key.chain_id.as_i64())
        .fetch_one(&self.bench.db)
        .await
        .unwrap();
        !open
    }
}

//! The final phase, without faults.

use std::time::Duration;

use gapless_store::OperatorAction;
use gapless_worker::sim_driver::Next;

use super::clients::Pointer;
use super::op::Op;
use super::{History, STEPS};
use crate::Sabotage;
use crate::clock;
use crate::process::{Process, Stepped};

/// Maximum rounds: far more than any history needs.
const ROUNDS: u32 = 200;

impl History<'_> {
    /// Ends all faults and runs until everything is final. False: not within `ROUNDS`.
    pub(crate) async fn drain(&mut self) -> bool {
        self.log_event("no more faults".to_owned());
        self.ledger().clear_faults();
        self.features.is_varied = false;
        for round in 0..ROUNDS {
            // The periodic actions of a fleet, and what lost notifications would have announced.
            if round % 4 == 0 {
                for who in 0..self.processes.len() {
                    self.renew(who).await;
                    self.processes[who].announce_work();
                    self.processes[who].announce_requests();
                }
                self.operator_action_if_needed(round).await;
                self.poll_all_reservation_clients().await;
            }
            if self.features.is_shared && round % 24 == 23 {
                self.submit_another().await;
            }
            if !self.processes.iter().any(Process::has_lane) {
                self.expire().await;
                self.claim(0).await;
            }
            for who in 0..self.processes.len() {
                self.processes[who].poll_head(false).await;
                for _ in 0..STEPS {
                    let stepped = self.step(who, None).await;
                    if !matches!(stepped, Stepped::To(Next::Again) | Stepped::Stopped) {
                        break;
                    }
                }
            }
            self.apply_to_chain(Op::Mine(10));
            if round >= 2 && self.is_over().await {
                return true;
            }
            // Occasional long pauses, so that timers of a minute fire.
            let pause = if round % 8 == 7 { 61 } else { 2 };
            clock::advance(&self.context.db, Duration::from_secs(pause)).await;
        }
        false
    }

    /// Only if the key was used outside: everything else must end without an operator.
    async fn operator_action_if_needed(&mut self, round: u32) {
        if !self.ledger().was_used_outside() && self.context.sabotage != Sabotage::ForgedExternal {
            return;
        }
        match round % 16 {
            8 => self.operator_action(OperatorAction::Release, None).await,
            12 => self.operator_action(OperatorAction::Adopt, Some(Pointer::Right)).await,
            _ => self.operator_action(OperatorAction::Adopt, None).await,
        }
    }

    /// Diagnostics of a history that does not end.
    pub(crate) async fn open_state(&self) -> Vec<String> {
        sqlx::query_scalar(
            "SELECT 'the cursor: ' || to_jsonb(c)::TEXT FROM submitter_nonce_cursor c WHERE chain_id = $1
             UNION ALL
             (SELECT DISTINCT 'requested: ' || action || ', ' || coalesce(outcome, 'no outcome') FROM audit_log
              WHERE chain_id = $1)
             UNION ALL
             SELECT concat_ws(' ', 'open:', value, state, sub_state, last_error)
             FROM (SELECT *, payload ->> 'value' AS value FROM managed_tx WHERE chain_id = $1 AND finished_at IS NULL) t",
        )
        .bind(self.key.chain_id.as_i64())
        .fetch_all(&self.context.db)
        .await
        .unwrap()
    }

    /// Logs how everything ended.
    pub(crate) async fn log_ends(&self) {
        let lines: Vec<String> = sqlx::query_scalar(
            "(SELECT format('intent %s ends as %s (%s)', request_id, state, error ->> 'code') FROM managed_tx
              WHERE chain_id = $1 ORDER BY seq)
             UNION ALL
             (SELECT format('nonces %s to %s are consumed outside, as %s', first_nonce, last_nonce, cause)
              FROM external_nonce WHERE chain_id = $1 ORDER BY first_nonce, cause)
             UNION ALL
             -- Identifiers differ between runs.
             (SELECT concat(action, ' with ', reason, ': ', regexp_replace(outcome, '[0-9a-f]{8}-[0-9a-f-]{27}', '…', 'g'))
              FROM audit_log WHERE chain_id = $1 ORDER BY audit_id)",
        )
        .bind(self.key.chain_id.as_i64())
        .fetch_all(&self.context.db)
        .await
        .unwrap();
        lines.into_iter().for_each(|line| self.log_event(line));
    }

    async fn is_over(&self) -> bool {
        let open: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM managed_tx WHERE chain_id = $1 AND finished_at IS NULL)",
        )
        .bind(self.key.chain_id.as_i64())
        .fetch_one(&self.context.db)
        .await
        .unwrap();
        !open
    }
}

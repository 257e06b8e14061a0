//! Domain events for lasting conditions: the submitter is SUSPECT, or an open intent waits for a node. Start and end
//! are each reported with the commit that stores them, so the rows also show the next owner what was reported.

use gapless_domain::{ErrorCode, EventKind, SubState, TxError};
use gapless_store::OpenIntent;
use tokio::time::Instant;

use super::{Lane, OpenTx, StepError};
use crate::steps;

impl Lane {
    /// Called before a commit: adds the events for the conditions it changes.
    pub(super) fn report_alarms(&mut self) {
        self.report_suspicion();
        self.report_waiting_for_node();
    }

    fn report_suspicion(&mut self) {
        if !self.evidence_changed() {
            return;
        }
        match (&self.rows.stored_evidence.suspicion, self.key.evidence().suspicion.clone()) {
            (None, Some(reason)) => self.emit_event(None, EventKind::Suspect { reason }),
            (Some(_), None) => {
                let reason = "every consumed nonce is explained".to_owned();
                self.emit_event(None, EventKind::SuspectCleared { reason });
            }
            _ => {}
        }
    }

    fn report_waiting_for_node(&mut self) {
        let waits = self.first_waiting_for_node();
        let now = waits.map(|tx| tx.intent.tx_id);
        let reason = waits.and_then(|tx| tx.intent.last_error.as_ref()).map(|error| error.message.clone());
        if now == self.rows.reported_waiting {
            return;
        }
        if let Some(over) = self.rows.reported_waiting {
            let reason = "no longer waiting for a node".to_owned();
            self.emit_event(Some(over), EventKind::Unblocked { reason });
        }
        if let Some(tx_id) = now {
            let code = ErrorCode::NodeUnavailable;
            let reason = reason.unwrap_or_default();
            self.emit_event(Some(tx_id), EventKind::Blocked { waits_for: "node", code, reason });
        }
        self.rows.reported_waiting = now;
    }

    /// After loading: derives from the rows what was already reported.
    pub(super) fn restore_alarms(&mut self) {
        self.rows.reported_waiting = self.first_waiting_for_node().map(|tx| tx.intent.tx_id);
    }

    fn first_waiting_for_node(&self) -> Option<&OpenTx> {
        let waits = |tx: &&OpenTx| tx.intent.sub_state == Some(SubState::WaitingNode);
        self.rows.open.iter().filter(|tx| !tx.state().is_terminal()).find(waits)
    }

    /// A step failed before the rows were loaded: stores the wait reason of the oldest open intent and of the queue
    /// head.
    pub(super) async fn show_unread_waiting(&mut self, cause: &str) -> Result<(), StepError> {
        let rows = self.context.reader.lane(self.lease.key()).await?;
        if rows.paused || rows.cursor.is_some_and(|cursor| cursor.protect.is_some()) {
            return Ok(());
        }
        self.show_oldest_waiting(rows.open, cause).await?;
        steps::prepare::show_waiting_for_node(self, cause).await
    }

    /// The window is full, so the queue head waits for the window: stores the wait reason of the oldest open intent.
    /// Reloads the rows, because the state in memory was cleared.
    pub(super) async fn show_open_waiting(&mut self, cause: &str) -> Result<(), StepError> {
        let rows = self.context.reader.lane(self.lease.key()).await?;
        self.show_oldest_waiting(rows.open, cause).await
    }

    async fn show_oldest_waiting(&mut self, open: Vec<OpenIntent>, cause: &str) -> Result<(), StepError> {
        let now = Instant::now();
        self.rows.open = open.into_iter().map(|intent| OpenTx::loaded(intent, now)).collect();
        self.restore_alarms();
        let oldest = self.rows.open.iter_mut().find(|tx| !tx.state().is_terminal() && !tx.is_reserved());
        if let Some(oldest) = oldest.filter(|tx| tx.intent.sub_state.is_none()) {
            oldest.set_wait_reason(
                Some(SubState::WaitingNode),
                Some(TxError::new(ErrorCode::NodeUnavailable, cause)),
            );
            self.flush().await?;
        }
        self.clear_state();
        Ok(())
    }
}

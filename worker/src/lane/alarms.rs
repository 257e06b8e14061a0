//! Events of what lasts: that no nonces are given because one is not explained, and that what is on its way waits for a node. Each is told
//! in the commit that makes it true, and so is its end: what the rows say is what was told, and the next owner knows it.

use gapless::domain::{ErrorCode, EventKind, TxError};
use gapless::store::OpenIntent;
use tokio::time::Instant;

use super::{Lane, OpenTx, StepError};
use crate::steps;
use crate::steps::recover::WAITING_NODE;

impl Lane {
    /// Before a commit: what it changes is told with it.
    pub(super) fn tell_alarms(&mut self) {
        self.tell_suspicion();
        self.tell_waiting_for_node();
    }

    fn tell_suspicion(&mut self) {
        if !self.evidence_changed() {
            return;
        }
        match (&self.stored_evidence.suspicion, self.key.evidence.suspicion.clone()) {
            (None, Some(reason)) => self.tell(None, EventKind::Suspect { reason }),
            (Some(_), None) => {
                let reason = "every consumed nonce is explained".to_owned();
                self.tell(None, EventKind::SuspectCleared { reason });
            }
            _ => {}
        }
    }

    fn tell_waiting_for_node(&mut self) {
        let waits = self.first_waiting_for_node();
        let now = waits.map(|tx| tx.intent.tx_id);
        let reason = waits.and_then(|tx| tx.intent.last_error.as_ref()).map(|error| error.message.clone());
        if now == self.told_waiting {
            return;
        }
        if let Some(over) = self.told_waiting {
            let reason = "it waits for no node any more".to_owned();
            self.tell(Some(over), EventKind::Unblocked { reason });
        }
        if let Some(tx_id) = now {
            let code = ErrorCode::NodeUnavailable;
            let reason = reason.unwrap_or_default();
            self.tell(Some(tx_id), EventKind::Blocked { waits_for: "node", code, reason });
        }
        self.told_waiting = now;
    }

    /// The rows were read: they say what was told.
    pub(super) fn recall_alarms(&mut self) {
        self.told_waiting = self.first_waiting_for_node().map(|tx| tx.intent.tx_id);
    }

    fn first_waiting_for_node(&self) -> Option<&OpenTx> {
        let waits = |tx: &&OpenTx| tx.intent.sub_state.as_deref() == Some(WAITING_NODE);
        self.open.iter().filter(|tx| !tx.state().is_terminal()).find(waits)
    }

    /// A turn ended before the rows were read: whatever there is says why it does not move.
    pub(super) async fn show_unread_waiting(&mut self, cause: &str) -> Result<(), StepError> {
        let rows = self.context.reader.lane(self.lease.key()).await?;
        if rows.paused || rows.cursor.is_some_and(|cursor| cursor.protect.is_some()) {
            return Ok(());
        }
        self.show_oldest_waiting(rows.open, cause).await?;
        steps::prepare::show_waiting_for_node(self, cause).await
    }

    /// There is no room for another nonce, so that the queue has nothing to say: the oldest that is on its way says why it does not move.
    /// Read anew, because memory was forgotten.
    pub(super) async fn show_open_waiting(&mut self, cause: &str) -> Result<(), StepError> {
        let rows = self.context.reader.lane(self.lease.key()).await?;
        self.show_oldest_waiting(rows.open, cause).await
    }

    async fn show_oldest_waiting(&mut self, open: Vec<OpenIntent>, cause: &str) -> Result<(), StepError> {
        let now = Instant::now();
        self.open = open.into_iter().map(|intent| OpenTx::loaded(intent, now)).collect();
        self.recall_alarms();
        let oldest = self.open.iter_mut().find(|tx| !tx.state().is_terminal() && !tx.is_reserved());
        if let Some(oldest) = oldest.filter(|tx| tx.intent.sub_state.is_none()) {
            oldest.complain(Some(WAITING_NODE), Some(TxError::new(ErrorCode::NodeUnavailable, cause)));
            self.flush().await?;
        }
        self.forget_everything();
        Ok(())
    }
}

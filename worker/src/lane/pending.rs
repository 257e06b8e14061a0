//! What the next commit writes besides the changed rows: gathered by the steps, written by `flush`.

use gapless_domain::{Event, EventKind, SubmitterKey, TxId, U256};
use gapless_store::{AskedBy, DoneAction, ExternalNonces, Move, PolicyDecision, PolicyNote, SentNote};
use tokio::time::Instant;

/// A change of an intent that has no nonce, and the trace it belongs to.
#[derive(Clone, Debug)]
pub(crate) struct QueuedMove {
    pub(crate) change: Move,
    pub(crate) trace: Option<String>,
}

/// Dropped when the rows are read again: nothing of it is stored.
#[derive(Debug, Default)]
pub(crate) struct PendingWrite {
    pub(super) queued_moves: Vec<QueuedMove>,
    pub(super) sent_notes: Vec<SentNote>,
    pub(super) done_actions: Vec<DoneAction>,
    /// Requests that were read and take longer than one commit.
    pub(super) seen_requests: Vec<i64>,
    pub(super) policy_notes: Vec<PolicyNote>,
    /// Nonces of a shared key that others consumed.
    pub(super) external: Vec<ExternalNonces>,
    pub(super) events: Vec<Event>,
    /// New attempts whose hashes clients wait for.
    pub(super) awaited: usize,
    /// Since when changes wait that may be combined with others.
    pub(super) lazy_since: Option<Instant>,
}

impl PendingWrite {
    pub(crate) fn move_queued(&mut self, change: QueuedMove) {
        self.queued_moves.push(change);
    }

    /// An intent without a nonce was decided.
    pub(crate) fn moves_queued(&self) -> bool {
        !self.queued_moves.is_empty()
    }

    pub(crate) fn moves(&self, tx_id: TxId) -> bool {
        self.queued_moves.iter().any(|queued| queued.change.tx_id == tx_id)
    }

    /// A client waits for the hash of a new attempt.
    pub(crate) fn awaited(&mut self) {
        self.awaited += 1;
    }

    /// One note per attempt: another send before the commit is added to it.
    pub(crate) fn sent(&mut self, note: SentNote) {
        match self.sent_notes.iter_mut().find(|known| known.attempt_id == note.attempt_id) {
            Some(known) => {
                known.sends = known.sends.saturating_add(note.sends);
                known.at = note.at;
                if note.outcome.is_some() {
                    (known.outcome, known.answer) = (note.outcome, note.answer);
                }
            }
            None => self.sent_notes.push(note),
        }
    }

    /// A request of an operator or a client is finished.
    pub(crate) fn finish_request(&mut self, asked_by: AskedBy, outcome: Result<String, String>) {
        self.done_actions.push(DoneAction { asked_by, outcome });
    }

    pub(crate) fn finishes_requests(&self) -> bool {
        !self.done_actions.is_empty()
    }

    pub(crate) fn request_seen(&mut self, request_no: i64) {
        self.seen_requests.push(request_no);
    }

    pub(crate) fn policy(&mut self, notes: impl IntoIterator<Item = PolicyNote>) {
        self.policy_notes.extend(notes);
    }

    /// Values counted towards the cap of a day and not written yet.
    pub(crate) fn counted_values(&self) -> impl Iterator<Item = U256> {
        let counted = self.policy_notes.iter().filter(|note| note.decision == PolicyDecision::Counted);
        counted.map(|note| note.value)
    }

    pub(crate) fn external(&mut self, range: ExternalNonces) {
        self.external.push(range);
    }

    /// Published after the commit.
    pub(super) fn event(&mut self, submitter: SubmitterKey, tx_id: Option<TxId>, kind: EventKind) {
        let last = self.events.iter_mut().rev().find(|event| event.tx_id == tx_id);
        if last.is_some_and(|event| event.kind.absorb(&kind)) {
            return;
        }
        // Nothing follows the final event of an intent.
        let is_final = |event: &Event| tx_id.is_some() && event.tx_id == tx_id && event.kind.is_final();
        let place = self.events.iter().position(is_final).unwrap_or(self.events.len());
        self.events.insert(place, Event { submitter, tx_id, kind });
    }

    /// Something other than events and notes of sends: it must not wait.
    pub(super) fn is_urgent(&self) -> bool {
        self.moves_queued() || self.finishes_requests() || !self.policy_notes.is_empty()
    }

    /// After the commit: everything but the events and the decisions of the policy, which are published and logged first.
    pub(super) fn written(&mut self) {
        let PendingWrite { policy_notes, events, .. } = std::mem::take(self);
        *self = PendingWrite { policy_notes, events, ..PendingWrite::default() };
    }
}

#[cfg(test)]
mod tests {
    use gapless_domain::{Address, ChainId, ErrorCode, TxError, TxState};

    use super::*;

    #[test]
    fn nothing_follows_the_final_event_of_an_intent() {
        let submitter = SubmitterKey { chain_id: ChainId(1), address: Address::repeat_byte(1) };
        let (tx_id, other) = (Some(TxId::new()), Some(TxId::new()));
        let mut pending = PendingWrite::default();
        let error = TxError::new(ErrorCode::DeadlinePassed, "too late");
        let unblocked = || EventKind::Unblocked { reason: "cancelled".to_owned() };
        pending.event(submitter, tx_id, EventKind::ended(TxState::Cancelled, &error));
        pending.event(submitter, other, unblocked());
        pending.event(submitter, tx_id, unblocked());
        pending.event(submitter, None, unblocked());
        let order: Vec<_> = pending.events.iter().map(|event| (event.tx_id, event.kind.name())).collect();
        assert_eq!(
            order,
            [
                (tx_id, "submitter.unblocked"),
                (tx_id, "tx.cancelled"),
                (other, "submitter.unblocked"),
                (None, "submitter.unblocked"),
            ]
        );
    }
}

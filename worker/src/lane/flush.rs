//! Turns the changes in a lane's memory into one fenced write and commits it.

use gapless_domain::{TxId, TxState};
use gapless_store::{Cursor, CursorWrite, FencedWrite, MinedSend, Move, PolicyDecision, SentNote};
use gapless_telemetry::{metrics as m, step_span};
use tokio::time::Instant;
use tracing::Span;

use super::error::StepError;
use super::open::{OpenTx, ReservationChange};
use super::{LAZY, Lane, QueuedMove};
use crate::failpoint;
use crate::steps;
use crate::writer::WriteError;

impl Lane {
    /// Commits everything that differs from the rows, atomically.
    pub(crate) async fn flush(&mut self) -> Result<(), StepError> {
        self.update_in_flight();
        steps::replace::refuse_obsolete_requests(self);
        self.report_alarms();
        let write = self.to_write();
        self.pending.lazy_since = None;
        if write.is_empty() {
            self.publish();
            return Ok(());
        }
        let states: Vec<TxState> =
            self.rows.open.iter().filter(|tx| tx.is_dirty()).map(OpenTx::state).collect();
        if states.iter().any(|state| state.is_terminal()) {
            failpoint::hit("final");
        } else if states.contains(&TxState::Tracking) {
            failpoint::hit("included");
        }
        let drafted = self.rows.open.iter().any(|tx| tx.draft().is_some());
        let reservations: Vec<ReservationChange> =
            self.rows.open.iter().filter_map(OpenTx::reservation_change).collect();
        let (operation, critical) = (write.operation(), write.is_critical());
        let spans = self.commit_spans();
        let committed = self.context.writer.commit(write).await;
        if matches!(committed, Err(WriteError::Refused(_))) && self.pending.awaited > 0 {
            return Err(StepError::TooLate);
        }
        let mut attempts = committed?;
        drop(spans);
        if critical {
            self.log_write(operation);
        }
        self.count_ended();
        self.log_policy_refusals();
        for tx in self.rows.open.iter_mut().filter(|tx| tx.is_dirty()) {
            let (own, others) = attempts.into_iter().partition(|attempt| attempt.tx_id() == tx.intent.tx_id);
            attempts = others;
            let own: Vec<_> = own;
            tx.committed(own.into_iter());
        }
        self.rows.open.iter_mut().for_each(OpenTx::diagnosis_written);
        self.rows.stored_sequence = self.rows.sequence.clone();
        self.rows.stored_evidence = self.key.evidence().clone();
        self.pending.written();
        self.publish();
        self.drop_finished();
        if reservations.iter().any(|change| matches!(change, ReservationChange::Reserve(_))) {
            failpoint::hit("reserved");
        } else if reservations.iter().any(|change| matches!(change, ReservationChange::Recycle { .. })) {
            failpoint::hit("released");
        }
        if drafted {
            failpoint::hit("committed");
        } else if states.contains(&TxState::Tracking) {
            failpoint::hit("tracking");
        } else if states.contains(&TxState::Submitted) {
            failpoint::hit("submitted");
        }
        Ok(())
    }

    /// Commits if there are urgent changes, or if lazy ones have waited for `LAZY`.
    pub(super) async fn flush_if_due(&mut self) -> Result<(), StepError> {
        let urgent = self.rows.open.iter().any(OpenTx::is_urgent)
            || self.pending.is_urgent()
            || self.sequence_changed()
            || self.evidence_changed();
        if urgent {
            return self.flush().await;
        }
        if self.rows.open.iter().any(OpenTx::has_changes) || !self.pending.events.is_empty() {
            let since = *self.pending.lazy_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= LAZY {
                return self.flush().await;
            }
        }
        Ok(())
    }

    fn publish(&mut self) {
        for event in self.pending.events.drain(..) {
            self.context.events.publish(&event);
        }
    }

    fn sequence_changed(&mut self) -> bool {
        self.update_in_flight();
        self.rows.sequence != self.rows.stored_sequence
    }

    /// A bound that follows from this submitter's final transactions is derived from their rows and needs no write.
    pub(super) fn evidence_changed(&self) -> bool {
        let (now, stored) = (self.key.evidence(), &self.rows.stored_evidence);
        let counted = now.bounds.below != stored.bounds.below
            && now.bounds.below.is_some_and(|below| below.hash.is_some());
        let changed = now.suspicion != stored.suspicion || now.bounds.above != stored.bounds.above || counted;
        changed && self.rows.sequence.is_some()
    }

    fn to_write(&self) -> FencedWrite {
        let mut write = FencedWrite::new(&self.lease);
        write.awaited(self.pending.awaited);
        for tx in self.rows.open.iter().filter(|tx| tx.is_dirty()) {
            write.change(Move { mined_send: self.mined_send(tx), ..tx.to_move() });
            record(&mut write, tx);
            if tx.state() == TxState::Queued {
                write.displace(tx.intent.tx_id);
            }
        }
        for tx in &self.rows.open {
            if let Some(diagnosis) = tx.unwritten_diagnosis() {
                write.diagnosed(tx.intent.tx_id, diagnosis.clone());
            }
        }
        self.pending.queued_moves.iter().for_each(|queued| write.change(queued.change.clone()));
        let covered = |note: &&SentNote| self.rows.open.iter().any(|tx| goes_with_move(tx, note));
        self.pending
            .sent_notes
            .iter()
            .filter(|note| !covered(note))
            .for_each(|note| write.sent(note.clone()));
        self.pending.done_actions.iter().for_each(|action| write.action_done(action.clone()));
        self.pending.seen_requests.iter().for_each(|number| write.request_seen(*number));
        self.pending.external.iter().for_each(|range| write.external(*range));
        self.pending.policy_notes.iter().for_each(|note| write.policy(note.clone()));
        if self.evidence_changed() {
            write.evidence(self.key.evidence().clone());
        }
        if let Some(sequence) =
            self.rows.sequence.as_ref().filter(|_| self.rows.sequence != self.rows.stored_sequence)
        {
            write.cursor(CursorWrite { before: self.rows.stored_sequence.clone(), after: sequence.clone() });
        }
        // With a change always: the commit decides whether they are recorded. Alone only if they were, as far as known.
        if !write.is_empty() || self.context.recording.is_enabled() {
            self.pending.events.iter().for_each(|event| write.event(event.clone()));
        }
        write
    }

    /// The unrecorded send of the bytes that were mined: stored with the final move, without a row of its own.
    fn mined_send(&self, tx: &OpenTx) -> Option<MinedSend> {
        let note = self.pending.sent_notes.iter().find(|note| goes_with_move(tx, note))?;
        note.outcome.map(|class| MinedSend { class, at: note.at })
    }

    /// One span for each intent of the write: it is part of several traces.
    fn commit_spans(&self) -> Vec<Span> {
        let open = self.rows.open.iter().filter(|tx| tx.is_dirty());
        let open = open.map(|tx| (tx.intent.trace_context.as_deref(), tx.intent.tx_id, tx.state()));
        let queued = self.pending.queued_moves.iter();
        let queued = queued.map(|moved| (moved.trace.as_deref(), moved.change.tx_id, moved.change.to));
        let span = |(trace, tx_id, state): (Option<&str>, TxId, TxState)| {
            let span = step_span("commit", trace, &tx_id);
            span.record("state", state.as_str());
            span
        };
        open.chain(queued).map(span).filter(|span| !span.is_none()).collect()
    }

    /// Drops finished intents and displaced ones that are back in the queue.
    fn drop_finished(&mut self) {
        let (watcher, mailbox) = (&self.chain.watcher, &self.signals.mailbox);
        self.rows.open.retain(|tx| {
            let done = tx.state().is_terminal() || tx.state() == TxState::Queued;
            if done {
                watcher.forget(&tx.hashes(), mailbox);
            }
            !done
        });
    }

    /// Logs and counts policy refusals once they are stored.
    fn log_policy_refusals(&mut self) {
        for note in
            self.pending.policy_notes.drain(..).filter(|note| note.decision == PolicyDecision::Refused)
        {
            metrics::counter!(m::POLICY_REFUSED_TOTAL, "rule" => note.rule.as_str()).increment(1);
            tracing::warn!(tx.id = %note.tx_id, rule = note.rule.as_str(), value = %note.value,
                limit = note.limit.map(|limit| limit.to_string()), "refused by the submitter's policy");
        }
    }

    /// Counts final states once they are stored.
    fn count_ended(&self) {
        let open = self.rows.open.iter().filter(|tx| tx.is_dirty()).map(OpenTx::state);
        let queued = self.pending.queued_moves.iter().map(|queued| queued.change.to);
        for state in open.chain(queued) {
            let result = match state {
                TxState::Confirmed => "confirmed",
                TxState::Failed => "failed",
                TxState::Cancelled => "cancelled",
                _ => continue,
            };
            metrics::counter!(m::TX_FINAL_TOTAL, "result" => result).increment(1);
        }
    }

    /// One line per changed intent, and one for the sequence if no intent changed or its protection did.
    fn log_write(&self, operation: &'static str) {
        let protection =
            |sequence: &Option<Cursor>| sequence.as_ref().is_some_and(|one| one.protect.is_some());
        let protected = protection(&self.rows.sequence);
        let about_intents =
            self.pending.queued_moves.len() + self.rows.open.iter().filter(|tx| tx.is_dirty()).count();
        if about_intents == 0 || protected != protection(&self.rows.stored_sequence) {
            let oldest =
                self.rows.sequence.as_ref().and_then(|sequence| sequence.in_flight).map(|(tx_id, _)| tx_id);
            let state = match (protected, &self.key.evidence().suspicion) {
                (true, _) => "PROTECT",
                (false, Some(_)) => "SUSPECT",
                (false, None) => "ACTIVE",
            };
            tracing::info!(tx.id = oldest.map(tracing::field::display), state, operation, "committed");
        }
        for tx in self.rows.open.iter().filter(|tx| tx.is_dirty()) {
            tracing::info!(tx.id = %tx.intent.tx_id, nonce = tx.intent.nonce.0, tx.hash = ?tx.intent.tx_hash,
                state = tx.state().as_str(), operation, trace = tx.intent.trace_context.as_deref(), "committed");
        }
        for QueuedMove { change, trace } in &self.pending.queued_moves {
            tracing::info!(tx.id = %change.tx_id, state = change.to.as_str(), operation,
                reason = change.last_error.as_ref().map(|error| error.message.as_str()),
                code = change.last_error.as_ref().map(|error| error.code.as_str()), trace = trace.as_deref(),
                "committed");
        }
    }
}

/// Whether the note is of a single accepted send of the mined bytes. Only such a note fits into the move.
fn goes_with_move(tx: &OpenTx, note: &SentNote) -> bool {
    note.outcome.is_some() && note.answer.is_none() && note.sends == 1 && tx.ends_by(note.attempt_id)
}

/// Adds new attempts and reservation changes to the write. If an intent has both, they are written together.
fn record(write: &mut FencedWrite, tx: &OpenTx) {
    let tx_id = tx.intent.tx_id;
    match (tx.draft().cloned(), tx.reservation_change()) {
        (Some((_, placeholder)), Some(ReservationChange::Reserve(duration))) => {
            write.reserve(tx_id, placeholder, duration)
        }
        (Some((_, draft)), Some(ReservationChange::Use)) => {
            write.use_reservation(tx_id, draft, tx.intent.payload.clone())
        }
        (draft, change) => {
            if let Some((kind, draft)) = draft {
                write.record(tx_id, kind, draft);
            }
            match change {
                Some(ReservationChange::Recycle { unanswered }) => write.recycle(tx_id, unanswered),
                Some(ReservationChange::Note) => write.note_answer(tx_id),
                Some(ReservationChange::Reserve(_) | ReservationChange::Use) | None => {}
            }
        }
    }
}

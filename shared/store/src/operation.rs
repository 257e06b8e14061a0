//! A name for a fenced write, from a fixed list: a metric label and a log field. No logic depends on it.

use super::attempt::AttemptKind;
use super::fenced::FencedWrite;
use super::reservation_lane::ReservationChange;
use gapless_domain::{TxId, TxState};

impl FencedWrite {
    /// All names that `operation` returns.
    pub const OPERATIONS: [&str; 20] = [
        "protect",
        "release",
        "reserve",
        "prepare",
        "replace",
        "placeholder",
        "final",
        "included",
        "stuck",
        "displace",
        "send",
        "state",
        "reservation",
        "evidence",
        "external",
        "cursor",
        "request",
        "policy",
        "check",
        "note",
    ];

    /// A write may contain several changes; the most important one names it.
    pub fn operation(&self) -> &'static str {
        let records = |kind| self.attempts.iter().any(|attempt| attempt.kind == kind);
        let moves_to = |state| self.moves.iter().any(|change| change.to == state && change.from != state);
        let protection =
            self.cursor.as_ref().map(|cursor| (cursor.was_protected(), cursor.after.protect.is_some()));
        let reserves = |change: &ReservationChange| matches!(change, ReservationChange::Reserve { .. });
        if protection == Some((false, true)) {
            "protect"
        } else if protection == Some((true, false)) {
            "release"
        } else if self.reservations.iter().any(|write| reserves(&write.change)) {
            "reserve"
        } else if records(AttemptKind::Original) {
            "prepare"
        } else if records(AttemptKind::Replacement) {
            "replace"
        } else if records(AttemptKind::Placeholder) {
            "placeholder"
        } else if self.moves.iter().any(|change| change.to.is_terminal()) {
            "final"
        } else if moves_to(TxState::Tracking) {
            "included"
        } else if moves_to(TxState::Stuck) {
            "stuck"
        } else if !self.displaced.is_empty() {
            "displace"
        } else if self.moves.iter().any(|change| change.sends > 0) {
            "send"
        } else if !self.moves.is_empty() {
            "state"
        } else if !self.reservations.is_empty() {
            "reservation"
        } else if self.evidence.is_some() {
            "evidence"
        } else if !self.external.is_empty() {
            "external"
        } else if self.cursor.is_some() {
            "cursor"
        } else if !self.done_actions.is_empty() {
            "request"
        } else if !self.policy.is_empty() {
            "policy"
        } else if self.is_empty() {
            "check"
        } else {
            "note"
        }
    }

    /// Whether it changes a sequence, an intent or a request. Informational notes are not critical.
    pub fn is_critical(&self) -> bool {
        !matches!(self.operation(), "note" | "check")
    }

    /// The intents that it changes, without duplicates.
    pub fn tx_ids(&self) -> Vec<TxId> {
        let moved = self.moves.iter().map(|change| change.tx_id);
        let reserved = self.reservations.iter().map(|write| write.tx_id);
        let mut ids: Vec<TxId> = Vec::new();
        for id in moved.chain(reserved) {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_operations_is_complete() {
        let body = include_str!("operation.rs").split_once("pub fn operation").unwrap().1;
        let body = body.split_once("\n    }\n").unwrap().0;
        let returned: Vec<&str> = body.split('"').skip(1).step_by(2).collect();
        assert_eq!(returned, FencedWrite::OPERATIONS);
    }
}

//! Submitters in responses.

use chrono::{DateTime, Utc};
use gapless_store::{QUEUE_DEPTH_CAP, SubmitterStatus, SubmitterView};
use poem_openapi::types::Example;
use poem_openapi::{Enum, Object};

use super::tx::{EXAMPLE_SUBMITTER, example_time};
use super::waiting::{WaitReason, Waiting};
use gapless_domain::redact_nonces;

/// Whether a submitter accepts new transactions and sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum SubmitterState {
    /// Accepts and sends transactions.
    Active,
    /// No running worker serves its chain, or none has taken it. Accepts new transactions; `waiting` has the reason.
    Unserved,
    /// Its chain is halted: the nodes serve another one. Accepts new transactions but sends none; `waiting` has the reason.
    Halted,
    /// Accepts new transactions. The first in its queue cannot be sent: it waits for funds, fee, node or signer.
    Blocked,
    /// Accepts new transactions but sends none until it is resumed.
    Paused,
    /// A nonce was consumed by an unknown transaction. Accepts new transactions but sends none until it is found.
    Suspect,
    /// Its key was used externally. Refuses new transactions until an operator releases it.
    Protect,
}

/// A sending address on one chain.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none, example)]
pub(crate) struct Submitter {
    pub(crate) chain_id: u64,
    /// Lower case.
    pub(crate) address: String,
    /// The first that applies of `PROTECT`, `SUSPECT`, `PAUSED`, `UNSERVED`, `HALTED`, `BLOCKED`, `ACTIVE`. `UNSERVED`
    /// and `HALTED` are states of their own, because a client that reads `ACTIVE` expects progress.
    pub(crate) state: SubmitterState,
    /// What the head of its queue waits for, or what stops the submitter. Absent if it has nothing to do and nothing
    /// stops it.
    pub(crate) waiting: Option<Waiting>,
    /// Why it is paused.
    pub(crate) paused_reason: Option<String>,
    /// Why it is in PROTECT.
    pub(crate) protect_reason: Option<String>,
    /// Why it is in SUSPECT.
    pub(crate) suspect_reason: Option<String>,
    /// Since when it is in SUSPECT.
    pub(crate) suspect_since: Option<DateTime<Utc>>,
    /// What the first transaction in the queue waits for: `funds`, `fee`, `node` or `signer`.
    pub(crate) blocked_by: Option<String>,
    /// Error message for `blockedBy`.
    pub(crate) blocked_reason: Option<String>,
    /// Since when it is blocked.
    pub(crate) blocked_since: Option<DateTime<Utc>>,
    /// Queued transactions, counted up to 10,000.
    pub(crate) queue_depth: u64,
    /// True if the count stopped at the cap: there may be more.
    pub(crate) queue_depth_capped: bool,
    /// Age of the oldest queued transaction, in seconds.
    pub(crate) oldest_queued_age_seconds: Option<f64>,
    /// Transactions in flight.
    pub(crate) in_flight: u64,
    /// The submitter's own limit of transactions in flight. Absent: the configured default.
    pub(crate) max_in_flight: Option<u32>,
    /// Its key is also used externally (`nonce.strict.enabled = false`): nonces consumed externally are skipped.
    pub(crate) shared: bool,
    /// Its account has delegated code (EIP-7702), so only one transaction is in flight at a time.
    pub(crate) delegated: bool,
    /// Its nonces are reserved through the low-level hook only: it accepts no requests.
    pub(crate) low_level: bool,
    /// Type of its signer: `keystore`, `raw_key`, `json_rpc`, `clef`, `http`, `aws_kms` or `gcp_kms`.
    pub(crate) signer: String,
    /// Next nonce. For admins only.
    pub(crate) next_nonce: Option<u64>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) updated_at: DateTime<Utc>,
}

/// A page of submitters, by chain and address.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none, example)]
pub(crate) struct SubmitterPage {
    pub(crate) items: Vec<Submitter>,
    /// Pass as `cursor` to get the next page. Absent on the last page.
    pub(crate) next_cursor: Option<String>,
}

impl Submitter {
    pub(crate) fn new(view: SubmitterView, for_admin: bool) -> Submitter {
        let shown = |reason: String| if for_admin { reason } else { redact_nonces(&reason) };
        let state = match (&view.protect_reason, &view.suspect_reason, view.status) {
            (Some(_), _, _) => SubmitterState::Protect,
            (None, Some(_), _) => SubmitterState::Suspect,
            (None, None, SubmitterStatus::Paused) => SubmitterState::Paused,
            (None, None, SubmitterStatus::Active) if view.facts.is_unserved() => SubmitterState::Unserved,
            (None, None, SubmitterStatus::Active) if view.facts.halted.is_some() => SubmitterState::Halted,
            (None, None, SubmitterStatus::Active) if view.blocked.is_some() => SubmitterState::Blocked,
            (None, None, SubmitterStatus::Active) => SubmitterState::Active,
        };
        Submitter {
            chain_id: view.key.chain_id.0,
            address: view.key.address_text(),
            state,
            waiting: view.facts.head_waiting().map(|waiting| Waiting::new(waiting, for_admin)),
            paused_reason: view.status_reason,
            protect_reason: view.protect_reason.map(shown),
            suspect_reason: view.suspect_reason.map(shown),
            suspect_since: view.suspect_since,
            blocked_by: view.blocked.as_ref().map(|blocked| blocked.reason.as_str().to_owned()),
            blocked_since: view.blocked.as_ref().map(|blocked| blocked.since),
            blocked_reason: view.blocked.and_then(|blocked| blocked.error).map(shown),
            queue_depth: view.queue_depth,
            queue_depth_capped: view.queue_depth >= QUEUE_DEPTH_CAP,
            oldest_queued_age_seconds: view.oldest_queued_age_seconds,
            in_flight: view.in_flight,
            max_in_flight: view.max_in_flight,
            shared: view.shared,
            delegated: view.delegated,
            low_level: view.low_level,
            signer: view.signer,
            next_nonce: view.next_nonce.filter(|_| for_admin).map(|nonce| nonce.0),
            created_at: view.created_at,
            updated_at: view.updated_at,
        }
    }
}

impl Example for Submitter {
    fn example() -> Self {
        Submitter {
            chain_id: 31337,
            address: EXAMPLE_SUBMITTER.into(),
            state: SubmitterState::Active,
            waiting: Some(Waiting {
                reason: WaitReason::NextStep,
                since: example_time(0),
                message: "A worker takes it next.".into(),
            }),
            paused_reason: None,
            protect_reason: None,
            suspect_reason: None,
            suspect_since: None,
            blocked_by: None,
            blocked_reason: None,
            blocked_since: None,
            queue_depth: 2,
            queue_depth_capped: false,
            oldest_queued_age_seconds: Some(0.4),
            in_flight: 1,
            max_in_flight: None,
            shared: false,
            delegated: false,
            low_level: false,
            signer: "keystore".into(),
            next_nonce: None,
            created_at: example_time(0),
            updated_at: example_time(0),
        }
    }
}

impl Example for SubmitterPage {
    fn example() -> Self {
        SubmitterPage { items: vec![Submitter::example()], next_cursor: None }
    }
}

#[cfg(test)]
mod tests {
    use gapless_domain::waiting::{Condition, SubmitterFacts, Workers};
    use gapless_domain::{Address, ChainId, Nonce, SubmitterKey};
    use poem_openapi::types::ToJSON;

    use super::*;

    fn facts(protect: Option<&str>) -> SubmitterFacts {
        let since = DateTime::UNIX_EPOCH;
        SubmitterFacts {
            chain_id: ChainId(1),
            protect: protect.map(|text| Condition { since, text: Some(text.into()) }),
            paused: None,
            suspect: None,
            workers: Workers::Serve,
            halted: None,
            untaken: false,
            served_at: since,
            in_flight: 0,
            window_full: false,
            head: None,
            oldest_open: None,
            next_start: None,
        }
    }

    #[test]
    fn only_admins_see_nonces() {
        let facts = facts(Some("nonce 41 was used elsewhere"));
        let view = SubmitterView {
            key: SubmitterKey { chain_id: ChainId(1), address: Address::zero() },
            signer: "keystore".into(),
            status: SubmitterStatus::Active,
            status_reason: None,
            protect_reason: Some("nonce 41 was used elsewhere".into()),
            suspect_reason: Some("nonce 41 is not explained".into()),
            suspect_since: None,
            blocked: None,
            facts,
            queue_depth: 0,
            oldest_queued_age_seconds: None,
            in_flight: 0,
            max_in_flight: None,
            shared: false,
            delegated: false,
            low_level: false,
            next_nonce: Some(Nonce(41)),
            created_at: DateTime::UNIX_EPOCH,
            updated_at: DateTime::UNIX_EPOCH,
        };
        let public = Submitter::new(view.clone(), false).to_json_string();
        assert!(!public.contains("41") && !public.contains("nextNonce"), "{public}");
        let admin = Submitter::new(view, true).to_json_string();
        assert!(admin.contains("\"nextNonce\":41") && admin.contains("nonce 41"), "{admin}");
    }
}

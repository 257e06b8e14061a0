//! Mempool diagnosis of an unmined transaction.

use chrono::{DateTime, Utc};
use gapless_domain::mempool;
use gapless_store::DiagnosisView;
use poem_openapi::{Enum, Object};

/// Where an unmined transaction probably is. Informational: processing does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "snake_case")]
pub(crate) enum MempoolVerdict {
    /// At least one node has it in its mempool.
    InMempool,
    /// Every node responded and none has it.
    ProbablyLost,
    /// Another transaction of the submitter uses its nonce.
    ProbablyReplaced,
    /// The nodes' responses are incomplete or contradictory.
    Unknown,
}

/// The last mempool check.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct Mempool {
    pub(crate) verdict: MempoolVerdict,
    /// When the nodes were queried.
    pub(crate) at: DateTime<Utc>,
    /// `verdict` as text.
    pub(crate) explanation: String,
    /// Nodes that were queried.
    pub(crate) nodes_asked: u64,
    /// Nodes that responded.
    pub(crate) nodes_heard: u64,
    /// Nodes that have it in their mempool.
    pub(crate) nodes_with_it: u64,
    /// Every node that has it keeps it in its queued (non-executable) pool.
    pub(crate) queued: bool,
    /// Hash of the transaction that uses its nonce, if a node reports it.
    pub(crate) replaced_by: Option<String>,
}

impl From<DiagnosisView> for Mempool {
    fn from(view: DiagnosisView) -> Self {
        let DiagnosisView { at, diagnosis } = view;
        Mempool {
            verdict: match diagnosis.verdict {
                mempool::Verdict::InMempool => MempoolVerdict::InMempool,
                mempool::Verdict::ProbablyLost => MempoolVerdict::ProbablyLost,
                mempool::Verdict::ProbablyReplaced => MempoolVerdict::ProbablyReplaced,
                mempool::Verdict::Unknown => MempoolVerdict::Unknown,
            },
            at,
            explanation: diagnosis.explanation().to_owned(),
            nodes_asked: diagnosis.nodes_asked as u64,
            nodes_heard: diagnosis.nodes_heard as u64,
            nodes_with_it: diagnosis.nodes_with_it as u64,
            queued: diagnosis.queued,
            replaced_by: diagnosis.replaced_by.map(|hash| format!("{hash:#x}")),
        }
    }
}

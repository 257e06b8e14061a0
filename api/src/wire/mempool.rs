//! Where an unmined transaction seems to be, as clients see it.

use chrono::{DateTime, Utc};
use gapless::domain::mempool;
use gapless::store::DiagnosisView;
use poem_openapi::{Enum, Object};

/// Where an unmined transaction seems to be. Advice: it is worked on all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "snake_case")]
pub(crate) enum MempoolVerdict {
    /// A node has it in its pool.
    InMempool,
    /// Every node answered, and none knows it.
    ProbablyLost,
    /// Another transaction of the submitter has taken its place.
    ProbablyReplaced,
    /// The nodes give no clear picture.
    Unknown,
}

/// The last look into the pools of the nodes.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct Mempool {
    pub(crate) verdict: MempoolVerdict,
    /// When the nodes were asked.
    pub(crate) at: DateTime<Utc>,
    /// The verdict in words.
    pub(crate) explanation: String,
    pub(crate) nodes_asked: u64,
    /// Nodes that answered.
    pub(crate) nodes_heard: u64,
    /// Nodes that have it in their pool.
    pub(crate) nodes_with_it: u64,
    /// Every node that has it holds it back.
    pub(crate) queued: bool,
    /// The hash that has taken its place, where a node shows that.
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

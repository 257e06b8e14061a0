//! Diagnoses where an unmined transaction is, from the nodes' mempools. For operators and clients only: no action
//! depends on it.

use serde::{Deserialize, Serialize};

use super::{H256, Nonce};

/// One node's view of a sender, read in one batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolView {
    /// The requested hashes that it knows.
    pub known: Vec<KnownTx>,
    /// The sender's transaction count at `latest`.
    pub mined_count: u64,
    /// The sender's transaction count at `pending`: includes pooled transactions up to the first gap.
    pub pending_count: u64,
    /// The sender's transactions in its pool. `None`: the node does not offer this.
    pub pool: Option<Vec<PooledTx>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownTx {
    pub hash: H256,
    pub in_block: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PooledTx {
    pub nonce: Nonce,
    pub hash: H256,
    /// Queued, usually because a lower nonce is missing in this pool.
    pub queued: bool,
}

/// The views of all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSurvey {
    /// Number of nodes queried.
    pub asked: usize,
    /// The views of the nodes that answered.
    pub views: Vec<PoolView>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A node has it in its pool.
    InMempool,
    /// Every node answered, and none has it.
    ProbablyLost,
    /// Another transaction of the sender has its nonce, in a pool or in a block.
    ProbablyReplaced,
    /// A node shows it in a block, a node contradicts itself, or a node that may have it did not answer.
    Unknown,
}

impl Verdict {
    pub const ALL: [Verdict; 4] =
        [Verdict::InMempool, Verdict::ProbablyLost, Verdict::ProbablyReplaced, Verdict::Unknown];

    /// The value in logs, metrics and rows.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::InMempool => "in_mempool",
            Verdict::ProbablyLost => "probably_lost",
            Verdict::ProbablyReplaced => "probably_replaced",
            Verdict::Unknown => "unknown",
        }
    }
}

/// The result and its evidence. Contains no nonce, because clients see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    pub verdict: Verdict,
    pub nodes_asked: usize,
    pub nodes_heard: usize,
    /// Nodes with one of its attempts in their pool.
    pub nodes_with_it: usize,
    /// Every node that has it keeps it queued, usually because a lower nonce is missing there.
    pub queued: bool,
    /// A node already shows it in a block.
    pub in_block: bool,
    /// The transaction that has its nonce instead, if a node shows it.
    pub replaced_by: Option<H256>,
}

impl Diagnosis {
    /// A readable description.
    pub fn explanation(&self) -> &'static str {
        match self.verdict {
            Verdict::InMempool if self.queued => {
                "queued in a node's mempool, usually because a lower nonce is missing there"
            }
            Verdict::InMempool => "in a node's mempool",
            Verdict::ProbablyLost => "in no node's mempool; it will be sent again",
            Verdict::ProbablyReplaced => {
                "another transaction of this submitter has its nonce; the key may be in use elsewhere"
            }
            Verdict::Unknown if self.in_block => "a node already shows it in a block",
            Verdict::Unknown if self.nodes_heard < self.nodes_asked => {
                "not found on the nodes that answered; not every node answered"
            }
            Verdict::Unknown => "the nodes' answers are contradictory",
        }
    }
}

/// Where one node sees the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    InBlock,
    Pooled { queued: bool },
    Other(Option<H256>),
    Contradiction,
    Absent,
}

/// Diagnoses one intent from its nonce and the hashes of all its attempts.
pub fn diagnose(nonce: Nonce, hashes: &[H256], survey: &PoolSurvey) -> Diagnosis {
    let places: Vec<Place> = survey.views.iter().map(|view| place_of(nonce, hashes, view)).collect();
    let nodes_with_it = places.iter().filter(|place| matches!(place, Place::Pooled { .. })).count();
    let seen = |wanted: fn(&Place) -> bool| places.iter().any(wanted);
    let in_block = seen(|place| *place == Place::InBlock);
    let verdict = if in_block {
        Verdict::Unknown
    } else if nodes_with_it > 0 {
        Verdict::InMempool
    } else if seen(|place| matches!(place, Place::Other(_))) {
        Verdict::ProbablyReplaced
    } else if places.is_empty() || places.len() < survey.asked || places.contains(&Place::Contradiction) {
        Verdict::Unknown
    } else {
        Verdict::ProbablyLost
    };
    Diagnosis {
        verdict,
        nodes_asked: survey.asked,
        nodes_heard: places.len(),
        nodes_with_it,
        queued: nodes_with_it > 0 && !places.contains(&Place::Pooled { queued: false }),
        in_block,
        replaced_by: places.iter().find_map(|place| match place {
            Place::Other(hash) => *hash,
            _ => None,
        }),
    }
}

/// The pool's own list is the best evidence. A known hash may be stale, and the counts do not show which transactions
/// are counted.
fn place_of(nonce: Nonce, hashes: &[H256], view: &PoolView) -> Place {
    let known: Vec<&KnownTx> = view.known.iter().filter(|known| hashes.contains(&known.hash)).collect();
    if known.iter().any(|known| known.in_block) {
        return Place::InBlock;
    }
    let pooled = view.pool.iter().flatten().filter(|pooled| pooled.nonce == nonce);
    // Ours first: a pool may list a nonce twice during a replacement.
    if let Some(at_nonce) = pooled.min_by_key(|pooled| !hashes.contains(&pooled.hash)) {
        return match hashes.contains(&at_nonce.hash) {
            true => Place::Pooled { queued: at_nonce.queued },
            false => Place::Other(Some(at_nonce.hash)),
        };
    }
    let consumed = view.mined_count > nonce.0;
    let others_wait = view.known.iter().any(|known| !known.in_block && !hashes.contains(&known.hash));
    match (known.is_empty(), consumed) {
        (false, false) => Place::Pooled { queued: false },
        (false, true) => Place::Contradiction,
        (true, true) => Place::Other(None),
        // Some nodes count beyond a gap, so the pool's list is preferred if there is one. The count may also include
        // the sender's other pending intents.
        (true, false) if view.pool.is_none() && !others_wait && view.pending_count > nonce.0 => {
            Place::Other(None)
        }
        (true, false) => Place::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: H256 = H256::repeat_byte(1);
    const EARLIER: H256 = H256::repeat_byte(2);
    const EXTERNAL: H256 = H256::repeat_byte(9);
    const NONCE: Nonce = Nonce(7);

    /// A node at which the sender's next nonce is ours, and nothing is pending.
    fn empty() -> PoolView {
        PoolView { mined_count: 7, pending_count: 7, ..PoolView::default() }
    }

    fn knows(hash: H256, in_block: bool) -> PoolView {
        PoolView { known: vec![KnownTx { hash, in_block }], ..empty() }
    }

    fn pools(pooled: &[(u64, H256, bool)]) -> PoolView {
        let pooled = pooled.iter().map(|(nonce, hash, queued)| PooledTx {
            nonce: Nonce(*nonce),
            hash: *hash,
            queued: *queued,
        });
        PoolView { pool: Some(pooled.collect()), ..empty() }
    }

    fn diagnosed(asked: usize, views: &[PoolView]) -> Diagnosis {
        diagnose(NONCE, &[EARLIER, OURS], &PoolSurvey { asked, views: views.to_vec() })
    }

    #[test]
    fn a_known_hash_of_any_attempt_is_in_the_mempool() {
        for hash in [OURS, EARLIER] {
            let found = diagnosed(1, &[knows(hash, false)]);
            assert_eq!((found.verdict, found.nodes_with_it, found.queued), (Verdict::InMempool, 1, false));
        }
        // One node that has it outweighs one that does not, one that shows another, and one that does not answer.
        let found = diagnosed(4, &[empty(), pools(&[(7, EXTERNAL, false)]), knows(OURS, false)]);
        assert_eq!((found.verdict, found.nodes_heard), (Verdict::InMempool, 3));
        assert_eq!(found.replaced_by, Some(EXTERNAL), "reported as well");
    }

    #[test]
    fn a_queued_transaction_is_reported() {
        let queued = pools(&[(7, OURS, true), (8, EXTERNAL, true)]);
        let found = diagnosed(1, std::slice::from_ref(&queued));
        assert_eq!((found.verdict, found.queued), (Verdict::InMempool, true));
        let found = diagnosed(2, &[queued, knows(OURS, false)]);
        assert!(!found.queued, "another node does not queue it");
    }

    #[test]
    fn probably_lost_requires_an_answer_of_every_node() {
        assert_eq!(diagnosed(1, &[empty()]).verdict, Verdict::ProbablyLost);
        assert_eq!(diagnosed(2, &[empty(), pools(&[(8, EXTERNAL, true)])]).verdict, Verdict::ProbablyLost);
        assert_eq!(diagnosed(2, &[empty()]).verdict, Verdict::Unknown);
        assert_eq!(diagnosed(1, &[]).verdict, Verdict::Unknown);
        assert_eq!(diagnosed(0, &[]).verdict, Verdict::Unknown);
        let counted = PoolView { pending_count: 9, ..pools(&[(8, EXTERNAL, false)]) };
        assert_eq!(
            diagnosed(1, &[counted]).verdict,
            Verdict::ProbablyLost,
            "the list is preferred to the count"
        );
        let next_waits = PoolView { pending_count: 9, ..knows(H256::repeat_byte(8), false) };
        assert_eq!(diagnosed(1, &[next_waits]).verdict, Verdict::ProbablyLost, "our own next one is counted");
    }

    #[test]
    fn another_hash_at_its_nonce_has_replaced_it() {
        let found = diagnosed(1, &[pools(&[(7, EXTERNAL, false)])]);
        assert_eq!((found.verdict, found.replaced_by), (Verdict::ProbablyReplaced, Some(EXTERNAL)));
        // A node that still knows the hash, but whose pool has another.
        let remembers = PoolView { known: knows(OURS, false).known, ..pools(&[(7, EXTERNAL, false)]) };
        assert_eq!(diagnosed(1, &[remembers]).verdict, Verdict::ProbablyReplaced);
        // No list: our nonce is counted, and not because of our transaction.
        let pending = PoolView { pending_count: 8, ..empty() };
        assert_eq!(diagnosed(2, &[empty(), pending]).verdict, Verdict::ProbablyReplaced);
        let mined = PoolView { mined_count: 8, pending_count: 8, ..pools(&[]) };
        let found = diagnosed(1, &[mined]);
        assert_eq!((found.verdict, found.replaced_by), (Verdict::ProbablyReplaced, None));
    }

    #[test]
    fn a_node_ahead_of_us_or_contradicting_itself_gives_unknown() {
        let mined = PoolView { mined_count: 8, pending_count: 8, ..knows(OURS, true) };
        let found = diagnosed(2, &[empty(), mined]);
        assert_eq!((found.verdict, found.in_block), (Verdict::Unknown, true));
        let contradictory = PoolView { mined_count: 8, pending_count: 8, ..knows(OURS, false) };
        assert_eq!(diagnosed(1, &[contradictory]).verdict, Verdict::Unknown);
    }

    #[test]
    fn a_stored_diagnosis_has_the_documented_json() {
        let found = diagnosed(2, &[pools(&[(7, EXTERNAL, false)]), empty()]);
        let json = serde_json::to_value(&found).unwrap();
        let expected = serde_json::json!({
            "verdict": "probably_replaced", "nodesAsked": 2, "nodesHeard": 2, "nodesWithIt": 0, "queued": false,
            "inBlock": false, "replacedBy": format!("{EXTERNAL:#x}"),
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<Diagnosis>(json).unwrap(), found);
        assert_eq!(serde_json::to_value(found.verdict).unwrap(), found.verdict.as_str());
    }
}

//! Where an unmined transaction seems to be, judged by what the nodes show of their pools. Advice for people: nothing is
//! ever done because of it.

use serde::{Deserialize, Serialize};

use super::{H256, Nonce};

/// What one node shows of a sender, asked in one go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolView {
    /// Those of the hashes asked for that it knows.
    pub known: Vec<KnownTx>,
    /// Transactions of the sender in the chain.
    pub mined_count: u64,
    /// The same with those that wait in the pool without a gap.
    pub pending_count: u64,
    /// What its pool holds of the sender. `None`: the node does not show that.
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
    /// Held back, mostly because a lower nonce is missing there.
    pub queued: bool,
}

/// What all nodes show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSurvey {
    /// Nodes that were asked.
    pub asked: usize,
    /// Of those that answered.
    pub views: Vec<PoolView>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A node has it in its pool.
    InMempool,
    /// Every node answered, and none knows it.
    ProbablyLost,
    /// Another transaction of the sender has its nonce, in a pool or in a block.
    ProbablyReplaced,
    /// A node shows it in a block, nodes contradict themselves, or one that may know it did not answer.
    Unknown,
}

impl Verdict {
    /// The name in logs, metrics and rows.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::InMempool => "in_mempool",
            Verdict::ProbablyLost => "probably_lost",
            Verdict::ProbablyReplaced => "probably_replaced",
            Verdict::Unknown => "unknown",
        }
    }
}

/// The verdict and what it rests on. Names no nonce: clients see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    pub verdict: Verdict,
    pub nodes_asked: usize,
    pub nodes_heard: usize,
    /// Nodes with one of its attempts in their pool.
    pub nodes_with_it: usize,
    /// A node that has it holds it back, mostly because a lower nonce is missing there.
    pub queued: bool,
    /// A node shows it in a block already.
    pub in_block: bool,
    /// What has its nonce instead, where a node shows that.
    pub replaced_by: Option<H256>,
}

impl Diagnosis {
    /// In words, for people.
    pub fn explanation(&self) -> &'static str {
        match self.verdict {
            Verdict::InMempool if self.queued => {
                "a node has it and holds it back: mostly a lower nonce is missing there"
            }
            Verdict::InMempool => "a node has it in its pool",
            Verdict::ProbablyLost => "no node knows it; it will be sent again",
            Verdict::ProbablyReplaced => {
                "another transaction of this submitter has its nonce; was the key used elsewhere?"
            }
            Verdict::Unknown if self.in_block => "a node shows it in a block already",
            Verdict::Unknown if self.nodes_heard < self.nodes_asked => {
                "no node that answered knows it, but not every node answered"
            }
            Verdict::Unknown => "what the nodes show does not fit together",
        }
    }
}

/// Where one node sees the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    InBlock,
    Pooled { queued: bool },
    Other(Option<H256>),
    Contradiction,
    Absent,
}

/// Judges one intent by its nonce and the hashes of all its attempts.
pub fn diagnose(nonce: Nonce, hashes: &[H256], survey: &PoolSurvey) -> Diagnosis {
    let sights: Vec<Sight> = survey.views.iter().map(|view| sight(nonce, hashes, view)).collect();
    let nodes_with_it = sights.iter().filter(|sight| matches!(sight, Sight::Pooled { .. })).count();
    let seen = |wanted: fn(&Sight) -> bool| sights.iter().any(wanted);
    let in_block = seen(|sight| *sight == Sight::InBlock);
    let verdict = if in_block {
        Verdict::Unknown
    } else if nodes_with_it > 0 {
        Verdict::InMempool
    } else if seen(|sight| matches!(sight, Sight::Other(_))) {
        Verdict::ProbablyReplaced
    } else if sights.is_empty() || sights.len() < survey.asked || sights.contains(&Sight::Contradiction) {
        Verdict::Unknown
    } else {
        Verdict::ProbablyLost
    };
    Diagnosis {
        verdict,
        nodes_asked: survey.asked,
        nodes_heard: sights.len(),
        nodes_with_it,
        queued: nodes_with_it > 0 && !sights.contains(&Sight::Pooled { queued: false }),
        in_block,
        replaced_by: sights.iter().find_map(|sight| match sight {
            Sight::Other(hash) => *hash,
            _ => None,
        }),
    }
}

/// The pool's own list counts most. A hash that is merely known may be a memory of the node, and the counts say nothing
/// of who is counted.
fn sight(nonce: Nonce, hashes: &[H256], view: &PoolView) -> Sight {
    let known: Vec<&KnownTx> = view.known.iter().filter(|known| hashes.contains(&known.hash)).collect();
    if known.iter().any(|known| known.in_block) {
        return Sight::InBlock;
    }
    let pooled = view.pool.iter().flatten().filter(|pooled| pooled.nonce == nonce);
    // Ours first: a pool may show a nonce twice while it replaces one by the other.
    if let Some(at_nonce) = pooled.min_by_key(|pooled| !hashes.contains(&pooled.hash)) {
        return match hashes.contains(&at_nonce.hash) {
            true => Sight::Pooled { queued: at_nonce.queued },
            false => Sight::Other(Some(at_nonce.hash)),
        };
    }
    let consumed = view.mined_count > nonce.0;
    let others_wait = view.known.iter().any(|known| !known.in_block && !hashes.contains(&known.hash));
    match (known.is_empty(), consumed) {
        (false, false) => Sight::Pooled { queued: false },
        (false, true) => Sight::Contradiction,
        (true, true) => Sight::Other(None),
        // Some nodes count beyond a gap. The list of the pool, where there is one, knows better; and what waits of the
        // sender's other intents may be what is counted.
        (true, false) if view.pool.is_none() && !others_wait && view.pending_count > nonce.0 => {
            Sight::Other(None)
        }
        (true, false) => Sight::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: H256 = H256::repeat_byte(1);
    const EARLIER: H256 = H256::repeat_byte(2);
    const STRANGE: H256 = H256::repeat_byte(9);
    const NONCE: Nonce = Nonce(7);

    /// A node at which the sender's next nonce is ours, and nothing waits.
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

    fn judged(asked: usize, views: &[PoolView]) -> Diagnosis {
        diagnose(NONCE, &[EARLIER, OURS], &PoolSurvey { asked, views: views.to_vec() })
    }

    #[test]
    fn a_known_hash_of_any_attempt_is_in_the_mempool() {
        for hash in [OURS, EARLIER] {
            let found = judged(1, &[knows(hash, false)]);
            assert_eq!((found.verdict, found.nodes_with_it, found.queued), (Verdict::InMempool, 1, false));
        }
        // One node that has it outweighs one that does not, one that shows another, and one that is silent.
        let found = judged(4, &[empty(), pools(&[(7, STRANGE, false)]), knows(OURS, false)]);
        assert_eq!((found.verdict, found.nodes_heard), (Verdict::InMempool, 3));
        assert_eq!(found.replaced_by, Some(STRANGE), "said all the same");
    }

    #[test]
    fn what_a_pool_holds_back_is_said() {
        let queued = pools(&[(7, OURS, true), (8, STRANGE, true)]);
        let found = judged(1, std::slice::from_ref(&queued));
        assert_eq!((found.verdict, found.queued), (Verdict::InMempool, true));
        let found = judged(2, &[queued, knows(OURS, false)]);
        assert!(!found.queued, "another node does not hold it back");
    }

    #[test]
    fn nobody_knows_it_must_be_everybody_s_word() {
        assert_eq!(judged(1, &[empty()]).verdict, Verdict::ProbablyLost);
        assert_eq!(judged(2, &[empty(), pools(&[(8, STRANGE, true)])]).verdict, Verdict::ProbablyLost);
        assert_eq!(judged(2, &[empty()]).verdict, Verdict::Unknown);
        assert_eq!(judged(1, &[]).verdict, Verdict::Unknown);
        assert_eq!(judged(0, &[]).verdict, Verdict::Unknown);
        let counted = PoolView { pending_count: 9, ..pools(&[(8, STRANGE, false)]) };
        assert_eq!(
            judged(1, &[counted]).verdict,
            Verdict::ProbablyLost,
            "the list knows better than the count"
        );
        let next_waits = PoolView { pending_count: 9, ..knows(H256::repeat_byte(8), false) };
        assert_eq!(judged(1, &[next_waits]).verdict, Verdict::ProbablyLost, "our own next one is counted");
    }

    #[test]
    fn another_hash_at_its_nonce_has_replaced_it() {
        let found = judged(1, &[pools(&[(7, STRANGE, false)])]);
        assert_eq!((found.verdict, found.replaced_by), (Verdict::ProbablyReplaced, Some(STRANGE)));
        // A node that remembers the hash, but whose pool holds another.
        let remembers = PoolView { known: knows(OURS, false).known, ..pools(&[(7, STRANGE, false)]) };
        assert_eq!(judged(1, &[remembers]).verdict, Verdict::ProbablyReplaced);
        // No list: somebody is counted at our nonce, and it is none of ours.
        let pending = PoolView { pending_count: 8, ..empty() };
        assert_eq!(judged(2, &[empty(), pending]).verdict, Verdict::ProbablyReplaced);
        let mined = PoolView { mined_count: 8, pending_count: 8, ..pools(&[]) };
        let found = judged(1, &[mined]);
        assert_eq!((found.verdict, found.replaced_by), (Verdict::ProbablyReplaced, None));
    }

    #[test]
    fn a_node_ahead_of_us_or_at_odds_with_itself_is_no_reason_for_advice() {
        let mined = PoolView { mined_count: 8, pending_count: 8, ..knows(OURS, true) };
        let found = judged(2, &[empty(), mined]);
        assert_eq!((found.verdict, found.in_block), (Verdict::Unknown, true));
        let torn = PoolView { mined_count: 8, pending_count: 8, ..knows(OURS, false) };
        assert_eq!(judged(1, &[torn]).verdict, Verdict::Unknown);
    }

    #[test]
    fn a_stored_diagnosis_has_the_shape_that_is_documented() {
        let found = judged(2, &[pools(&[(7, STRANGE, false)]), empty()]);
        let json = serde_json::to_value(&found).unwrap();
        let expected = serde_json::json!({
            "verdict": "probably_replaced", "nodesAsked": 2, "nodesHeard": 2, "nodesWithIt": 0, "queued": false,
            "inBlock": false, "replacedBy": format!("{STRANGE:#x}"),
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<Diagnosis>(json).unwrap(), found);
        assert_eq!(serde_json::to_value(found.verdict).unwrap(), found.verdict.as_str());
    }
}

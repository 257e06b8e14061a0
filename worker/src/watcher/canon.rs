//! The most recent part of the canonical chain. No I/O: takes blocks, returns what changed.

use std::collections::VecDeque;

use gapless_domain::{BlockRef, H256};

#[derive(Debug)]
pub(crate) struct Canon {
    blocks: VecDeque<BlockRef>,
    retain: usize,
}

/// What a new branch changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Grew,
    /// Blocks from this height on were replaced.
    Forked {
        from: u64,
    },
}

impl Canon {
    pub(crate) fn new(retain: usize) -> Self {
        Canon { blocks: VecDeque::new(), retain: retain.max(1) }
    }

    pub(crate) fn head(&self) -> Option<BlockRef> {
        self.blocks.back().copied()
    }

    /// All retained blocks, oldest first.
    pub(crate) fn all(&self) -> Vec<BlockRef> {
        self.blocks.iter().copied().collect()
    }

    pub(crate) fn hash_at(&self, number: u64) -> Option<H256> {
        let first = self.blocks.front()?.number;
        let index = usize::try_from(number.checked_sub(first)?).ok()?;
        self.blocks.get(index).map(|block| block.hash)
    }

    /// Whether `block` is already part of the chain, for example the head of a lagging node.
    pub(crate) fn contains(&self, block: &BlockRef) -> bool {
        self.hash_at(block.number) == Some(block.hash)
    }

    /// Whether the parent of `block` is part of the chain.
    pub(crate) fn attaches(&self, block: &BlockRef) -> bool {
        block.number.checked_sub(1).is_some_and(|below| self.hash_at(below) == Some(block.parent))
    }

    /// Whether the block is no longer canonical; `None` if it is below the retained window.
    pub(crate) fn has_replaced(&self, number: u64, hash: H256) -> Option<bool> {
        if number < self.blocks.front()?.number {
            return None;
        }
        Some(self.hash_at(number) != Some(hash))
    }

    /// Canonical blocks from a height on, at most `max`.
    pub(crate) fn from(&self, number: u64, max: u64) -> Vec<BlockRef> {
        let Some(first) = self.blocks.front().map(|block| block.number).filter(|first| *first <= number)
        else {
            return Vec::new();
        };
        let [skip, take] = [number - first, max].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        self.blocks.iter().skip(skip).take(take).copied().collect()
    }

    /// Appends a contiguous branch that attaches to the chain, and removes the blocks it replaces.
    pub(crate) fn graft(&mut self, branch: &[BlockRef]) -> Change {
        let Some(root) = branch.first() else { return Change::Grew };
        let mut replaced = None;
        while let Some(block) = self.blocks.pop_back_if(|block| block.number >= root.number) {
            replaced = Some(block.number);
        }
        self.blocks.extend(branch);
        while self.blocks.len() > self.retain {
            self.blocks.pop_front();
        }
        replaced.map_or(Change::Grew, |from| Change::Forked { from })
    }

    /// Replaces everything with a contiguous part of the chain, when the distance to it is too long to walk.
    pub(crate) fn restart(&mut self, piece: &[BlockRef]) {
        self.blocks.clear();
        self.blocks.extend(&piece[piece.len().saturating_sub(self.retain)..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64, tag: u64, parent_tag: u64) -> BlockRef {
        let hash =
            |number: u64, tag: u64| H256::from_low_u64_be(number.wrapping_mul(1_000).wrapping_add(tag));
        BlockRef { number, hash: hash(number, tag), parent: hash(number.wrapping_sub(1), parent_tag) }
    }

    fn canon(upto: u64) -> Canon {
        let mut canon = Canon::new(8);
        canon.restart(&[block(0, 0, 0)]);
        for number in 1..=upto {
            assert!(canon.attaches(&block(number, 0, 0)));
            assert_eq!(canon.graft(&[block(number, 0, 0)]), Change::Grew);
        }
        canon
    }

    #[test]
    fn the_head_of_a_lagging_node_is_contained() {
        assert!(canon(5).contains(&block(3, 0, 0)));
        assert!(!canon(5).contains(&block(3, 1, 0)));
    }

    #[test]
    fn a_fork_replaces_blocks_from_its_root_on() {
        let mut canon = canon(5);
        let branch = [block(4, 1, 0), block(5, 1, 1), block(6, 1, 1)];
        assert!(canon.attaches(&branch[0]));
        assert_eq!(canon.graft(&branch), Change::Forked { from: 4 });
        assert_eq!(canon.hash_at(5), Some(branch[1].hash));
        assert_eq!(canon.head(), Some(branch[2]));
        assert_eq!(canon.hash_at(3), Some(block(3, 0, 0).hash));
    }

    #[test]
    fn a_shorter_fork_leaves_no_orphans_above_it() {
        let mut canon = canon(5);
        canon.graft(&[block(4, 1, 0)]);
        assert_eq!(canon.hash_at(5), None);
    }

    #[test]
    fn a_fork_from_below_the_window_is_a_fork() {
        let mut canon = Canon::new(8);
        canon.restart(&[block(5, 0, 0)]);
        assert_eq!(canon.graft(&[block(4, 1, 1), block(5, 1, 1)]), Change::Forked { from: 5 });
    }

    #[test]
    fn has_replaced_is_unknown_below_the_window() {
        let canon = canon(20);
        let replaced = |number, tag| canon.has_replaced(number, block(number, tag, 0).hash);
        assert_eq!(replaced(12, 0), None);
        assert_eq!((replaced(13, 0), replaced(13, 1)), (Some(false), Some(true)));
        assert_eq!(replaced(21, 0), Some(true), "the chain got shorter than that");
        assert_eq!(Canon::new(8).has_replaced(1, H256::zero()), None);
    }

    #[test]
    fn from_starts_at_the_height_or_is_empty() {
        let numbers =
            |number, max| canon(20).from(number, max).iter().map(|block| block.number).collect::<Vec<_>>();
        assert_eq!(numbers(17, 3), [17, 18, 19]);
        assert_eq!(numbers(19, 9), [19, 20]);
        assert!(numbers(21, 9).is_empty() && numbers(12, 9).is_empty());
    }

    #[test]
    fn the_window_is_bounded() {
        let canon = canon(20);
        assert_eq!(canon.hash_at(12), None);
        assert!(canon.hash_at(13).is_some());
    }
}

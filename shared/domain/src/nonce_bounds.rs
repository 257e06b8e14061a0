//! The range of blocks in which a nonce was consumed, derived from the sender's transaction counts at single blocks.
//!
//! A count always belongs to one block, identified by its hash: `latest` differs from node to node.

use ethers_core::types::H256;

use super::ids::Nonce;

/// The sender's transaction count at a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountAt {
    pub block: u64,
    pub hash: H256,
    pub count: u64,
}

/// A block at which a nonce was not consumed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Below {
    pub block: u64,
    /// `None`: the block was final when recorded and needs no reorg check.
    pub hash: Option<H256>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NonceBounds {
    /// The last known block at which the oldest open nonce was not consumed.
    pub below: Option<Below>,
    /// The first known block at which an unexplained nonce was consumed.
    pub above: Option<CountAt>,
}

impl NonceBounds {
    /// Records that our own transaction is final in this block and no earlier nonce is open. Later nonces were not
    /// consumed before it.
    pub fn own_final(&mut self, block: u64) {
        if let Some(block) = block.checked_sub(1)
            && self.below.is_none_or(|below| below.block < block)
        {
            self.below = Some(Below { block, hash: None });
        }
    }

    /// Records the count at a canonical block. `oldest` is the oldest unexplained nonce, or `next`, the first
    /// unassigned one, if there is none.
    pub fn counted(&mut self, at: CountAt, oldest: Nonce, next: Nonce) {
        if at.count <= oldest.0 {
            if self.below.is_none_or(|below| below.block <= at.block) {
                self.below = Some(Below { block: at.block, hash: Some(at.hash) });
            }
            self.above = None;
            return;
        }
        // Keep the earliest block that covers `oldest` and every other nonce consumed by now, or more nonces than were
        // ever assigned.
        let is_sufficient =
            |above: CountAt| above.count > oldest.0 && (above.count > next.0 || above.count >= at.count);
        if !self.above.is_some_and(is_sufficient) {
            self.above = Some(at);
        }
    }

    /// Drops bounds whose blocks were replaced by a reorg.
    pub fn forget_replaced(&mut self, is_replaced: impl Fn(u64, H256) -> bool) {
        self.above = self.above.filter(|above| !is_replaced(above.block, above.hash));
        self.below =
            self.below.filter(|below| !below.hash.is_some_and(|hash| is_replaced(below.block, hash)));
    }

    /// First and last block of the range in which `nonce` was consumed. `None`: a bound is missing.
    pub fn range(&self, nonce: Nonce) -> Option<(u64, u64)> {
        let above = self.above.filter(|above| above.count > nonce.0)?;
        let first = self.below?.block.checked_add(1)?;
        (first <= above.block).then_some((first, above.block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(block: u64, count: u64) -> CountAt {
        CountAt { block, hash: H256::from_low_u64_be(block), count }
    }

    #[test]
    fn a_consumed_nonce_lies_between_the_last_count_without_it_and_the_first_with_it() {
        let mut bounds = NonceBounds::default();
        bounds.counted(at(10, 5), Nonce(5), Nonce(6));
        assert_eq!(bounds.range(Nonce(5)), None);
        bounds.counted(at(20, 6), Nonce(5), Nonce(6));
        bounds.counted(at(30, 6), Nonce(5), Nonce(6));
        assert_eq!(bounds.range(Nonce(5)), Some((11, 20)), "the first block that counts it is retained");
        assert_eq!(bounds.range(Nonce(6)), None, "there is no evidence that this one was consumed");
    }

    /// Found by a chaos run: the second nonce that external transactions consumed in an open window was never
    /// explained, and adoption was refused forever.
    #[test]
    fn a_later_consumed_nonce_has_a_bound_too() {
        let mut bounds = NonceBounds::default();
        bounds.counted(at(10, 5), Nonce(5), Nonce(9));
        bounds.counted(at(20, 6), Nonce(5), Nonce(9));
        assert_eq!(bounds.range(Nonce(6)), None);
        bounds.counted(at(30, 7), Nonce(5), Nonce(9));
        bounds.counted(at(40, 7), Nonce(5), Nonce(9));
        assert_eq!(bounds.range(Nonce(6)), Some((11, 30)), "the first block that counts both is retained");
        assert_eq!(bounds.range(Nonce(5)), Some((11, 30)));
        bounds.counted(at(50, 10), Nonce(5), Nonce(9));
        bounds.counted(at(60, 12), Nonce(5), Nonce(9));
        assert_eq!(bounds.above.map(|above| above.block), Some(50), "more than was assigned is sufficient");
    }

    #[test]
    fn an_own_final_transaction_is_a_bound() {
        let mut bounds = NonceBounds::default();
        bounds.own_final(0);
        assert_eq!(bounds.below, None);
        bounds.own_final(8);
        bounds.own_final(4);
        assert_eq!(bounds.below, Some(Below { block: 7, hash: None }), "the highest is retained");
        bounds.counted(at(9, 2), Nonce(1), Nonce(2));
        assert_eq!(bounds.range(Nonce(1)), Some((8, 9)), "its own block may contain the next one, too");
    }

    #[test]
    fn the_first_count_above_all_assigned_nonces_is_retained() {
        let mut bounds = NonceBounds::default();
        bounds.counted(at(10, 4), Nonce(3), Nonce(6));
        bounds.counted(at(12, 8), Nonce(3), Nonce(6));
        assert_eq!(bounds.above, Some(at(12, 8)));
        bounds.counted(at(14, 9), Nonce(3), Nonce(6));
        assert_eq!(bounds.above, Some(at(12, 8)), "the earlier one is sufficient");
    }

    #[test]
    fn bounds_of_replaced_blocks_are_dropped() {
        let mut bounds = NonceBounds::default();
        bounds.counted(at(10, 5), Nonce(5), Nonce(6));
        bounds.counted(at(20, 6), Nonce(5), Nonce(6));
        let mut same = bounds;
        same.forget_replaced(|_, _| false);
        assert_eq!(same, bounds);
        bounds.forget_replaced(|block, _| block == 20);
        assert_eq!((bounds.above, bounds.below.map(|below| below.block)), (None, Some(10)));
        bounds.forget_replaced(|_, _| true);
        assert_eq!(bounds, NonceBounds::default());
        bounds.own_final(8);
        bounds.forget_replaced(|_, _| true);
        assert!(bounds.below.is_some(), "a final bound is retained");
    }

    #[test]
    fn a_lower_count_after_a_reorg_clears_the_upper_bound() {
        let mut bounds = NonceBounds::default();
        bounds.counted(at(20, 6), Nonce(5), Nonce(6));
        bounds.counted(at(21, 5), Nonce(5), Nonce(6));
        assert_eq!(bounds.above, None);
    }
}

//! Between which blocks a nonce was consumed, from the counts of a sender's transactions at single blocks.
//!
//! Counts are always those of one block, named by its hash: `latest` is whatever the node that answers has.

use ethers_core::types::H256;

use super::ids::Nonce;

/// What the chain counted at a block.
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
    /// `None`: it was final when it was noted, and needs no check.
    pub hash: Option<H256>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NonceBounds {
    /// The last known block at which the chain counted no more than the oldest open nonce.
    pub below: Option<Below>,
    /// The first known block at which it counted more than is explained.
    pub above: Option<CountAt>,
}

impl NonceBounds {
    /// A transaction of the sender is final in this block, and no earlier nonce is open. Later nonces were not consumed before it.
    pub fn own_final(&mut self, block: u64) {
        if let Some(block) = block.checked_sub(1)
            && self.below.is_none_or(|below| below.block < block)
        {
            self.below = Some(Below { block, hash: None });
        }
    }

    /// The chain was asked at a canonical block. `oldest` is the oldest nonce that nothing explains, or `next`, the first
    /// that was not given.
    pub fn counted(&mut self, at: CountAt, oldest: Nonce, next: Nonce) {
        if at.count <= oldest.0 {
            if self.below.is_none_or(|below| below.block <= at.block) {
                self.below = Some(Below { block: at.block, hash: Some(at.hash) });
            }
            self.above = None;
            return;
        }
        // The earliest is the best, as long as it says what is needed: that `oldest` was consumed and every other that is
        // consumed by now, or that more was consumed than was ever given.
        let says_enough =
            |above: CountAt| above.count > oldest.0 && (above.count > next.0 || above.count >= at.count);
        if !self.above.is_some_and(says_enough) {
            self.above = Some(at);
        }
    }

    /// Drops what rests on blocks that lost their place.
    pub fn forget_replaced(&mut self, is_replaced: impl Fn(u64, H256) -> bool) {
        self.above = self.above.filter(|above| !is_replaced(above.block, above.hash));
        self.below =
            self.below.filter(|below| !below.hash.is_some_and(|hash| is_replaced(below.block, hash)));
    }

    /// The blocks one of which consumed `nonce`: the first and the last. `None`: one of the bounds is missing.
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
        assert_eq!(bounds.range(Nonce(5)), Some((11, 20)), "the first block that counts it is kept");
        assert_eq!(bounds.range(Nonce(6)), None, "nothing says that this one was consumed");
    }

    /// Found by the chaos run: the second nonce that others took from an open window was never explained, and adoption refused for ever.
    #[test]
    fn a_later_nonce_that_is_consumed_as_well_has_its_bound_too() {
        let mut bounds = NonceBounds::default();
        bounds.counted(at(10, 5), Nonce(5), Nonce(9));
        bounds.counted(at(20, 6), Nonce(5), Nonce(9));
        assert_eq!(bounds.range(Nonce(6)), None);
        bounds.counted(at(30, 7), Nonce(5), Nonce(9));
        bounds.counted(at(40, 7), Nonce(5), Nonce(9));
        assert_eq!(bounds.range(Nonce(6)), Some((11, 30)), "the first block that counts both is kept");
        assert_eq!(bounds.range(Nonce(5)), Some((11, 30)));
        bounds.counted(at(50, 10), Nonce(5), Nonce(9));
        bounds.counted(at(60, 12), Nonce(5), Nonce(9));
        assert_eq!(bounds.above.map(|above| above.block), Some(50), "more than was given is enough");
    }

    #[test]
    fn an_own_final_transaction_is_a_bound() {
        let mut bounds = NonceBounds::default();
        bounds.own_final(0);
        assert_eq!(bounds.below, None);
        bounds.own_final(8);
        bounds.own_final(4);
        assert_eq!(bounds.below, Some(Below { block: 7, hash: None }), "the highest is kept");
        bounds.counted(at(9, 2), Nonce(1), Nonce(2));
        assert_eq!(bounds.range(Nonce(1)), Some((8, 9)), "its own block may hold the next one, too");
    }

    #[test]
    fn a_count_beyond_all_that_was_given_is_kept_when_it_is_seen() {
        let mut bounds = NonceBounds::default();
        bounds.counted(at(10, 4), Nonce(3), Nonce(6));
        bounds.counted(at(12, 8), Nonce(3), Nonce(6));
        assert_eq!(bounds.above, Some(at(12, 8)));
        bounds.counted(at(14, 9), Nonce(3), Nonce(6));
        assert_eq!(bounds.above, Some(at(12, 8)), "it says enough already");
    }

    #[test]
    fn what_rests_on_a_replaced_block_is_dropped() {
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
        assert!(bounds.below.is_some(), "what was final stays");
    }

    #[test]
    fn a_chain_that_takes_it_back_leaves_nothing_above() {
        let mut bounds = NonceBounds::default();
        bounds.counted(at(20, 6), Nonce(5), Nonce(6));
        bounds.counted(at(21, 5), Nonce(5), Nonce(6));
        assert_eq!(bounds.above, None);
    }
}

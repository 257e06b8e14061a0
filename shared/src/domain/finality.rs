//! When a block counts as final: at a depth of our own choosing, or when the chain itself says so.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

/// Confirmations that are listed for one transaction at the most, where no depth bounds them.
pub const MOST_LISTED: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finality {
    /// So many blocks, the transaction's own included.
    Blocks(u64),
    /// The chain's `safe` block and what is below it.
    Safe,
    /// The chain's `finalized` block and what is below it.
    Finalized,
}

impl Finality {
    pub fn blocks(self) -> Option<u64> {
        match self {
            Finality::Blocks(blocks) => Some(blocks),
            Finality::Safe | Finality::Finalized => None,
        }
    }

    /// How many of the blocks that confirm a transaction are worth listing: beyond what is required none are news.
    pub fn listed(self) -> u64 {
        self.blocks().unwrap_or(MOST_LISTED).clamp(1, MOST_LISTED)
    }
}

impl fmt::Display for Finality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finality::Blocks(blocks) => blocks.fmt(f),
            Finality::Safe => f.write_str("safe"),
            Finality::Finalized => f.write_str("finalized"),
        }
    }
}

impl FromStr for Finality {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "safe" => Ok(Finality::Safe),
            "finalized" => Ok(Finality::Finalized),
            _ => text
                .parse()
                .map(Finality::Blocks)
                .map_err(|_| format!("`{text}` is neither a number of blocks nor `safe` or `finalized`")),
        }
    }
}

/// A number, one of the two words, or a number as text.
impl<'de> Deserialize<'de> for Finality {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrWord;

        impl Visitor<'_> for NumberOrWord {
            type Value = Finality;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of blocks, \"safe\" or \"finalized\"")
            }

            fn visit_u64<E>(self, blocks: u64) -> Result<Finality, E> {
                Ok(Finality::Blocks(blocks))
            }

            fn visit_i64<E: Error>(self, blocks: i64) -> Result<Finality, E> {
                u64::try_from(blocks)
                    .map(Finality::Blocks)
                    .map_err(|_| E::custom(format!("{blocks} is no number of blocks")))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Finality, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(NumberOrWord)
    }
}

/// A block that confirms a transaction, as consumers are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Confirmation {
    pub number: u64,
    pub hash: super::H256,
}

/// What made an intent final, as it was counted then. Kept with the intent: blocks are kept for a while only, and settings change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinalConfirmations {
    /// The rule that was met.
    pub rule: Finality,
    /// Blocks from the transaction's own to the head of that moment.
    pub count: u64,
    /// The chain's `safe` or `finalized` block of that moment; `None` where the rule is a depth.
    pub final_block: Option<u64>,
    /// The blocks counted, the transaction's own first: at most `rule.listed()`, and fewer if no node showed them.
    pub blocks: Vec<Confirmation>,
}

impl FinalConfirmations {
    /// Nothing that was counted is missing from the list, but for what is beyond its limit.
    pub fn is_whole(&self) -> bool {
        self.blocks.len() as u64 >= self.count.min(self.rule.listed())
    }
}

/// What a consumer who was told `before` has to hear to know `now`.
///
/// The first notice, and any in which a hash has changed, is the full list, with the order to replace (`true`). Growth is
/// only what is new, with the order to append (`false`). `None`: nothing has changed.
pub fn confirmations_news(
    before: &[Confirmation],
    now: &[Confirmation],
) -> Option<(Vec<Confirmation>, bool)> {
    if before == now {
        return None;
    }
    match now.strip_prefix(before) {
        Some(delta) if !before.is_empty() => Some((delta.to_vec(), false)),
        _ => Some((now.to_vec(), true)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::H256;

    fn blocks(hashes: &[u64]) -> Vec<Confirmation> {
        let block = |(index, hash): (usize, &u64)| Confirmation {
            number: 7 + index as u64,
            hash: H256::from_low_u64_be(*hash),
        };
        hashes.iter().enumerate().map(block).collect()
    }

    #[test]
    fn a_number_or_one_of_two_words() {
        let read = |json: &str| serde_json::from_str::<Finality>(json);
        assert_eq!(read("20").unwrap(), Finality::Blocks(20));
        assert_eq!(read("\"20\"").unwrap(), Finality::Blocks(20));
        assert_eq!(read("\"safe\"").unwrap(), Finality::Safe);
        assert_eq!(read("\"finalized\"").unwrap(), Finality::Finalized);
        for wrong in ["-1", "1.5", "\"soon\"", "true", "\"latest\""] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_are_bounded() {
        assert_eq!(Finality::Blocks(20).listed(), 20);
        assert_eq!(Finality::Blocks(1_000).listed(), MOST_LISTED);
        assert_eq!(Finality::Safe.listed(), MOST_LISTED);
        let counted = |rule, count, listed: &[u64]| {
            FinalConfirmations { rule, count, final_block: None, blocks: blocks(listed) }.is_whole()
        };
        assert!(counted(Finality::Blocks(3), 3, &[1, 2, 3]) && counted(Finality::Blocks(3), 9, &[1, 2, 3]));
        assert!(!counted(Finality::Blocks(3), 3, &[1, 2]) && !counted(Finality::Safe, 70, &[1, 2, 3]));
        assert!(counted(Finality::Safe, 2, &[1, 2]));
    }

    #[test]
    fn the_first_notice_and_any_changed_hash_replace_and_growth_appends() {
        let one = blocks(&[1]);
        assert_eq!(confirmations_news(&[], &one), Some((one.clone(), true)));
        assert_eq!(confirmations_news(&one, &one), None);
        let three = blocks(&[1, 2, 3]);
        assert_eq!(confirmations_news(&one, &three), Some((three[1..].to_vec(), false)));
        // The newest changed, an older one changed, the chain got shorter, the transaction is in no block any more.
        for forked in [blocks(&[1, 2, 9]), blocks(&[8, 2, 3, 4]), blocks(&[1, 2]), vec![]] {
            assert_eq!(confirmations_news(&three, &forked), Some((forked.clone(), true)));
        }
        assert_eq!(confirmations_news(&[], &[]), None);
    }
}

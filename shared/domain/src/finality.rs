//! When a block counts as final: at a configured depth, or by the chain's `safe` or `finalized` tag.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

/// Maximum number of confirming blocks listed for one transaction.
pub const MAX_LISTED: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finality {
    /// This many blocks, including the transaction's own.
    Blocks(u64),
    /// At or below the chain's `safe` block.
    Safe,
    /// At or below the chain's `finalized` block.
    Finalized,
}

impl Finality {
    pub fn blocks(self) -> Option<u64> {
        match self {
            Finality::Blocks(blocks) => Some(blocks),
            Finality::Safe | Finality::Finalized => None,
        }
    }

    /// How many confirming blocks are listed: no more than the required depth.
    pub fn listed(self) -> u64 {
        self.blocks().unwrap_or(MAX_LISTED).clamp(1, MAX_LISTED)
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
                .map_err(|_| format!("`{text}` is not a number of blocks, `safe` or `finalized`")),
        }
    }
}

/// A number, `safe`, `finalized`, or a number as a string.
impl<'de> Deserialize<'de> for Finality {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrTag;

        impl Visitor<'_> for NumberOrTag {
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
                    .map_err(|_| E::custom(format!("{blocks} is not a number of blocks")))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Finality, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(NumberOrTag)
    }
}

/// A block that confirms a transaction, as published in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Confirmation {
    pub number: u64,
    pub hash: super::H256,
}

/// The confirmations that made an intent final. Stored with the intent, because blocks are retained only for a while
/// and settings change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinalConfirmations {
    /// The rule that was met.
    pub rule: Finality,
    /// Blocks from the transaction's own to the head at that time.
    pub count: u64,
    /// The chain's `safe` or `finalized` block at that time; `None` if the rule is a depth.
    pub final_block: Option<u64>,
    /// The counted blocks, the transaction's own first: at most `rule.listed()`, fewer if no node returned them.
    pub blocks: Vec<Confirmation>,
}

impl FinalConfirmations {
    /// Whether the list contains every counted block, up to its limit.
    pub fn is_complete(&self) -> bool {
        self.blocks.len() as u64 >= self.count.min(self.rule.listed())
    }
}

/// The update from the published list `before` to `now`; `None` if nothing changed.
///
/// The first update, and any in which a hash has changed, is the full list with `true` (replace). If the list only
/// grew, it is the new blocks with `false` (append).
pub fn confirmations_delta(
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
    use crate::H256;

    fn blocks(hashes: &[u64]) -> Vec<Confirmation> {
        let block = |(index, hash): (usize, &u64)| Confirmation {
            number: 7 + index as u64,
            hash: H256::from_low_u64_be(*hash),
        };
        hashes.iter().enumerate().map(block).collect()
    }

    #[test]
    fn a_number_or_a_tag_is_parsed() {
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
        assert_eq!(Finality::Blocks(1_000).listed(), MAX_LISTED);
        assert_eq!(Finality::Safe.listed(), MAX_LISTED);
        let counted = |rule, count, listed: &[u64]| {
            FinalConfirmations { rule, count, final_block: None, blocks: blocks(listed) }.is_complete()
        };
        assert!(counted(Finality::Blocks(3), 3, &[1, 2, 3]) && counted(Finality::Blocks(3), 9, &[1, 2, 3]));
        assert!(!counted(Finality::Blocks(3), 3, &[1, 2]) && !counted(Finality::Safe, 70, &[1, 2, 3]));
        assert!(counted(Finality::Safe, 2, &[1, 2]));
    }

    #[test]
    fn the_first_update_and_any_changed_hash_replace_and_growth_appends() {
        let one = blocks(&[1]);
        assert_eq!(confirmations_delta(&[], &one), Some((one.clone(), true)));
        assert_eq!(confirmations_delta(&one, &one), None);
        let three = blocks(&[1, 2, 3]);
        assert_eq!(confirmations_delta(&one, &three), Some((three[1..].to_vec(), false)));
        // The newest changed, an older one changed, the chain got shorter, the transaction is no longer in a block.
        for forked in [blocks(&[1, 2, 9]), blocks(&[8, 2, 3, 4]), blocks(&[1, 2]), vec![]] {
            assert_eq!(confirmations_delta(&three, &forked), Some((forked.clone(), true)));
        }
        assert_eq!(confirmations_delta(&[], &[]), None);
    }
}

//! The columns `confirmations` (JSON) and `confirmation_hashes` (bytes). The intent's own block has its own columns and is
//! left out; the blocks above it are contiguous, so their hashes are enough.

use ethers_core::types::H256;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::StoreError;
use super::fenced::Move;
use super::row::Cell;
use gapless_domain::{Confirmation, FinalConfirmations};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConfirmationsJson {
    rule: String,
    count: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    final_block: Option<u64>,
}

/// The column value for a move.
pub(super) fn confirmations_json(change: &Move) -> Option<Value> {
    let counted = change.confirmations.as_ref()?;
    let written = ConfirmationsJson {
        rule: counted.rule.to_string(),
        count: counted.count,
        final_block: counted.final_block,
    };
    // Unwrap safety: plain data with string keys.
    Some(serde_json::to_value(written).expect("confirmations serialise"))
}

/// The hashes of the blocks above its own, concatenated; `None` if there are none.
pub(super) fn confirmation_hashes(change: &Move) -> Option<Vec<u8>> {
    let blocks = change.confirmations.as_ref()?.blocks.get(1..)?;
    (!blocks.is_empty()).then(|| blocks.iter().flat_map(|block| block.hash.0).collect())
}

/// Reads the columns together with the own block from its columns. If the hashes were not selected, the list contains
/// the own block only.
pub(super) fn read_confirmations(
    cell: Cell<'_>,
    value: Value,
    hashes: Option<Vec<u8>>,
    own: (u64, H256),
) -> Result<FinalConfirmations, StoreError> {
    let written: ConfirmationsJson = cell.json(value)?;
    let mut blocks = vec![Confirmation { number: own.0, hash: own.1 }];
    let above = hashes.unwrap_or_default();
    for (number, hash) in (own.0.saturating_add(1)..).zip(above.chunks_exact(H256::len_bytes())) {
        blocks.push(Confirmation { number, hash: H256::from_slice(hash) });
    }
    let rule = cell.parse(&written.rule)?;
    Ok(FinalConfirmations { rule, count: written.count, final_block: written.final_block, blocks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_domain::{Finality, TxId, TxState};

    const CELL: Cell<'static> = Cell { table: "managed_tx", column: "confirmations", id: &1 };

    fn counted(rule: Finality, blocks: u64) -> FinalConfirmations {
        let block = |number| Confirmation { number, hash: H256::from_low_u64_be(number) };
        let final_block = rule.blocks().is_none().then_some(7);
        FinalConfirmations { rule, count: blocks, final_block, blocks: (7..7 + blocks).map(block).collect() }
    }

    fn written(counted: FinalConfirmations) -> (Value, Option<Vec<u8>>) {
        let change = Move::new(TxId::new(), TxState::Tracking, TxState::Confirmed);
        let change = Move { confirmations: Some(counted), ..change };
        (confirmations_json(&change).unwrap(), confirmation_hashes(&change))
    }

    #[test]
    fn confirmations_round_trip_without_the_own_block() {
        for (rule, blocks) in [(Finality::Blocks(3), 3), (Finality::Finalized, 64), (Finality::Blocks(1), 1)]
        {
            let whole = counted(rule, blocks);
            let (value, hashes) = written(whole.clone());
            assert_eq!(hashes.as_ref().map_or(0, Vec::len) as u64, (blocks - 1) * 32, "without its own");
            assert_eq!(
                read_confirmations(CELL, value, hashes, (7, H256::from_low_u64_be(7))).unwrap(),
                whole
            );
        }
        let least = serde_json::json!({ "rule": "1", "count": 1 });
        assert_eq!(written(counted(Finality::Blocks(1), 1)), (least, None));
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_column() {
        let value = serde_json::json!({ "rule": "soon", "count": 1 });
        let error = read_confirmations(CELL, value, None, (7, H256::zero())).unwrap_err().to_string();
        assert!(error.contains("managed_tx.confirmations of 1"), "{error}");
    }
}

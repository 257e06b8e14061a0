//! The JSON of the `receipt` column. Block number, block hash and transaction hash have their own columns and are
//! left out.

use serde_json::Value;

use super::error::StoreError;
use super::fenced::Move;
use super::row::{Cell, StoredHash};
use gapless_domain::Receipt;

/// The columns of the same row that complete a receipt.
#[derive(Clone, Copy)]
pub(super) struct Mined {
    pub(super) tx_hash: Option<StoredHash>,
    pub(super) block_number: Option<i64>,
    pub(super) block_hash: Option<StoredHash>,
}

/// The column value for a move.
pub(super) fn receipt_json(change: &Move) -> Option<Value> {
    let receipt = change.receipt.as_ref()?;
    // Unwrap safety: plain data with string keys.
    let mut value = serde_json::to_value(receipt).expect("a receipt serialises");
    if let Some(fields) = value.as_object_mut() {
        fields.remove("blockNumber");
        fields.remove("blockHash");
        if change.tx_hash == Some(receipt.tx_hash) {
            fields.remove("txHash");
        }
        fields.retain(|_, field| !field.is_null());
    }
    Some(value)
}

/// Reads the column and completes it from the other columns. A hash in the JSON takes precedence: it is stored there if it is
/// not the intent's current one.
pub(super) fn read_receipt(cell: Cell<'_>, mut value: Value, mined: Mined) -> Result<Receipt, StoreError> {
    if let Some(fields) = value.as_object_mut() {
        let text = |hash: StoredHash| Value::from(hash.to_string());
        let columns = [
            ("txHash", mined.tx_hash.map(text)),
            ("blockNumber", mined.block_number.map(Value::from)),
            ("blockHash", mined.block_hash.map(text)),
        ];
        for (name, column) in columns {
            if let Some(column) = column.filter(|_| !fields.contains_key(name)) {
                fields.insert(name.to_owned(), column);
            }
        }
    }
    cell.json(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_domain::{H256, TxId, TxState, U256};

    fn receipt() -> Receipt {
        Receipt {
            tx_hash: H256::repeat_byte(1),
            block_number: 7,
            block_hash: H256::repeat_byte(2),
            transaction_index: 3,
            succeeded: true,
            gas_used: U256::from(21_000),
            effective_gas_price: None,
            contract_address: None,
        }
    }

    fn written(tx_hash: H256) -> Value {
        let change = Move::new(TxId::new(), TxState::Submitted, TxState::Confirmed);
        receipt_json(&Move { tx_hash: Some(tx_hash), receipt: Some(receipt()), ..change }).unwrap()
    }

    fn read(value: Value, tx_hash: H256) -> Receipt {
        let (tx_hash, block_hash) = (tx_hash.into(), receipt().block_hash.into());
        let mined = Mined { tx_hash: Some(tx_hash), block_number: Some(7), block_hash: Some(block_hash) };
        read_receipt(Cell { table: "managed_tx", column: "receipt", id: &1 }, value, mined).unwrap()
    }

    #[test]
    fn fields_with_columns_are_left_out_and_restored() {
        let value = written(receipt().tx_hash);
        assert_eq!(value.as_object().unwrap().len(), 3, "{value}");
        assert_eq!(read(value, receipt().tx_hash), receipt());
    }

    #[test]
    fn a_hash_that_differs_from_the_column_is_written() {
        let other = H256::repeat_byte(9);
        assert_eq!(read(written(other), other), receipt());
    }

    #[test]
    fn a_complete_receipt_takes_precedence() {
        let whole = serde_json::to_value(receipt()).unwrap();
        assert_eq!(read(whole, H256::repeat_byte(9)), receipt());
    }
}

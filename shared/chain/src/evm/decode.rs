//! Converts Ethereum's JSON to domain types. Strict: an invalid value is an error.

use ethers_core::types::{Address, H256, U256};
use serde::{Deserialize, Deserializer, de};

use crate::port::{BlockWithHashes, FeeHistory};
use gapless_domain::{BlockRef, Receipt};

/// `0x` and one to 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quantity(pub(super) U256);

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.strip_prefix("0x").unwrap_or_default();
        let valid = matches!(digits.len(), 1..=64) && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let parsed = if valid { U256::from_str_radix(digits, 16).ok() } else { None };
        parsed.map(Quantity).ok_or_else(|| de::Error::custom("not a hex quantity"))
    }
}

/// A quantity below 2^63: block numbers, transaction counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count(pub(super) u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Quantity(wide) = Quantity::deserialize(deserializer)?;
        // PostgreSQL's BIGINT is signed; no chain reaches 2^63.
        let count = u64::try_from(wide).ok().filter(|count| i64::try_from(*count).is_ok());
        count.map(Count).ok_or_else(|| de::Error::custom("quantity above 2^63 - 1"))
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawBlock {
    /// Number and hash are null in a pending block.
    number: Option<Count>,
    hash: Option<H256>,
    parent_hash: H256,
    base_fee_per_gas: Option<Quantity>,
    gas_limit: Option<Quantity>,
    transactions: Vec<H256>,
}

impl RawBlock {
    /// `None` for a pending block.
    pub(super) fn mined(self) -> Option<BlockWithHashes> {
        Some(BlockWithHashes {
            block: BlockRef { number: self.number?.0, hash: self.hash?, parent: self.parent_hash },
            base_fee_per_gas: self.base_fee_per_gas.map(|fee| fee.0),
            gas_limit: self.gas_limit.and_then(|limit| u64::try_from(limit.0).ok()),
            tx_hashes: self.transactions,
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawReceipt {
    transaction_hash: H256,
    transaction_index: Count,
    /// Null in the receipts that some nodes return for pending transactions.
    block_number: Option<Count>,
    block_hash: Option<H256>,
    /// Absent only before Byzantium (2017). Required, because success is unknown without it.
    status: Count,
    gas_used: Quantity,
    #[serde(default)]
    effective_gas_price: Option<Quantity>,
    #[serde(default)]
    contract_address: Option<Address>,
}

impl RawReceipt {
    /// `None` for a transaction that is not in a block.
    pub(super) fn mined(self) -> Option<Receipt> {
        Some(Receipt {
            tx_hash: self.transaction_hash,
            block_number: self.block_number?.0,
            block_hash: self.block_hash?,
            transaction_index: self.transaction_index.0,
            succeeded: self.status.0 == 1,
            gas_used: self.gas_used.0,
            effective_gas_price: self.effective_gas_price.map(|price| price.0),
            contract_address: self.contract_address,
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawFeeHistory {
    base_fee_per_gas: Vec<Quantity>,
    #[serde(default)]
    reward: Option<Vec<Vec<Quantity>>>,
}

impl RawFeeHistory {
    /// The last base fee is that of the next block. `None` if there is none. Blocks without one reward per percentile
    /// are skipped.
    pub(super) fn history(self, percentiles: usize) -> Option<FeeHistory> {
        let next_base_fee = self.base_fee_per_gas.last()?.0;
        let rewards = self.reward.unwrap_or_default();
        let complete = rewards.into_iter().filter(|block| block.len() == percentiles);
        let rewards = complete.map(|block| block.into_iter().map(|reward| reward.0).collect()).collect();
        Some(FeeHistory { next_base_fee, rewards })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_above_i64_are_refused() {
        let read = |text: &str| serde_json::from_str::<Count>(text).map(|count| count.0);
        assert_eq!(read(r#""0x7fffffffffffffff""#).unwrap(), i64::MAX as u64);
        assert!(read(r#""0x8000000000000000""#).is_err());
        assert!(read(r#""0x10000000000000000""#).is_err());
    }

    #[test]
    fn quantities_are_strict() {
        let read = |text: &str| serde_json::from_str::<Quantity>(text).map(|q| q.0);
        assert_eq!(read(r#""0x0""#).unwrap(), U256::zero());
        assert_eq!(read(r#""0xFf""#).unwrap(), 255.into());
        assert_eq!(read(&format!("\"0x{}\"", "f".repeat(64))).unwrap(), U256::MAX);
        let long = format!("\"0x1{}\"", "0".repeat(64));
        for bad in [r#""0x""#, r#""""#, r#""12""#, "12", "null", r#""0x-1""#, r#""0x1g""#, r#""0X1""#, &long]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<Count>(r#""0x10000000000000000""#).is_err());
    }

    fn receipt(replace: (&str, &str)) -> Result<Option<Receipt>, serde_json::Error> {
        let text = format!(
            r#"{{"transactionHash":"0x{h}","transactionIndex":"0x3","blockNumber":"0x10","blockHash":"0x{h}",
                 "status":"0x1","gasUsed":"0x5208","effectiveGasPrice":"0x7","contractAddress":null,
                 "logs":[{{"x":[1,2]}}],"logsBloom":"0x00","type":"0x2"}}"#,
            h = "ab".repeat(32)
        );
        let text = text.replace(replace.0, replace.1);
        serde_json::from_str::<Option<RawReceipt>>(&text).map(|raw| raw.and_then(RawReceipt::mined))
    }

    #[test]
    fn a_receipt_is_reduced_to_the_stored_fields() {
        let read = receipt(("", "")).unwrap().unwrap();
        assert_eq!((read.block_number, read.transaction_index, read.succeeded), (16, 3, true));
        assert_eq!((read.gas_used, read.effective_gas_price), (21_000.into(), Some(7.into())));
        assert!(!receipt((r#""status":"0x1""#, r#""status":"0x0""#)).unwrap().unwrap().succeeded);
        assert!(serde_json::from_str::<Option<RawReceipt>>("null").unwrap().is_none());
    }

    #[test]
    fn a_receipt_without_a_status_is_an_error_and_one_without_a_block_is_not_mined() {
        assert!(receipt((r#""status":"0x1","#, "")).is_err());
        assert!(receipt((r#""blockNumber":"0x10""#, r#""blockNumber":null"#)).unwrap().is_none());
        assert!(receipt((r#""gasUsed":"0x5208""#, r#""gasUsed":21000"#)).is_err());
    }

    #[test]
    fn a_pending_block_is_none() {
        let text = |number: &str| {
            let h = "cd".repeat(32);
            format!(
                r#"{{"number":{number},"hash":"0x{h}","parentHash":"0x{h}","baseFeePerGas":"0x9","transactions":["0x{h}"]}}"#
            )
        };
        let read = |text: &str| serde_json::from_str::<RawBlock>(text).unwrap().mined();
        let block = read(&text("\"0x2a\"")).unwrap();
        assert_eq!(
            (block.block.number, block.tx_hashes.len(), block.base_fee_per_gas),
            (42, 1, Some(9.into()))
        );
        assert!(read(&text("null")).is_none());
    }

    #[test]
    fn the_next_base_fee_is_the_last_of_the_history() {
        let read = |text: &str| serde_json::from_str::<RawFeeHistory>(text).unwrap().history(1);
        let history =
            read(r#"{"baseFeePerGas":["0x1","0x2"],"reward":[["0x5"]],"oldestBlock":"0x0"}"#).unwrap();
        assert_eq!((history.next_base_fee, history.rewards), (2.into(), vec![vec![5.into()]]));
        assert!(read(r#"{"baseFeePerGas":["0x0"],"reward":null}"#).unwrap().rewards.is_empty());
        assert!(read(r#"{"baseFeePerGas":[]}"#).is_none());
        let ragged = read(r#"{"baseFeePerGas":["0x2"],"reward":[[],["0x1","0x2"],["0x7"]]}"#).unwrap();
        assert_eq!(ragged.rewards, vec![vec![7.into()]]);
    }
}

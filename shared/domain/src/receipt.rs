//! Blocks and receipts, reduced to the fields that Gapless stores.

use ethers_core::types::{Address, H256, U256};
use serde::{Deserialize, Serialize};

/// A block with its hash and parent hash, so that a reorg can be detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockRef {
    pub number: u64,
    pub hash: H256,
    pub parent: H256,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    pub tx_hash: H256,
    pub block_number: u64,
    pub block_hash: H256,
    pub transaction_index: u64,
    /// False: mined and reverted. The nonce is consumed either way.
    pub succeeded: bool,
    pub gas_used: U256,
    pub effective_gas_price: Option<U256>,
    pub contract_address: Option<Address>,
}

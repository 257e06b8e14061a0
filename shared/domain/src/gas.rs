//! Intrinsic gas, and the margin added to estimates. A gas limit below the intrinsic gas can never be mined.

use ethers_core::types::U256;

use super::payload::Payload;

const BASE: u64 = 21_000;
const CREATE: u64 = 32_000;
const ZERO_BYTE: u64 = 4;
const BYTE: u64 = 16;
/// EIP-7623: calldata costs at least 10 gas per token; a non-zero byte is four tokens, a zero byte is one.
const FLOOR_PER_TOKEN: u64 = 10;
const INIT_CODE_WORD: u64 = 2;
const LISTED_ADDRESS: u64 = 2_400;
const LISTED_KEY: u64 = 1_900;

/// EIP-7825: maximum gas limit of one transaction, on chains with this rule.
const MAX_TX_GAS: u64 = 1 << 24;

/// The gas limit for an estimate: `with_margin`, capped at the block gas limit and at the EIP-7825 limit, above which
/// nodes reject it. An estimate above the EIP-7825 limit comes from a chain without that rule.
pub fn with_margin(estimate: U256, with_margin: U256, block_limit: U256) -> U256 {
    let max_tx = U256::from(MAX_TX_GAS);
    let cap = if estimate <= max_tx { max_tx.min(block_limit) } else { block_limit };
    with_margin.min(cap.max(estimate))
}

/// Whether a node's gas cap for executions is a rule of the chain: the block gas limit, or exactly the EIP-7825 limit,
/// which nodes use on chains with this rule. Any other cap below the block gas limit is a setting of the node.
pub fn is_chain_gas_cap(cap: U256, block_limit: U256) -> bool {
    cap >= block_limit || cap == U256::from(MAX_TX_GAS)
}

/// The smallest gas limit a chain accepts. Layer-2 chains may require more. Chains without EIP-7623 accept slightly
/// less for large calldata; such a tight limit is refused.
pub fn intrinsic_gas(payload: &Payload) -> U256 {
    let bytes = payload.data.len() as u64;
    let zeros = payload.data.iter().filter(|byte| **byte == 0).count() as u64;
    let mut gas = BASE + zeros * ZERO_BYTE + (bytes - zeros) * BYTE;
    if payload.to.is_none() {
        gas += CREATE + bytes.div_ceil(32) * INIT_CODE_WORD;
    }
    for item in &payload.access_list.0 {
        gas += LISTED_ADDRESS + item.storage_keys.len() as u64 * LISTED_KEY;
    }
    let tokens = zeros + (bytes - zeros) * 4;
    U256::from(gas.max(BASE + tokens * FLOOR_PER_TOKEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_of_the_chain_or_a_setting_of_the_node() {
        let of_chain = |cap: u64, block: u64| is_chain_gas_cap(cap.into(), block.into());
        assert!(of_chain(30_000_000, 30_000_000) && of_chain(50_000_000, 30_000_000));
        assert!(of_chain(MAX_TX_GAS, 60_000_000));
        assert!(!of_chain(50_000_000, 60_000_000), "geth's default, below the block gas limit");
        assert!(!of_chain(MAX_TX_GAS + 1, 60_000_000) && !of_chain(25_000, 30_000_000));
    }
    use ethers_core::types::Address;

    #[test]
    fn a_plain_transfer_costs_21000() {
        assert_eq!(intrinsic_gas(&Payload::transfer(Address::zero(), 1.into())), 21_000.into());
    }

    #[test]
    fn a_margin_does_not_exceed_the_gas_limits() {
        let block = U256::from(60_000_000);
        let limit = |estimate: u64, margin: u64| with_margin(estimate.into(), margin.into(), block).as_u64();
        assert_eq!(limit(100_000, 120_000), 120_000);
        assert_eq!(limit(15_000_000, 18_000_000), MAX_TX_GAS, "the limit of one transaction");
        assert_eq!(limit(MAX_TX_GAS, 20_000_000), MAX_TX_GAS);
        assert_eq!(limit(20_000_000, 24_000_000), 24_000_000, "a chain without that rule");
        assert_eq!(limit(55_000_000, 66_000_000), 60_000_000, "the block gas limit");
        assert_eq!(limit(61_000_000, 73_200_000), 61_000_000, "already above the block limit: unchanged");
        assert_eq!(limit(100_000, 90_000), 90_000, "a multiplier below one is allowed");
        assert_eq!(with_margin(9.into(), 12.into(), 10.into()), 10.into(), "a small block");
    }

    #[test]
    fn calldata_and_creation_cost_extra() {
        let mut payload = Payload::transfer(Address::zero(), 0.into());
        payload.data = vec![0, 1].into();
        assert_eq!(intrinsic_gas(&payload), 21_050.into(), "the floor");
        payload.to = None;
        assert_eq!(intrinsic_gas(&payload), (21_020 + 32_000 + 2).into());
    }
}

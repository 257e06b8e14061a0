//! What a transaction costs before its first instruction. A limit below it can never be mined.

use ethers_core::types::U256;

use super::payload::Payload;

const BASE: u64 = 21_000;
const CREATE: u64 = 32_000;
const ZERO_BYTE: u64 = 4;
const BYTE: u64 = 16;
/// EIP-7623: calldata-heavy transactions pay at least ten a token, and a byte other than zero is four tokens.
const FLOOR_PER_TOKEN: u64 = 10;
const INIT_CODE_WORD: u64 = 2;
const LISTED_ADDRESS: u64 = 2_400;
const LISTED_KEY: u64 = 1_900;

/// EIP-7825: the most one transaction may have, on chains that have the rule.
const MOST_OF_ONE: u64 = 1 << 24;

/// An estimate with its margin, which ends where a limit would begin to be refused: at what a block holds, and at what one
/// transaction may have. An estimate above the latter is from a chain without that rule.
pub fn with_margin(estimate: U256, with_margin: U256, block_limit: U256) -> U256 {
    let one = U256::from(MOST_OF_ONE);
    let roof = if estimate <= one { one.min(block_limit) } else { block_limit };
    with_margin.min(roof.max(estimate))
}

/// The smallest gas limit a chain would take. Layer-2 chains may ask for more. Chains without EIP-7623 would take a
/// little less for bulky calldata; a limit that tight is refused rather than risked.
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
    use ethers_core::types::Address;

    #[test]
    fn a_plain_transfer_costs_its_well_known_price() {
        assert_eq!(intrinsic_gas(&Payload::transfer(Address::zero(), 1.into())), 21_000.into());
    }

    #[test]
    fn a_margin_never_makes_a_limit_that_is_refused() {
        let block = U256::from(60_000_000);
        let limit = |estimate: u64, margin: u64| with_margin(estimate.into(), margin.into(), block).as_u64();
        assert_eq!(limit(100_000, 120_000), 120_000);
        assert_eq!(limit(15_000_000, 18_000_000), MOST_OF_ONE, "all that one transaction may have");
        assert_eq!(limit(MOST_OF_ONE, 20_000_000), MOST_OF_ONE);
        assert_eq!(limit(20_000_000, 24_000_000), 24_000_000, "a chain without that rule");
        assert_eq!(limit(55_000_000, 66_000_000), 60_000_000, "all that a block holds");
        assert_eq!(limit(61_000_000, 73_200_000), 61_000_000, "too much already; that is for others to say");
        assert_eq!(limit(100_000, 90_000), 90_000, "a multiplier below one is the operator's choice");
        assert_eq!(with_margin(9.into(), 12.into(), 10.into()), 10.into(), "a small block");
    }

    #[test]
    fn bytes_creation_and_listed_slots_cost_extra() {
        let mut payload = Payload::transfer(Address::zero(), 0.into());
        payload.data = vec![0, 1].into();
        assert_eq!(intrinsic_gas(&payload), 21_050.into(), "the floor");
        payload.to = None;
        assert_eq!(intrinsic_gas(&payload), (21_020 + 32_000 + 2).into());
    }
}

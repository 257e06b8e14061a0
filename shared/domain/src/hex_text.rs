//! Strict parsing of addresses and hex byte strings.

use ethers_core::types::{Address, H256};
use ethers_core::utils::to_checksum;

/// `0x` and 40 hex digits. A mixed-case address must have a correct EIP-55 checksum.
pub fn parse_address(text: &str) -> Result<Address, &'static str> {
    let address = parse_address_any_case(text)?;
    let digits = &text[2..];
    let mixed =
        digits.bytes().any(|b| b.is_ascii_lowercase()) && digits.bytes().any(|b| b.is_ascii_uppercase());
    if mixed && to_checksum(&address, None)[2..] != *digits {
        return Err("has a wrong EIP-55 checksum; if the address is correct, write it in lower case");
    }
    Ok(address)
}

/// Without checksum validation, for lookups: there a typing error finds nothing instead of losing funds.
pub fn parse_address_any_case(text: &str) -> Result<Address, &'static str> {
    match fixed::<20>(text) {
        Some(bytes) => Ok(Address::from(bytes)),
        None => Err("must be an address: 0x and 40 hex digits"),
    }
}

pub fn parse_word(text: &str) -> Result<H256, &'static str> {
    fixed::<32>(text).map(H256::from).ok_or("must be 32 bytes: 0x and 64 hex digits")
}

/// `0x` and an even number of hex digits; `0x` alone is empty.
pub fn parse_bytes(text: &str) -> Result<Vec<u8>, &'static str> {
    let digits = text.strip_prefix("0x").ok_or("must be hex with a 0x prefix")?;
    hex::decode(digits).map_err(|error| match error {
        hex::FromHexError::OddLength => "has an odd number of hex digits",
        _ => "has an invalid hex digit",
    })
}

fn fixed<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text.strip_prefix("0x")?, &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECKSUMMED: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";

    #[test]
    fn an_address_may_be_lower_upper_or_checksummed() {
        let lower = CHECKSUMMED.to_lowercase();
        let upper = format!("0x{}", CHECKSUMMED[2..].to_uppercase());
        assert_eq!(parse_address(CHECKSUMMED), parse_address(&lower));
        assert_eq!(parse_address(CHECKSUMMED), parse_address(&upper));
    }

    #[test]
    fn a_wrong_checksum_is_refused_except_for_lookups() {
        let wrong = CHECKSUMMED.replace("aA", "Aa");
        assert!(parse_address(&wrong).unwrap_err().contains("checksum"));
        assert_eq!(parse_address_any_case(&wrong), parse_address(CHECKSUMMED));
    }

    #[test]
    fn short_long_and_unprefixed_addresses_are_refused() {
        for text in ["", "0x", &CHECKSUMMED[2..], &CHECKSUMMED[..41], &format!("{CHECKSUMMED}0"), "0xé"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_are_exact() {
        assert_eq!(parse_bytes("0x"), Ok(vec![]));
        assert_eq!(parse_bytes("0x00Ff"), Ok(vec![0, 255]));
        assert!(parse_bytes("00ff").is_err());
        assert!(parse_bytes("0xf").unwrap_err().contains("odd"));
        assert!(parse_bytes("0xzz").is_err());
    }
}

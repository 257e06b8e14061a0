//! Parses amounts: decimal or 0x strings. Anything ambiguous or lossy is refused.

use ethers_core::types::U256;

/// Why a string is not an amount. The caller adds the field name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnAmount {
    #[error("must be a decimal or 0x number without sign, fraction or spaces")]
    Malformed,
    #[error("does not fit into 256 bits")]
    TooLarge,
}

/// Parses `1000` or `0x3e8`. No sign, fraction, exponent, spaces or separators.
pub fn parse_amount(text: &str) -> Result<U256, NotAnAmount> {
    match text.strip_prefix("0x") {
        Some(digits) => parse_hex(digits),
        None => parse_decimal(text),
    }
}

fn parse_hex(digits: &str) -> Result<U256, NotAnAmount> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(NotAnAmount::Malformed);
    }
    if digits.len() > 64 {
        return Err(NotAnAmount::TooLarge);
    }
    U256::from_str_radix(digits, 16).map_err(|_| NotAnAmount::TooLarge)
}

fn parse_decimal(digits: &str) -> Result<U256, NotAnAmount> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(NotAnAmount::Malformed);
    }
    U256::from_dec_str(digits).map_err(|_| NotAnAmount::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_and_hex_mean_the_same() {
        assert_eq!(parse_amount("1000"), Ok(U256::from(1000)));
        assert_eq!(parse_amount("0x3e8"), Ok(U256::from(1000)));
        assert_eq!(parse_amount("0x3E8"), Ok(U256::from(1000)));
        assert_eq!(parse_amount("0"), Ok(U256::zero()));
    }

    #[test]
    fn the_largest_amount_fits_and_the_next_does_not() {
        assert_eq!(parse_amount(&U256::MAX.to_string()), Ok(U256::MAX));
        assert_eq!(parse_amount(&format!("0x{}", "f".repeat(64))), Ok(U256::MAX));
        assert_eq!(parse_amount(&format!("{}0", U256::MAX)), Err(NotAnAmount::TooLarge));
        assert_eq!(parse_amount(&format!("0x1{}", "0".repeat(64))), Err(NotAnAmount::TooLarge));
        let next = "115792089237316195423570985008687907853269984665640564039457584007913129639936";
        assert_eq!(parse_amount(next), Err(NotAnAmount::TooLarge));
    }

    #[test]
    fn everything_ambiguous_or_lossy_is_refused() {
        for text in [
            "", " 1", "1 ", "+1", "-1", "1.0", "1e18", "1_000", "1,000", "0x", "0X1", "x1", "0x1g", "٣",
            "ff", "1\n",
        ] {
            assert_eq!(parse_amount(text), Err(NotAnAmount::Malformed), "{text:?}");
        }
    }
}

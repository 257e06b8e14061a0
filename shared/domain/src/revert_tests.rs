use ethers_core::abi::{Token, encode};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::super::abi::canonical_errors;
use super::*;

const PANIC_SELECTOR: [u8; 4] = [0x4e, 0x48, 0x7b, 0x71];

fn returned(selector: [u8; 4], tokens: &[Token]) -> RevertData {
    RevertData::new(&[selector.as_slice(), &encode(tokens)].concat())
}

fn describe(data: &RevertData, errors: &[String]) -> Option<String> {
    data.describe(errors)
}

#[test]
fn a_text_a_panic_and_empty_data_are_distinguished() {
    let text = returned(ERROR_SELECTOR, &[Token::String("not on a Sunday".into())]);
    let revert = text.decode(&[]);
    assert_eq!((revert.kind, revert.reason.as_deref()), (RevertKind::Error, Some("not on a Sunday")));
    assert_eq!(describe(&text, &[]).as_deref(), Some("not on a Sunday"));

    let panic = returned(PANIC_SELECTOR, &[Token::Uint(0x11.into())]);
    let revert = panic.decode(&[]);
    assert_eq!((revert.kind, revert.panic_code), (RevertKind::Panic, Some(0x11.into())));
    assert_eq!(revert.reason.as_deref(), Some("arithmetic overflow"));
    assert_eq!(describe(&panic, &[]).as_deref(), Some("panic: arithmetic overflow (0x11)"));
    let unknown = returned(PANIC_SELECTOR, &[Token::Uint(U256::MAX)]);
    assert_eq!(unknown.decode(&[]).reason.as_deref(), Some("unknown panic code"));

    let empty = RevertData::new(&[]);
    assert_eq!(empty.decode(&[]).kind, RevertKind::Empty);
    assert_eq!(describe(&empty, &[]), None);
    let reason_only = RevertData::from_reason(Some("no".into()));
    assert_eq!(
        (reason_only.decode(&[]).kind, reason_only.decode(&[]).reason.as_deref()),
        (RevertKind::Error, Some("no"))
    );
}

#[test]
fn a_custom_error_is_decoded_only_with_its_signature() {
    let errors = canonical_errors(&[json!("Short(address who, uint256 need, string why)")]).unwrap();
    let selector = ethers_core::utils::id("Short(address,uint256,string)");
    let tokens =
        [Token::Address([0xab; 20].into()), Token::Uint(9.into()), Token::String("a, need: 0".into())];
    let data = returned(selector, &tokens);
    let revert = data.decode(&errors);
    assert_eq!((revert.kind, revert.name.as_deref()), (RevertKind::Custom, Some("Short")));
    assert_eq!(revert.signature.as_deref(), Some("Short(address,uint256,string)"));
    assert_eq!(revert.arguments[1].value, json!("9"));
    let expected = format!("Short(who: 0x{}, need: 9, why: \"a, need: 0\")", "ab".repeat(20));
    assert_eq!(describe(&data, &errors), Some(expected));
    assert_eq!(data.decode(&[]).kind, RevertKind::Unknown);
    assert!(describe(&data, &[]).unwrap().starts_with("unrecognised revert data 0x"));
}

#[test]
fn truncated_data_is_unknown() {
    let whole = returned(ERROR_SELECTOR, &[Token::String("hello".into())]);
    for length in [1, 3, 4, 35, 36, 67, 70] {
        let cut = RevertData::new(&whole.data[..length]);
        assert_eq!(cut.decode(&[]).kind, RevertKind::Unknown, "{length} bytes");
    }
}

#[test]
fn long_data_is_truncated_and_a_long_text_keeps_its_beginning() {
    let long = returned(ERROR_SELECTOR, &[Token::String("é".repeat(5_000))]);
    assert_eq!((long.data.len(), long.size, long.is_cut()), (MAX_STORED_BYTES, 4 + 64 + 10_016, true));
    let reason = long.decode(&[]).reason.unwrap();
    assert!(reason.starts_with("ééé") && reason.ends_with("é…"), "{reason}");
    let garbage = RevertData::new(&[0xee; 5_000]);
    assert_eq!(garbage.decode(&[]).kind, RevertKind::Unknown);
    assert!(describe(&garbage, &[]).unwrap().ends_with('…'));
    assert!(!RevertData::new(&[0xee; MAX_STORED_BYTES]).is_cut());
}

#[test]
fn a_reason_contains_no_control_characters() {
    let nul = returned(ERROR_SELECTOR, &[Token::String("a\0b".into())]);
    assert_eq!(describe(&nul, &[]).as_deref(), Some("a b"));
    let errors = canonical_errors(&[json!("E(string)")]).unwrap();
    let nul = returned(ethers_core::utils::id("E(string)"), &[Token::String("a\0\u{9b}b".into())]);
    assert!(!describe(&nul, &errors).unwrap().contains(char::is_control));
}

#[test]
fn any_bytes_can_be_decoded_and_described() {
    let mut random = StdRng::seed_from_u64(16);
    let errors = canonical_errors(&[json!("E(string[] a,(bytes b,int8 c)[2] d)")]).unwrap();
    let selectors = [ERROR_SELECTOR, PANIC_SELECTOR, ethers_core::utils::id("E(string[],(bytes,int8)[2])")];
    for round in 0..1_000 {
        let mut bytes: Vec<u8> = (0..random.random_range(0..1_500)).map(|_| random.random()).collect();
        if bytes.len() >= 4 {
            bytes[..4].copy_from_slice(&selectors[round % 3]);
        }
        // Mostly zero: numbers that could be offsets.
        for byte in bytes.iter_mut().skip(4) {
            if random.random_range(0..16) > 0 {
                *byte = 0;
            }
        }
        let data = RevertData::new(&bytes);
        assert!(data.data.len() <= MAX_STORED_BYTES && data.size == bytes.len());
        assert!(describe(&data, &errors).is_none_or(|text| text.chars().count() <= 2_001));
        let stored = serde_json::to_value(&data).unwrap();
        assert_eq!(serde_json::from_value::<RevertData>(stored).unwrap(), data);
    }
}

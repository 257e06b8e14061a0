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

fn words(data: &RevertData, errors: &[String]) -> Option<String> {
    data.in_words(errors)
}

#[test]
fn a_text_a_panic_and_nothing_are_told_apart() {
    let text = returned(ERROR_SELECTOR, &[Token::String("not on a Sunday".into())]);
    let revert = text.decode(&[]);
    assert_eq!((revert.kind, revert.reason.as_deref()), (RevertKind::Error, Some("not on a Sunday")));
    assert_eq!(words(&text, &[]).as_deref(), Some("not on a Sunday"));

    let panic = returned(PANIC_SELECTOR, &[Token::Uint(0x11.into())]);
    let revert = panic.decode(&[]);
    assert_eq!((revert.kind, revert.panic_code), (RevertKind::Panic, Some(0x11.into())));
    assert_eq!(revert.reason.as_deref(), Some("arithmetic overflow"));
    assert_eq!(words(&panic, &[]).as_deref(), Some("panic: arithmetic overflow (0x11)"));
    let strange = returned(PANIC_SELECTOR, &[Token::Uint(U256::MAX)]);
    assert_eq!(strange.decode(&[]).reason.as_deref(), Some("unknown code"));

    let empty = RevertData::new(&[]);
    assert_eq!(empty.decode(&[]).kind, RevertKind::Empty);
    assert_eq!(words(&empty, &[]), None);
    let worded = RevertData::of_words(Some("no".into()));
    assert_eq!(
        (worded.decode(&[]).kind, worded.decode(&[]).reason.as_deref()),
        (RevertKind::Error, Some("no"))
    );
}

#[test]
fn a_custom_error_is_known_only_by_the_signature_that_was_given() {
    let errors = canonical_errors(&[json!("Short(address who, uint256 need, string why)")]).unwrap();
    let selector = ethers_core::utils::id("Short(address,uint256,string)");
    let tokens =
        [Token::Address([0xab; 20].into()), Token::Uint(9.into()), Token::String("a, need: 0".into())];
    let data = returned(selector, &tokens);
    let revert = data.decode(&errors);
    assert_eq!((revert.kind, revert.name.as_deref()), (RevertKind::Custom, Some("Short")));
    assert_eq!(revert.signature.as_deref(), Some("Short(address,uint256,string)"));
    assert_eq!(revert.arguments[1].value, json!("9"));
    let spelled = format!("Short(who: 0x{}, need: 9, why: \"a, need: 0\")", "ab".repeat(20));
    assert_eq!(words(&data, &errors), Some(spelled));
    assert_eq!(data.decode(&[]).kind, RevertKind::Unknown);
    assert!(words(&data, &[]).unwrap().starts_with("unknown error 0x"));
}

#[test]
fn what_does_not_hold_what_it_names_is_unknown() {
    let whole = returned(ERROR_SELECTOR, &[Token::String("hello".into())]);
    for length in [1, 3, 4, 35, 36, 67, 70] {
        let cut = RevertData::new(&whole.data[..length]);
        assert_eq!(cut.decode(&[]).kind, RevertKind::Unknown, "{length} bytes");
    }
}

#[test]
fn long_answers_are_cut_and_a_long_text_keeps_its_beginning() {
    let long = returned(ERROR_SELECTOR, &[Token::String("é".repeat(5_000))]);
    assert_eq!((long.data.len(), long.size, long.is_cut()), (MAX_KEPT_BYTES, 4 + 64 + 10_016, true));
    let reason = long.decode(&[]).reason.unwrap();
    assert!(reason.starts_with("ééé") && reason.ends_with("é…"), "{reason}");
    let garbage = RevertData::new(&[0xee; 5_000]);
    assert_eq!(garbage.decode(&[]).kind, RevertKind::Unknown);
    assert!(words(&garbage, &[]).unwrap().ends_with('…'));
    assert!(!RevertData::new(&[0xee; MAX_KEPT_BYTES]).is_cut());
}

#[test]
fn a_reason_cannot_carry_what_a_database_refuses() {
    let nul = returned(ERROR_SELECTOR, &[Token::String("a\0b".into())]);
    assert_eq!(words(&nul, &[]).as_deref(), Some("a b"));
    let errors = canonical_errors(&[json!("E(string)")]).unwrap();
    let nul = returned(ethers_core::utils::id("E(string)"), &[Token::String("a\0\u{9b}b".into())]);
    assert!(!words(&nul, &errors).unwrap().contains(char::is_control));
}

#[test]
fn any_bytes_have_a_meaning_and_words() {
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
        assert!(data.data.len() <= MAX_KEPT_BYTES && data.size == bytes.len());
        assert!(words(&data, &errors).is_none_or(|words| words.chars().count() <= 2_001));
        let stored = serde_json::to_value(&data).unwrap();
        assert_eq!(serde_json::from_value::<RevertData>(stored).unwrap(), data);
    }
}

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::super::{argument, signature};
use super::*;

fn params(list: &str) -> Vec<Param> {
    signature::parse_error(&format!("E({list})")).unwrap().inputs
}

fn encode(list: &str, args: &Value) -> Vec<u8> {
    let tokens = argument::tokens(&params(list), args.as_array().unwrap(), "args").unwrap();
    ethers_core::abi::encode(&tokens)
}

fn words(words: &[&str]) -> Vec<u8> {
    let text: String = words
        .iter()
        .map(|word| match word.strip_suffix('<') {
            Some(left) => format!("{left:0<64}"),
            None => format!("{word:0>64}"),
        })
        .collect();
    hex::decode(text).unwrap()
}

/// Parameter lists with every type, and their values as JSON.
fn examples() -> Vec<(&'static str, Value)> {
    let address = "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed";
    let max = U256::MAX.to_string();
    vec![
        ("", json!([])),
        ("uint256 a,uint8 b,bool c", json!([max, "255", true])),
        (
            "int8,int8,int256,int16",
            json!([
                "-128",
                "127",
                "-57896044618658097711785492504343953926634992332820282019728792003956564819968",
                "-1"
            ]),
        ),
        ("address,bytes4,bytes32", json!([address, "0x01020304", format!("0x{}", "ab".repeat(32))])),
        ("string,bytes", json!(["hällo, a text that is longer than one word of memory", "0x010203"])),
        ("string,bytes,uint256[]", json!(["", "0x", []])),
        ("uint256[],string[],bool[2]", json!([["1", "2"], ["a", "b", "c"], [true, false]])),
        ("uint256[][],bytes[2][]", json!([[["1"], [], ["2", "3"]], [["0x", "0x0102"]]])),
        (
            "(uint256 id,(string name,bool ok) inner) x",
            json!([{"id": "7", "inner": {"name": "n", "ok": true}}]),
        ),
        ("(uint256,string)[]", json!([[["1", "a"], ["2", "b"]]])),
        ("(uint64 a,int64 b)[2] x,string y", json!([[{"a": "1", "b": "-1"}, {"a": "2", "b": "-2"}], "z"])),
    ]
}

#[test]
fn encoded_values_are_decoded_to_the_same_json() {
    for (list, values) in examples() {
        let data = encode(list, &values);
        assert_eq!(decode(&params(list), &data).map(Value::Array), Some(values.clone()), "{list}");
        let mut more = data.clone();
        more.push(1);
        assert_eq!(decode(&params(list), &more).map(Value::Array), Some(values), "{list} and a byte more");
    }
}

#[test]
fn invalid_values_are_refused() {
    let ff = "f".repeat(64);
    for (list, data) in [
        ("uint256", vec![]),
        ("uint256", vec![0; 31]),
        ("uint8", words(&["100"])),
        ("int8", words(&["80"])),
        ("int8", words(&[&format!("{}7f", "f".repeat(62))])),
        ("bool", words(&["2"])),
        ("address", words(&["1".repeat(41).as_str()])),
        ("bytes4", words(&["0102030405<"])),
        ("string", words(&["20", "2", "c328<"])),
        ("string", words(&["20", "21", "61<"])),
        ("string", words(&["40", "1"])),
        ("string", words(&["60", "1"])),
        ("string", words(&[&ff, "1"])),
        ("bytes", words(&["20", &ff, "1"])),
        ("bytes", words(&["20", "ffffffff"])),
        ("bytes", words(&["20", "7fffffffffffffff"])),
        ("uint256[]", words(&["20", "2", "1"])),
        ("uint256[]", words(&["20", "ffffffff", "1"])),
        ("uint256[]", words(&["20", &ff, "1"])),
        ("uint256[3]", words(&["1", "2"])),
        ("uint256[18446744073709551615]", words(&["1", "2"])),
        ("uint256[18446744073709551615][18446744073709551615] a,bool b", words(&["1", "2"])),
        ("string[4294967296]", words(&["20", "20", "20"])),
        ("(string,bool)", words(&["20"])),
    ] {
        assert_eq!(decode(&params(list), &data), None, "{list} {}", hex::encode(&data));
    }
}

/// Nested arrays whose items all point to the same array: a few bytes would decode to 32^15 values.
#[test]
fn an_offset_bomb_is_refused_quickly() {
    let list = format!("uint256{}", "[]".repeat(15));
    // Each word is an offset and a length of 32.
    let data = words(&["20"; 80]);
    let begun = std::time::Instant::now();
    assert_eq!(decode(&params(&list), &data), None);
    let same_text = format!("string[{}]", 30);
    let mut data = words(&["20"]);
    data.extend(words(&["3c0"; 30]));
    data.extend(words(&["20", "61<"]));
    let texts = decode(&params(&same_text), &data).unwrap();
    assert_eq!(texts[0].as_array().unwrap().len(), 30, "a few offsets to the same data are valid");
    assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
}

fn size(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Object(members) => 1 + members.values().map(size).sum::<usize>(),
        Value::String(text) => 1 + text.len() / 64,
        _ => 1,
    }
}

/// Random bytes, and valid data with a few bytes changed: never a panic, never more than the budget.
#[test]
fn malformed_bytes_are_decoded_within_bounds_or_not_at_all() {
    let mut random = StdRng::seed_from_u64(16);
    let examples = examples();
    let mut decoded = 0;
    for round in 0..6_000 {
        let (list, values) = &examples[round % examples.len()];
        let mut data = encode(list, values);
        match round % 3 {
            0 => {
                let length = random.random_range(0..1024);
                data = (0..length).map(|_| random.random()).collect();
            }
            // Small numbers act as nearly valid offsets and lengths.
            1 => {
                for _ in 0..random.random_range(1..8) {
                    let word = random.random_range(0..40_usize) * 32 + 31;
                    if let Some(byte) = data.get_mut(word) {
                        *byte = random.random();
                    }
                }
            }
            _ => data.truncate(random.random_range(0..=data.len())),
        }
        if let Some(values) = decode(&params(list), &data) {
            decoded += 1;
            assert!(values.iter().map(size).sum::<usize>() <= 2 * BUDGET, "{list}: {values:?}");
        }
    }
    assert!(decoded > 100, "some of it must still be decodable: {decoded}");
}

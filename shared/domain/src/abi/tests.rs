use serde_json::json;

use super::*;

const ADDRESS: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";

fn encode(method: Value, args: Value) -> Result<String, InvalidIntent> {
    encode_call(&method, args.as_array().unwrap()).map(|data| hex::encode(&data))
}

fn words(selector: &str, words: &[&str]) -> String {
    words.iter().fold(selector.to_owned(), |data, word| match word.strip_suffix('<') {
        Some(left) => format!("{data}{left:0<64}"),
        None => format!("{data}{word:0>64}"),
    })
}

/// The field and the problem of a refusal.
fn refusal(method: &str, args: Value) -> (String, String) {
    let error = encode(json!(method), args.clone()).expect_err(&format!("{method} {args}"));
    (error.field, error.problem)
}

#[test]
fn the_examples_of_the_abi_specification_encode_as_printed_there() {
    assert_eq!(
        encode(json!("baz(uint32,bool)"), json!([69, true])).unwrap(),
        words("cdcd77c0", &["45", "1"])
    );
    assert_eq!(
        encode(json!("bar(bytes3[2])"), json!([["0x616263", "0x646566"]])).unwrap(),
        words("fce353f6", &["616263<", "646566<"])
    );
    assert_eq!(
        encode(json!("sam(bytes,bool,uint256[])"), json!(["0x64617665", true, [1, 2, 3]])).unwrap(),
        words("a5643bf2", &["60", "1", "a0", "4", "64617665<", "3", "1", "2", "3"])
    );
    assert_eq!(
        encode(
            json!("f(uint256,uint32[],bytes10,bytes)"),
            json!(["0x123", ["0x456", "0x789"], "0x31323334353637383930", "0x48656c6c6f2c20776f726c6421"])
        )
        .unwrap(),
        words(
            "8be65246",
            &[
                "123",
                "80",
                "31323334353637383930<",
                "e0",
                "2",
                "456",
                "789",
                "d",
                "48656c6c6f2c20776f726c6421<"
            ]
        )
    );
    assert_eq!(
        encode(json!("g(uint256[][],string[])"), json!([[[1, 2], [3]], ["one", "two", "three"]])).unwrap(),
        words(
            "2289b18c",
            &[
                "40",
                "140",
                "2",
                "40",
                "a0",
                "2",
                "1",
                "2",
                "1",
                "3",
                "3",
                "60",
                "a0",
                "e0",
                "3",
                "6f6e65<",
                "3",
                "74776f<",
                "5",
                "7468726565<"
            ]
        )
    );
}

#[test]
fn a_signature_may_have_names_and_modifiers() {
    let plain = encode(json!("transfer(address,uint256)"), json!([ADDRESS, "1"])).unwrap();
    assert_eq!(plain, words("a9059cbb", &[&ADDRESS[2..].to_lowercase(), "1"]));
    for decorated in [
        "function transfer(address to, uint256 amount) external returns (bool)",
        "  transfer( address payable to , uint amount ) public payable ; ",
        "function transfer(address,uint256) view returns (bool ok, (uint256 a, string[] b)[2] memory)",
    ] {
        assert_eq!(encode(json!(decorated), json!([ADDRESS, "1"])).unwrap(), plain, "{decorated}");
    }
}

#[test]
fn an_abi_fragment_is_equivalent_to_its_signature() {
    let fragment = json!({
        "type": "function", "name": "place", "stateMutability": "payable", "outputs": [],
        "inputs": [
            {"name": "order", "type": "tuple[]", "internalType": "struct Order[]", "components": [
                {"name": "owner", "type": "address"}, {"name": "sizes", "type": "uint64[2]"}]},
            {"name": "note", "type": "string"}],
    });
    let args = json!([[{"owner": ADDRESS, "sizes": [1, "2"]}], "hi"]);
    let by_signature = json!("place((address owner,uint64[2] sizes)[] order,string)");
    assert_eq!(encode(fragment, args.clone()).unwrap(), encode(by_signature, args).unwrap());
}

#[test]
fn tuples_by_name_and_by_position_are_the_same() {
    let method = json!("f(tuple(uint256 a,(bool b,string c) d) x)");
    let by_name = encode(method.clone(), json!([{"d": {"c": "z", "b": true}, "a": "1"}])).unwrap();
    let by_position = encode(method, json!([["1", [true, "z"]]])).unwrap();
    assert_eq!(by_name, by_position);
}

#[test]
fn integers_are_range_checked() {
    let good =
        [("int8", "-128", "80"), ("int8", "127", "7f"), ("uint8", "255", "ff"), ("int256", "-1", "ff")];
    for (kind, value, last_byte) in good {
        let data = encode(json!(format!("f({kind})")), json!([value])).unwrap();
        assert!(data.ends_with(last_byte), "{kind} {value}: {data}");
    }
    let negative = encode(json!("f(int16)"), json!([-2])).unwrap();
    assert!(negative.ends_with(&format!("{}fe", "f".repeat(62))), "{negative}");
    for (kind, value) in [
        ("int8", json!("-129")),
        ("int8", json!("128")),
        ("int8", json!("0xff")),
        ("uint8", json!("256")),
        ("uint8", json!(256)),
        ("uint256", json!("-1")),
        ("uint256", json!(-1)),
    ] {
        let (field, problem) = refusal(&format!("f({kind})"), json!([value]));
        assert_eq!(field, "payload.args[0]");
        assert!(problem.contains("out of range"), "{kind} {value}: {problem}");
    }
}

#[test]
fn lossy_numbers_are_refused() {
    for value in [
        json!(1.0),
        json!(1e3),
        json!(9_007_199_254_740_992_u64),
        json!(-9_007_199_254_740_992_i64),
        json!("1.0"),
        json!("1e3"),
        json!(" 1"),
        json!("+1"),
        json!("-0x1"),
        json!(""),
        json!(true),
        json!(null),
        json!([1]),
    ] {
        assert_eq!(refusal("f(int256)", json!([value])).0, "payload.args[0]");
    }
    assert!(encode(json!("f(uint256)"), json!([9_007_199_254_740_991_u64])).is_ok());
    // A number above 64 bits is parsed as a float.
    let long: Value = serde_json::from_str("[123456789012345678901234567890]").unwrap();
    assert!(refusal("f(uint256)", long).1.contains("2^53"));
}

#[test]
fn every_type_requires_its_json_type() {
    for (kind, value) in [
        ("bool", json!("true")),
        ("bool", json!(1)),
        ("string", json!(1)),
        ("bytes", json!("00")),
        ("bytes", json!("0x0")),
        ("bytes4", json!("0x010203")),
        ("bytes4", json!("0x0102030405")),
        ("address", json!("0x01")),
        ("address", json!(ADDRESS.replace("aA", "Aa"))),
        ("address", json!(1)),
        ("uint256[]", json!("1")),
        ("uint256[2]", json!([1])),
        ("(bool,bool)", json!([true])),
        ("(bool,bool)", json!({"a": true, "b": true})),
        ("(bool a,bool b)", json!({"a": true})),
    ] {
        let (field, problem) = refusal(&format!("f({kind})"), json!([value]));
        assert!(field.starts_with("payload.args[0]"), "{kind} {value}: {field}: {problem}");
    }
}

#[test]
fn an_error_contains_the_path_of_the_argument() {
    assert_eq!(refusal("f(bool,uint8[])", json!([true, [1, 300]])).0, "payload.args[1][1]");
    assert_eq!(refusal("f((uint8 a,(bool b) c))", json!([{"a": 1, "c": {"b": 1}}])).0, "payload.args[0].c.b");
    assert_eq!(refusal("f((uint8 a))", json!([{"a": 1, "x": 2}])).0, "payload.args[0].x");
    let (field, problem) = refusal("f(bool)", json!([]));
    assert_eq!((field.as_str(), problem.as_str()), ("payload.args", "expected 1 values, got 0"));
}

#[test]
fn invalid_signatures_are_refused() {
    let deep = format!("f(uint256{})", "[]".repeat(40));
    let deep_tuple = format!("f({}bool{})", "(".repeat(10_000), ")".repeat(10_000));
    for method in [
        "",
        "transfer",
        "transfer(",
        "transfer(address",
        "transfer(address,)",
        "transfer(adress)",
        "1f(bool)",
        "f(uint7)",
        "f(uint264)",
        "f(uint08)",
        "f(bytes33)",
        "f(bytes0)",
        "f(bool[0])",
        "f(bool[-1])",
        "f(bool[)",
        "f(fixed128x18)",
        "f(function)",
        "f(())",
        "f(bool a b)",
        "f(bool) returns bool",
        "f(bool) and more",
        "f(bool)) ",
        "f(bool);f(bool)",
        "f(bool,bool",
        "function",
        "f(tuple)",
        &deep,
        &deep_tuple,
    ] {
        assert_eq!(refusal(method, json!([])).0, "payload.method", "{method}");
    }
    for fragment in [
        json!(1),
        json!({}),
        json!({"type": "event", "name": "f", "inputs": []}),
        json!({"name": "f"}),
        json!({"name": "f", "inputs": [{"type": "tuple"}]}),
        json!({"name": "f", "inputs": [{"type": "uint7"}]}),
        json!({"name": "f", "inputs": [{"type": "bool[]x"}]}),
        json!({"name": "f()", "inputs": []}),
    ] {
        assert!(encode_call(&fragment, &[]).unwrap_err().field.starts_with("payload.method"), "{fragment}");
    }
}

//! Makes the document usable for client generators. Every rule here is for at least one of the generators in
//! `tools/test-openapi`, which otherwise stops, drops an operation, or writes a client that does not compile.

use std::collections::HashMap;

use poem_openapi::types::ToJSON;
use serde_yaml::{Mapping, Value};

use super::{ADDRESS, EVENT_CURSOR, REQUEST_ID, WORD, members};
use crate::error::{PROBLEM_JSON, examples};
use crate::routes::EVENT_STREAM;
use crate::wire::EXAMPLE_SUBMITTER;

const SCHEMAS: &str = "#/components/schemas/";
/// A number of 256 bits has at most 78 decimal digits.
const DECIMAL: &str = "^[0-9]{1,78}$";

/// Named strings: name, pattern, description.
const STRINGS: &[(&str, &str, &str)] = &[
    (
        "Address",
        ADDRESS,
        "An address. Requests may use lower, upper or checksum case; responses use lower case.",
    ),
    ("Hash", WORD, "Hash of a transaction or block, in lower case in responses."),
    ("RequestId", REQUEST_ID, "Idempotency key: 1 to 200 visible characters, unique per submitter."),
    (
        "Uint256",
        DECIMAL,
        "An integer of up to 256 bits in decimal digits. A string, because JSON numbers can lose digits.",
    ),
];

/// The named string of parameters and of properties that are never `null`.
const NAMED: &[(&str, &str)] = &[
    ("submitter", "Address"),
    ("address", "Address"),
    ("contractAddress", "Address"),
    ("after", "Hash"),
    ("hash", "Hash"),
    ("txHash", "Hash"),
    ("blockHash", "Hash"),
    ("replacedByHash", "Hash"),
    ("replacedBy", "Hash"),
    ("requestId", "RequestId"),
    ("Idempotency-Key", "RequestId"),
    ("gas", "Uint256"),
    ("gasLimit", "Uint256"),
    ("gasUsed", "Uint256"),
    ("gasPrice", "Uint256"),
    ("effectiveGasPrice", "Uint256"),
    ("baseFeePerGas", "Uint256"),
    ("maxFeePerGas", "Uint256"),
    ("maxPriorityFeePerGas", "Uint256"),
    ("expectedFee", "Uint256"),
    ("maxFee", "Uint256"),
    ("maxCost", "Uint256"),
];

/// Schemas of optional properties in request bodies, where `null` means the same as absent. OpenAPI 3.0 ignores
/// `nullable` beside a reference.
const NULLABLE: [&str; 4] = ["TxType", "TxSpeed", "NamedTransaction", "WebhookFilter"];

/// Replaces the types of the framework. Runs before the bounds are added.
pub(super) fn replace_types(document: &mut Value) {
    document["openapi"] = "3.0.3".into();
    walk(document, &mut signed_format);
    for (_, schema) in members(&mut document["components"]["schemas"]) {
        plain_references(schema);
    }
    let payload = &mut document["components"]["schemas"]["TxPayload"]["properties"];
    let method = payload["method"]["description"].clone();
    payload["method"] = method_schema();
    payload["method"]["description"] = method;
    payload["errors"]["items"] = reference("AbiItem");
    for name in NULLABLE {
        document["components"]["schemas"][name]["nullable"] = true.into();
    }
}

/// The rest, when the bounds are known.
pub(super) fn finish(document: &mut Value) {
    let described: HashMap<String, Value> = members(&mut document["components"]["schemas"])
        .map(|(name, schema)| (name, schema["description"].clone()))
        .collect();
    for (_, operations) in members(&mut document["paths"]) {
        for (_, operation) in members(operations) {
            finish_operation(operation, &described);
        }
    }
    for (_, schema) in members(&mut document["components"]["schemas"]) {
        for (name, property) in children(schema, "properties") {
            name_string(&name, property);
        }
    }
    add_schemas(&mut document["components"]["schemas"]);
    name_shared_values(&mut document["components"]["schemas"]);
}

fn reference(name: &str) -> Value {
    let target = format!("{SCHEMAS}{name}");
    Value::Mapping([(Value::from("$ref"), Value::from(target))].into_iter().collect())
}

/// The members of a part that may be absent. Indexing would add it.
fn children<'a>(value: &'a mut Value, part: &str) -> impl Iterator<Item = (String, &'a mut Value)> {
    value.get_mut(part).into_iter().flat_map(members)
}

fn yaml(text: &str) -> Value {
    serde_yaml::from_str(text).expect("a literal of this module")
}

/// Calls `change` for every mapping of the document, but not inside examples.
fn walk(value: &mut Value, change: &mut impl FnMut(&mut Mapping)) {
    match value {
        Value::Mapping(mapping) => {
            change(mapping);
            for (key, value) in mapping.iter_mut() {
                if !matches!(key.as_str(), Some("example" | "enum" | "default")) {
                    walk(value, change);
                }
            }
        }
        Value::Sequence(values) => values.iter_mut().for_each(|value| walk(value, change)),
        _ => {}
    }
}

/// OpenAPI has no unsigned formats: generators ignore them and use 32 bits, too few for a chain id.
fn signed_format(mapping: &mut Mapping) {
    let format = match mapping.get("format").and_then(Value::as_str) {
        Some("uint64" | "uint32") => "int64",
        Some("uint16" | "uint8") => "int32",
        _ => return,
    };
    mapping.insert("format".into(), format.into());
    if !mapping.contains_key("minimum") {
        mapping.insert("minimum".into(), 0.into());
    }
}

/// Writes a described reference, which the framework writes as `allOf`, as a plain reference. Its description moves
/// to the description of the object.
fn plain_references(schema: &mut Value) {
    let mut moved = String::new();
    for (name, property) in children(schema, "properties") {
        let Some(target) = property.get("allOf").and_then(|all| all[0].get("$ref")).cloned() else {
            continue;
        };
        let description = property["description"].as_str().unwrap_or_default().replace('\n', " ");
        moved.push_str(&format!("\n- `{name}`: {description}"));
        *property = Value::Mapping([("$ref".into(), target)].into_iter().collect());
    }
    if !moved.is_empty() {
        let before = schema["description"].as_str().unwrap_or_default();
        schema["description"] = format!("{before}\n{moved}").into();
    }
}

fn finish_operation(operation: &mut Value, described: &HashMap<String, Value>) {
    // Without a key. Absent would mean the same, but says nothing.
    if operation.get("security").is_none() {
        operation["security"] = Value::Sequence(vec![]);
    }
    for parameter in operation.get_mut("parameters").and_then(Value::as_sequence_mut).into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap_or_default().to_owned();
        name_string(&name, &mut parameter["schema"]);
    }
    for (status, response) in members(&mut operation["responses"]) {
        finish_response(&status, response, described);
    }
}

fn finish_response(status: &str, response: &mut Value, described: &HashMap<String, Value>) {
    if let Some(content) = response.get_mut("content").and_then(Value::as_mapping_mut) {
        // Generators use the whole key as a name; a parameter of the media type has no meaning here.
        let plain = |(name, media): (Value, Value)| {
            let name = name.as_str().unwrap_or_default().split(';').next().unwrap_or_default().to_owned();
            (Value::from(name), media)
        };
        *content = std::mem::take(content).into_iter().map(plain).collect();
    }
    if let Some(headers) = response.get_mut("headers").and_then(Value::as_mapping_mut)
        && let Some(location) = headers.remove("LOCATION")
    {
        headers.insert("Location".into(), location);
    }
    for (media_type, media) in children(response, "content") {
        if media_type == PROBLEM_JSON {
            media["example"] = problem_example(status);
        } else if media_type == EVENT_STREAM {
            media["example"] =
                "id: 5f3a9c21.42\ndata: {\"specversion\":\"1.0\",\"type\":\"tx.confirmed\"}\n\n".into();
        } else if media_type == "text/plain" {
            media["example"] = "# TYPE gapless_tx_create_total counter\n".into();
        }
    }
    if response["description"] == "" {
        let content = response["content"].as_mapping().and_then(|content| content.values().next());
        let name = content.and_then(|media| media["schema"].get("$ref")).and_then(Value::as_str);
        let schema = name.and_then(|name| described.get(name.trim_start_matches(SCHEMAS)));
        let first_line = schema.and_then(Value::as_str).and_then(|text| text.lines().next());
        response["description"] = first_line.unwrap_or("The metrics.").into();
    }
}

/// The first example with this status.
fn problem_example(status: &str) -> Value {
    let error = examples().into_iter().find(|error| error.status_and_code().0.as_str() == status);
    let problem = error.map(|error| error.problem().to_json());
    serde_yaml::to_value(problem).expect("JSON is YAML")
}

/// A reference to the named string. A property with a description of its own stays, with the pattern: a reference
/// cannot have a description.
fn name_string(name: &str, schema: &mut Value) {
    let Some((_, named)) = NAMED.iter().find(|(known, _)| *known == name) else { return };
    if schema["type"] != "string" || schema.get("nullable").is_some() || schema["pattern"] == EVENT_CURSOR {
        return;
    }
    let implied = ["", "Lower case.", "Decimal."];
    if implied.contains(&schema["description"].as_str().unwrap_or_default()) {
        *schema = reference(named);
    } else if let Some((_, pattern, _)) = STRINGS.iter().find(|(known, ..)| known == named) {
        schema["pattern"] = (*pattern).into();
    }
}

fn add_schemas(schemas: &mut Value) {
    for (name, pattern, description) in STRINGS {
        let example = match *name {
            "Address" => EXAMPLE_SUBMITTER.to_owned(),
            "Hash" => format!("0x{}", "4e".repeat(32)),
            "RequestId" => "invoice-1042".to_owned(),
            _ => "1000000000000000000".to_owned(),
        };
        let mut schema = yaml("type: string");
        schema["description"] = (*description).into();
        schema["pattern"] = (*pattern).into();
        schema["example"] = example.into();
        schemas[*name] = schema;
    }
    schemas["AbiItem"] = abi_item();
    schemas["AbiEntry"] = abi_entry();
    schemas["Problem"]["properties"]["code"] = reference("ProblemCode");
    let mut codes = yaml("type: string");
    codes["description"] = "Stable error code. Codes are never renamed.".into();
    codes["enum"] = examples().iter().map(|error| Value::from(error.code())).collect();
    schemas["ProblemCode"] = codes;
    let mapping = schemas.as_mapping_mut().into_iter();
    for mapping in mapping {
        let mut sorted: Vec<(Value, Value)> = std::mem::take(mapping).into_iter().collect();
        sorted.sort_by(|(a, _), (b, _)| a.as_str().cmp(&b.as_str()));
        mapping.extend(sorted);
    }
}

fn method_schema() -> Value {
    yaml("oneOf: [{type: string, nullable: true}, {$ref: '#/components/schemas/AbiEntry'}]")
}

fn abi_item() -> Value {
    yaml(
        "description: A signature, or an entry of an ABI.\n\
         oneOf: [{type: string}, {$ref: '#/components/schemas/AbiEntry'}]",
    )
}

fn abi_entry() -> Value {
    yaml(
        "type: object\n\
         description: An entry of an ABI, as compilers write it. Further properties are ignored.\n\
         required: [name]\n\
         properties:\n\
         \x20 type: {type: string, description: '`function` or `error`.'}\n\
         \x20 name: {type: string}\n\
         \x20 inputs: {type: array, description: 'The parameters, as in the ABI.', items: {type: object}}\n",
    )
}

/// Go has one namespace for the values of all enums: values that several enums have get the name of their enum.
fn name_shared_values(schemas: &mut Value) {
    let mut uses: HashMap<String, usize> = HashMap::new();
    for (_, schema) in members(schemas) {
        for value in enum_values(schema) {
            *uses.entry(value.to_uppercase()).or_default() += 1;
        }
    }
    for (name, schema) in members(schemas) {
        let values = enum_values(schema);
        let upper = values.iter().map(|value| value.to_uppercase());
        if upper.clone().any(|value| uses[&value] > 1) {
            let named = upper.map(|value| if uses[&value] > 1 { prefixed(&name, &value) } else { value });
            schema["x-enum-varnames"] = named.map(Value::from).collect();
        }
    }
}

fn enum_values(schema: &Value) -> Vec<String> {
    let values = schema.get("enum").and_then(Value::as_sequence).into_iter().flatten();
    values.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// `TX_STATE_PROTECT` for `TxState` and `PROTECT`.
fn prefixed(schema: &str, value: &str) -> String {
    let mut name = String::new();
    for (index, letter) in schema.char_indices() {
        if index > 0 && letter.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    format!("{name}_{value}")
}

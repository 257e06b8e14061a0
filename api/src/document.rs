//! The OpenAPI document: what the framework makes of the code, and what it cannot say.
//!
//! Adds nothing but what the code does anyway; `tests/tests/e2e/openapi.rs` holds the document against a running API.

use poem::http::HeaderValue;
use serde_yaml::{Mapping, Value};

use crate::routes;

const ADDRESS: &str = "^0x[0-9a-fA-F]{40}$";
const WORD: &str = "^0x[0-9a-fA-F]{64}$";
const BYTES: &str = "^0x([0-9a-fA-F]{2})*$";
/// 77 digits always fit into 256 bits.
const AMOUNT: &str = "^([0-9]{1,77}|0x[0-9a-fA-F]{1,64})$";
/// Neither blanks nor control characters. Of what is not ASCII only letters and digits are taken, which no pattern says
/// that every reader of the document understands.
const REQUEST_ID: &str = r"^[^\x00-\x20\x7f-\xa0]{1,200}$";
const WAIT: &str = "^(0|[0-9]{1,9}(ms|s|m|h))$";
/// Printable, with lines and tabs, and not blank.
const REASON: &str =
    r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x08\x0b-\x1f\x7f-\x9f]*$";
const TX_CURSOR: &str = "^[0-9a-f]{32}$";
const SUBMITTER_CURSOR: &str = "^[0-9]{1,18}:0x[0-9a-fA-F]{40}$";

/// Of parameters and of members of request bodies, by name.
const PATTERNS: &[(&str, &str)] = &[
    ("submitter", ADDRESS),
    ("address", ADDRESS),
    ("to", ADDRESS),
    ("after", WORD),
    ("data", BYTES),
    ("value", AMOUNT),
    ("gasLimit", AMOUNT),
    ("gasPrice", AMOUNT),
    ("maxFeePerGas", AMOUNT),
    ("maxPriorityFeePerGas", AMOUNT),
    ("requestId", REQUEST_ID),
    ("Idempotency-Key", REQUEST_ID),
    ("wait", WAIT),
    ("reason", REASON),
];

/// Objects that clients send. What they do not know of is refused, and `null` is as good as leaving a member out.
const SENT: [&str; 9] = [
    "CreateTx",
    "TxPayload",
    "AccessListEntry",
    "BatchRequest",
    "AskReason",
    "Resolution",
    "OperatorReason",
    "AdoptReason",
    "NamedTransaction",
];

/// As in `openapi.yaml`.
pub fn spec_yaml() -> String {
    let text = serde_yaml::to_string(&finished()).expect("the document is plain YAML");
    // A hex text without quotes is a number to other readers of YAML.
    let quoted = |line: &str| match line.rsplit_once(' ') {
        Some((before, hex)) if hex.starts_with("0x") => format!("{before} '{hex}'\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(quoted).collect()
}

/// The page that shows the document.
pub(crate) fn page() -> String {
    let (service, finished) = (routes::service(), serde_json::to_string(&finished()));
    service.swagger_ui_html().replace(&service.spec(), &finished.expect("the document is plain JSON"))
}

fn finished() -> Value {
    let made = routes::service().spec_yaml();
    let mut document: Value = serde_yaml::from_str(&made).expect("the framework writes YAML");
    for (path, operations) in members(&mut document["paths"]) {
        let cursor = if path.contains("submitters") { SUBMITTER_CURSOR } else { TX_CURSOR };
        for (_, operation) in members(operations) {
            let parameters = operation.get_mut("parameters").and_then(Value::as_sequence_mut);
            for parameter in parameters.into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap_or_default().to_owned();
                bound(&name, &mut parameter["schema"]);
                if name == "cursor" {
                    parameter["schema"]["pattern"] = cursor.into();
                }
            }
        }
    }
    for (name, schema) in members(&mut document["components"]["schemas"]) {
        if SENT.contains(&name.as_str()) {
            strict(schema);
        }
    }
    document
}

fn members(value: &mut Value) -> impl Iterator<Item = (String, &mut Value)> {
    let mapping = value.as_mapping_mut().into_iter().flatten();
    mapping.map(|(name, value)| (name.as_str().unwrap_or_default().to_owned(), value))
}

/// What a value of this name looks like.
fn bound(name: &str, schema: &mut Value) {
    if let Some((_, pattern)) = PATTERNS.iter().find(|(known, _)| *known == name) {
        schema["pattern"] = (*pattern).into();
    }
    match name {
        "txId" => schema["format"] = "uuid".into(),
        "storageKeys" => schema["items"]["pattern"] = WORD.into(),
        "chainId" => {
            schema["minimum"] = 0.into();
            // What the database can hold.
            schema["maximum"] = i64::MAX.into();
        }
        "block" => {
            schema["minimum"] = 0.into();
            schema["maximum"] = routes::MAX_BLOCK.into();
        }
        "limit" => {
            schema["minimum"] = 1.into();
            schema["maximum"] = routes::MAX_PAGE.into();
        }
        _ => {}
    }
}

fn strict(schema: &mut Value) {
    schema["additionalProperties"] = false.into();
    let required = schema["required"].as_sequence().cloned().unwrap_or_default();
    for (name, member) in members(&mut schema["properties"]) {
        bound(&name, member);
        let optional = !required.iter().any(|required| required.as_str() == Some(&name));
        // A member without a type may be anything, and one with a default is never missing.
        let has_type = member.get("type").is_some() || member.get("allOf").is_some();
        if optional && has_type && member.get("default").is_none() {
            member["nullable"] = true.into();
        }
    }
}

/// Which methods each path has, for `Allow`.
#[derive(Debug)]
pub(crate) struct Methods(Vec<(Vec<String>, HeaderValue)>);

impl Methods {
    pub(crate) fn new() -> Methods {
        let mut document = finished();
        let mut paths: Vec<(Vec<String>, HeaderValue)> = members(&mut document["paths"])
            .map(|(path, operations)| (parts(&path), allow(operations)))
            .collect();
        let read = || HeaderValue::from_static("GET, HEAD");
        paths.extend(["/docs", "/openapi.yaml"].map(|path| (parts(path), read())));
        // Where a word and a parameter both fit, the word is the route.
        paths.sort_by_key(|(parts, _)| parts.iter().filter(|part| part.starts_with('{')).count());
        Methods(paths)
    }

    /// `None`: a path that is not in the document.
    pub(crate) fn of(&self, path: &str) -> Option<HeaderValue> {
        let asked = parts(path);
        let fits = |known: &[String]| {
            known.len() == asked.len()
                && known.iter().zip(&asked).all(|(known, asked)| known.starts_with('{') || known == asked)
        };
        self.0.iter().find(|(known, _)| fits(known)).map(|(_, allow)| allow.clone())
    }
}

fn parts(path: &str) -> Vec<String> {
    path.trim_matches('/').split('/').map(str::to_owned).collect()
}

fn allow(operations: &Value) -> HeaderValue {
    let names = operations.as_mapping().map(Mapping::keys).into_iter().flatten();
    let mut methods: Vec<String> = names.filter_map(Value::as_str).map(str::to_uppercase).collect();
    // Whatever can be read can be looked at.
    if methods.iter().any(|method| method == "GET") {
        methods.push("HEAD".into());
    }
    methods.join(", ").try_into().expect("names of methods are plain text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openapi_yaml_is_what_the_code_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../openapi.yaml");
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            written == spec_yaml(),
            "openapi.yaml is out of date; run: cargo run -p gapless-api -- --print-openapi > openapi.yaml"
        );
    }

    #[test]
    fn every_object_that_clients_send_is_in_the_document_and_strict() {
        let document = finished();
        for name in SENT {
            let schema = &document["components"]["schemas"][name];
            assert_eq!(schema["additionalProperties"], Value::from(false), "{name}");
        }
        assert_eq!(document["components"]["schemas"]["TxPayload"]["properties"]["to"]["pattern"], ADDRESS);
    }

    #[test]
    fn addresses_in_examples_are_texts() {
        let spelled = spec_yaml();
        let bare =
            spelled.lines().find(|line| line.rsplit(' ').next().is_some_and(|word| word.starts_with("0x")));
        assert_eq!(bare, None);
    }

    #[test]
    fn the_page_shows_the_finished_document() {
        assert!(page().contains(r#""additionalProperties":false"#));
    }

    #[test]
    fn a_path_says_which_methods_it_has() {
        let methods = Methods::new();
        let of = |path: &str| methods.of(path).map(|allow| allow.to_str().unwrap().to_owned());
        assert_eq!(of("/api/v1/tx").as_deref(), Some("POST, GET, HEAD"));
        assert_eq!(of("/api/v1/tx/batch").as_deref(), Some("POST"));
        assert_eq!(of("/api/v1/tx/7").as_deref(), Some("GET, HEAD"));
        assert_eq!(of("/docs").as_deref(), Some("GET, HEAD"));
        assert_eq!(of("/nowhere"), None);
    }
}

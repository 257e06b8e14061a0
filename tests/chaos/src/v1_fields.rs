//! Checks that every answer of the v1 API has the fields that `openapi.yaml` of the previous release requires, so that its
//! clients can read it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use parking_lot::Mutex;
use serde_json::Value;

/// References nest less deep.
const MAX_DEPTH: usize = 32;

/// What was checked, for the checker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedAnswers {
    /// Number of checked answers, by operation.
    pub answers: BTreeMap<String, usize>,
    /// Operation, status and field. Each once.
    pub missing: BTreeSet<String>,
}

/// The document of the previous release, and what was checked so far.
#[derive(Debug)]
pub(crate) struct V1Fields {
    document: Value,
    checked: Mutex<CheckedAnswers>,
}

impl V1Fields {
    pub(crate) fn of_document(path: &Path) -> V1Fields {
        let text =
            std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        V1Fields::new(&text)
    }

    fn new(text: &str) -> V1Fields {
        let document: Value = serde_yaml::from_str(text).expect("openapi.yaml of the previous release");
        V1Fields { document, checked: Mutex::default() }
    }

    /// `operation` is method and path of the document: `GET /api/v1/tx/{txId}`.
    pub(crate) fn check(&self, operation: &str, status: u16, answer: &Value) {
        let missing = self.missing(operation, status, answer);
        let mut checked = self.checked.lock();
        *checked.answers.entry(operation.to_owned()).or_default() += 1;
        checked.missing.extend(missing.into_iter().map(|field| format!("{operation} {status}: {field}")));
    }

    pub(crate) fn checked(&self) -> CheckedAnswers {
        self.checked.lock().clone()
    }

    /// What a client of the previous release does not find in this answer.
    fn missing(&self, operation: &str, status: u16, answer: &Value) -> Vec<String> {
        let (method, path) = operation.split_once(' ').expect("method and path");
        let responses = &self.document["paths"][path][method.to_lowercase()]["responses"];
        assert!(responses.is_object(), "the previous release has no {operation}");
        let Some(response) = responses.get(status.to_string()) else {
            return vec!["the status is not in the document".to_owned()];
        };
        let mut missing = Vec::new();
        let media = response["content"].as_object().and_then(|content| content.values().next());
        if let Some(schema) = media.map(|media| &media["schema"]) {
            self.compare(schema, answer, "", MAX_DEPTH, &mut missing);
        }
        missing
    }

    fn compare(&self, schema: &Value, value: &Value, place: &str, depth: usize, missing: &mut Vec<String>) {
        assert!(depth > 0, "the schema of {place} is recursive");
        let depth = depth - 1;
        if let Some(name) = schema["$ref"].as_str() {
            let pointer = name.strip_prefix('#').expect("a reference within the document");
            let schema = self.document.pointer(pointer).unwrap_or_else(|| panic!("{name} is not defined"));
            return self.compare(schema, value, place, depth, missing);
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            self.compare(part, value, place, depth, missing);
        }
        if schema["type"] == "object" && !value.is_object() {
            missing.push(format!("{place} is not an object").trim().to_owned());
            return;
        }
        for field in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if value.get(field).is_none() {
                missing.push(format!("{place}.{field} is missing"));
            }
        }
        // Optional fields may be null. Alternatives (`oneOf`) are in requests and in arguments of errors only.
        for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
            if let Some(value) = value.get(field).filter(|value| !value.is_null()) {
                self.compare(schema, value, &format!("{place}.{field}"), depth, missing);
            }
        }
        if let Some(items) = schema.get("items") {
            for value in value.as_array().into_iter().flatten() {
                self.compare(items, value, &format!("{place}[]"), depth, missing);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const GET: &str = "GET /api/v1/tx/{txId}";

    const DOCUMENT: &str = r"
paths:
  /api/v1/tx/{txId}:
    get:
      responses:
        '200':
          content:
            application/json:
              schema:
                $ref: '#/components/schemas/Tx'
        '404':
          content:
            application/problem+json:
              schema:
                $ref: '#/components/schemas/Problem'
components:
  schemas:
    Problem:
      type: object
      required: [code]
    Tx:
      type: object
      required: [txId, state, requests]
      properties:
        txId:
          type: string
        state:
          type: string
        subState:
          type: string
        waiting:
          $ref: '#/components/schemas/Waiting'
        requests:
          type: array
          items:
            $ref: '#/components/schemas/Request'
    Waiting:
      type: object
      required: [since]
    Request:
      type: object
      required: [action]
";

    fn missing(status: u16, answer: &Value) -> Vec<String> {
        let fields = V1Fields::new(DOCUMENT);
        fields.check(GET, status, answer);
        assert_eq!(fields.checked().answers[GET], 1);
        fields.checked().missing.into_iter().collect()
    }

    #[test]
    fn an_answer_with_all_required_fields_and_others_is_accepted() {
        let answer = json!({ "txId": "a", "state": "QUEUED", "subState": null, "added": 1,
            "waiting": { "since": 5 }, "requests": [{ "action": "cancel" }] });
        assert_eq!(missing(200, &answer), Vec::<String>::new());
        assert_eq!(missing(404, &json!({ "code": "not_found" })), Vec::<String>::new());
    }

    #[test]
    fn a_missing_field_is_found_at_any_depth() {
        let answer = json!({ "txId": "a", "requests": [{ "action": "cancel" }, {}], "waiting": {} });
        let found = missing(200, &answer);
        let at = |what: &str| format!("{GET} 200: {what}");
        assert_eq!(
            found,
            [at(".requests[].action is missing"), at(".state is missing"), at(".waiting.since is missing")]
        );
        assert_eq!(missing(404, &json!({})), [format!("{GET} 404: .code is missing")]);
    }

    #[test]
    fn another_status_and_a_body_that_is_no_object_are_found() {
        assert_eq!(missing(418, &json!({})), [format!("{GET} 418: the status is not in the document")]);
        assert_eq!(missing(200, &Value::Null)[0], format!("{GET} 200: is not an object"));
    }
}

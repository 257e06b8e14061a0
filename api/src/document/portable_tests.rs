//! What makes a client generator fail must not come back. `make test-openapi` runs the generators; these tests need no
//! tools.

use std::collections::{BTreeSet, HashSet};

use serde_yaml::Value;

use super::completed_document;
use crate::error::{ApiError, examples};

/// Every mapping of the document with its path, but nothing inside examples.
fn mappings(document: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    let mut open = vec![(String::new(), document)];
    while let Some((path, value)) = open.pop() {
        if let Some(mapping) = value.as_mapping() {
            found.push((path.clone(), value));
            let inner = mapping.iter().filter(|(key, _)| key.as_str() != Some("example"));
            open.extend(inner.map(|(key, value)| (format!("{path}/{}", key.as_str().unwrap_or("?")), value)));
        }
        for (index, value) in value.as_sequence().into_iter().flatten().enumerate() {
            open.push((format!("{path}/{index}"), value));
        }
    }
    found
}

fn violations(wrong: impl Fn(&str, &Value) -> bool) -> Vec<String> {
    let document = completed_document();
    mappings(&document).into_iter().filter(|(path, value)| wrong(path, value)).map(|(path, _)| path).collect()
}

fn operations(document: &Value) -> Vec<&Value> {
    let paths = document["paths"].as_mapping().unwrap();
    paths.values().flat_map(|path| path.as_mapping().unwrap().values()).collect()
}

const NONE: Vec<String> = Vec::new();

#[test]
fn a_reference_stands_alone() {
    assert_eq!(violations(|_, value| value.get("allOf").is_some()), NONE);
    let alone = |value: &Value| value.as_mapping().is_some_and(|mapping| mapping.len() == 1);
    assert_eq!(violations(|_, value| value.get("$ref").is_some() && !alone(value)), NONE);
}

#[test]
fn integers_are_signed_and_have_their_lower_bound() {
    let unsigned = |value: &Value| value["format"].as_str().is_some_and(|format| format.starts_with("uint"));
    assert_eq!(violations(|_, value| unsigned(value)), NONE);
    let document = completed_document();
    let chain_id = &document["components"]["schemas"]["Tx"]["properties"]["chainId"];
    assert_eq!((&chain_id["format"], &chain_id["minimum"]), (&"int64".into(), &0.into()));
}

#[test]
fn content_types_have_no_parameters() {
    let has = |value: &Value| {
        let keys = value.get("content").and_then(Value::as_mapping).into_iter().flat_map(|map| map.keys());
        keys.filter_map(Value::as_str).any(|name| name.contains(';'))
    };
    assert_eq!(violations(|_, value| has(value)), NONE);
}

#[test]
fn nullable_schemas_have_a_type() {
    assert_eq!(violations(|_, value| value.get("nullable").is_some() && value.get("type").is_none()), NONE);
}

#[test]
fn every_property_has_a_type_except_values_of_any_type() {
    let untyped = |path: &str, value: &Value| {
        let parent = path.rsplit('/').nth(1);
        let typed = ["type", "$ref", "oneOf"].iter().any(|key| value.get(key).is_some());
        parent == Some("properties") && !typed
    };
    // The value of an argument of a custom error.
    assert_eq!(violations(untyped), ["/components/schemas/ErrorArgument/properties/value"]);
}

#[test]
fn every_request_and_every_response_has_an_example() {
    let document = completed_document();
    let mut missing = BTreeSet::new();
    for (path, value) in mappings(&document) {
        let content = value.get("content").and_then(Value::as_mapping).into_iter().flatten();
        for (_, media) in content {
            let target = media["schema"].get("$ref").and_then(Value::as_str).unwrap_or_default();
            let name = target.rsplit('/').next().unwrap_or_default();
            let schema = document["components"]["schemas"].get(name).and_then(|schema| schema.get("example"));
            if media.get("example").or(schema).is_none_or(Value::is_null) {
                missing.insert(path.clone());
            }
        }
    }
    assert_eq!(missing, BTreeSet::new());
}

#[test]
fn the_codes_of_problems_are_those_of_the_code() {
    let document = completed_document();
    let listed = document["components"]["schemas"]["ProblemCode"]["enum"].as_sequence().unwrap().clone();
    let codes: Vec<Value> = examples().iter().map(ApiError::code).map(Value::from).collect();
    assert_eq!(listed, codes);
    let code = &document["components"]["schemas"]["Problem"]["properties"]["code"];
    assert_eq!(code["$ref"], "#/components/schemas/ProblemCode");
}

#[test]
fn values_of_enums_have_different_names() {
    let document = completed_document();
    let mut names = HashSet::new();
    for (path, schema) in mappings(&document) {
        let values = schema.get("x-enum-varnames").or(schema.get("enum")).and_then(Value::as_sequence);
        for value in values.into_iter().flatten().filter_map(Value::as_str) {
            assert!(names.insert(value.to_uppercase()), "{path}: {value}");
        }
    }
}

#[test]
fn every_operation_has_an_id_a_description_and_its_security() {
    let document = completed_document();
    let mut ids = HashSet::new();
    for operation in operations(&document) {
        let id = operation["operationId"].as_str().unwrap();
        assert!(ids.insert(id), "{id} is used twice");
        assert!(operation["description"].as_str().is_some_and(|text| !text.is_empty()), "{id}");
        assert!(operation.get("security").is_some(), "{id}");
    }
}

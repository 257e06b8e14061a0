//! Tests that `gapless.example.toml` contains every configuration key, commented out where it has no default.
//!
//! The keys come from the parser: its error for an unknown key lists the valid ones.

use std::collections::BTreeSet;

use figment::Figment;
use figment::error::Kind;
use figment::providers::Serialized;
use serde_json::{Value, json};

use super::File;

const UNKNOWN: &str = "there_is_no_such_key";
const SAMPLE: &str = include_str!("../../../gapless.example.toml");
/// One table of a list, and any name in a table of tables.
const EACH: &str = "[]";
const ANY: &str = "*";

/// The kind of value at a path of the file.
#[derive(Debug, PartialEq)]
enum Place {
    Value,
    Table(&'static [&'static str]),
    List,
    Named,
}

fn at(path: &[&str]) -> Value {
    path.iter().rev().fold(json!({ UNKNOWN: 1 }), |inner, part| match *part {
        EACH => json!([inner]),
        ANY => json!({ "any": inner }),
        key => json!({ key: inner }),
    })
}

fn place(path: &[&str]) -> Place {
    let Err(errors) = Figment::from(Serialized::defaults(at(path))).extract::<File>() else {
        return Place::Value;
    };
    for error in errors {
        match error.kind {
            Kind::UnknownField(ref name, keys) if name == UNKNOWN => return Place::Table(keys),
            Kind::InvalidType(_, ref wanted) if wanted.contains("sequence") => return Place::List,
            Kind::InvalidType(..) if error.path.last().is_some_and(|last| last == UNKNOWN) => {
                return Place::Named;
            }
            _ => {}
        }
    }
    Place::Value
}

fn collect(path: &mut Vec<&'static str>, keys: &mut BTreeSet<String>) {
    let inside = match place(path) {
        Place::Table(inside) => {
            for key in inside {
                // A chain's table has the same keys as the common sections.
                if path.as_slice() == ["chain", ANY] && *key != "id" {
                    continue;
                }
                path.push(key);
                collect(path, keys);
                path.pop();
            }
            return;
        }
        Place::Value => None,
        Place::List => Some(EACH),
        Place::Named => Some(ANY),
    };
    if let Some(part) = inside {
        path.push(part);
        if matches!(place(path), Place::Table(_)) {
            collect(path, keys);
            path.pop();
            return;
        }
        path.pop();
    }
    keys.insert(path.join("."));
}

/// The kinds of remote signers have the same keys; the sample shows them once.
fn one_kind(key: String) -> String {
    key.replace("signer.clef.", "signer.json_rpc.").replace("signer.http.", "signer.json_rpc.")
}

/// Every key that the parser accepts.
fn known() -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    collect(&mut Vec::new(), &mut keys);
    keys.into_iter().map(one_kind).collect()
}

/// Uncomments lines that contain a table or a key.
fn uncommented(text: &str) -> String {
    let is_setting = |line: &str| {
        let key = line.split(" = ").next().filter(|key| key.len() < line.len());
        let named = |key: &str| key.chars().all(|c| c.is_ascii_lowercase() || matches!(c, '_' | '.'));
        line.starts_with("[[") || line.starts_with('[') || key.is_some_and(named)
    };
    let open = |line: &str| match line.strip_prefix("# ") {
        Some(rest) if is_setting(rest) => rest.to_owned(),
        _ => line.to_owned(),
    };
    text.lines().map(open).collect::<Vec<_>>().join("\n")
}

fn keys_in(value: &toml::Value, path: &str, known: &BTreeSet<String>, keys: &mut BTreeSet<String>) {
    let below = |part: &str| if path.is_empty() { part.to_owned() } else { format!("{path}.{part}") };
    match value {
        _ if known.contains(&one_kind(path.to_owned())) => {
            keys.insert(one_kind(path.to_owned()));
        }
        toml::Value::Table(table) => {
            for (key, inner) in table {
                let part = if matches!(path, "submitter" | "chain") { ANY } else { key.as_str() };
                // The same keys as in the common section.
                let common = path.strip_prefix("chain.*").map(|_| key.clone());
                keys_in(inner, &common.filter(|key| key != "id").unwrap_or_else(|| below(part)), known, keys);
            }
        }
        toml::Value::Array(list) => list.iter().for_each(|inner| keys_in(inner, &below(EACH), known, keys)),
        _ => {
            keys.insert(one_kind(path.to_owned()));
        }
    }
}

fn shown(text: &str, known: &BTreeSet<String>) -> BTreeSet<String> {
    let sample: toml::Value = toml::from_str(&uncommented(text)).expect("the sample, with all of its keys");
    let mut keys = BTreeSet::new();
    keys_in(&sample, "", known, &mut keys);
    keys
}

#[test]
fn the_sample_holds_every_key_and_no_other() {
    let known = known();
    for key in
        ["rpc.url", "submitter.*.policy.deploy", "submitter.*.queue_limit", "chain.*.id", "api.tls.cert"]
    {
        assert!(known.contains(key), "{key} is not found: {known:#?}");
    }
    let shown = shown(SAMPLE, &known);
    let absent: Vec<_> = known.difference(&shown).collect();
    let unknown: Vec<_> = shown.difference(&known).collect();
    assert!(absent.is_empty() && unknown.is_empty(), "absent: {absent:#?}, unknown: {unknown:#?}");
}

/// Negative control: a key removed from the sample is detected.
#[test]
fn a_key_that_is_not_in_the_sample_is_missed() {
    let known = known();
    for key in ["renew_interval = ", "# retention = ", "# queue_limit = ", "# deploy = ", "# chain_id = "] {
        let without: Vec<&str> = SAMPLE.lines().filter(|line| !line.starts_with(key)).collect();
        assert_ne!(without.len(), SAMPLE.lines().count(), "{key}");
        assert!(!known.is_subset(&shown(&without.join("\n"), &known)), "{key} is not missed");
    }
}

//! Removes configured values from configuration errors; keys and locations remain. Otherwise a URL where a list is
//! expected, or a password with a missing quote, would appear in the log.

use figment::Metadata;
use figment::error::{Actual, Kind};

/// Of every environment variable that sets a key.
pub(super) const ENV_PREFIX: &str = "GAPLESS__";

/// One line for each error: where the key was set, the key as written there, and the problem. `section` precedes the
/// keys of an error in a part of the file.
pub(super) fn redacted(error: figment::Error, section: &str) -> String {
    error.into_iter().map(|error| line(&error, section)).collect::<Vec<_>>().join("\n")
}

fn line(error: &figment::Error, section: &str) -> String {
    let problem = problem(&error.kind);
    let parts: Vec<&str> = (!section.is_empty())
        .then_some(section)
        .into_iter()
        .chain(error.path.iter().map(String::as_str))
        .collect();
    let key = parts.join(".");
    let place = error.metadata.as_ref().map(|metadata| place(metadata, &key));
    match (place, key.is_empty()) {
        (Some(place), false) => format!("{place}: {key}: {problem}"),
        (Some(place), true) => format!("{place}: {problem}"),
        (None, false) => format!("{key}: {problem}"),
        (None, true) => problem,
    }
}

/// The file or the environment variable that sets a key.
pub(super) fn place(metadata: &Metadata, key: &str) -> String {
    match &metadata.source {
        Some(source) => source.to_string(),
        None if metadata.name.contains("environment") => {
            format!("environment variable {ENV_PREFIX}{}", key.replace('.', "__").to_uppercase())
        }
        None => metadata.name.to_string(),
    }
}

/// Serde's message for a text that is no `SocketAddr`.
const BAD_SOCKET_ADDRESS: &str = "invalid socket address syntax";

/// Without the value.
fn problem(kind: &Kind) -> String {
    match kind {
        Kind::Message(text) if text == BAD_SOCKET_ADDRESS => {
            format!("expected {}, found another text", plain("socket address"))
        }
        Kind::Message(text) => without_source(text),
        Kind::InvalidType(actual, expected) => {
            format!("expected {}, found {}", plain(expected), found(actual, "a text"))
        }
        Kind::InvalidValue(actual, expected) => {
            format!("expected {}, found {}", plain(expected), found(actual, "another text"))
        }
        Kind::InvalidLength(length, expected) => format!("expected {expected}, found {length} elements"),
        Kind::UnknownVariant(_, expected) => format!("expected {}, found another text", one_of(expected)),
        Kind::UnknownField(name, expected) => match nearest(name, expected) {
            Some(known) => format!("unknown key; did you mean `{known}`?"),
            None => format!("unknown key; known here: {}", expected.join(", ")),
        },
        Kind::MissingField(name) => format!("the key `{name}` is missing"),
        Kind::DuplicateField(name) => format!("the key `{name}` is set twice"),
        Kind::Unsupported(actual) | Kind::UnsupportedKey(actual, _) => {
            format!("{} is not possible here", found(actual, "a text"))
        }
        Kind::ISizeOutOfRange(_) | Kind::USizeOutOfRange(_) => "the number is out of range".to_owned(),
    }
}

/// The names of types in Rust as words.
fn plain(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "a whole number that is not negative",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" | "bool" => "true or false",
        "a string" | "string" | "a borrowed string" => "a text in quotes",
        "a sequence" | "sequence" => "a list in brackets",
        "a map" | "map" => "a table",
        "socket address" => "an address with a port such as \"127.0.0.1:8080\"",
        "a duration" => "a duration such as \"10s\"",
        other => other.strip_prefix("struct ").map_or(other, |_| "a table"),
    }
}

/// Numbers and booleans are shown: a secret that looks like one was already parsed as a string.
fn found(actual: &Actual, text: &str) -> String {
    match actual {
        Actual::Bool(value) => value.to_string(),
        Actual::Unsigned(number) => number.to_string(),
        Actual::Signed(number) => number.to_string(),
        Actual::Float(number) => number.to_string(),
        Actual::Seq => "a list".to_owned(),
        Actual::Map => "a table".to_owned(),
        Actual::Unit | Actual::Option => "nothing".to_owned(),
        _ => text.to_owned(),
    }
}

fn one_of(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(" or ")
}

/// The known key that differs in the fewest characters, if it is at most a third of them.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let (distance, nearest) = known.iter().map(|known| (distance(name, known), *known)).min()?;
    (distance * 3 <= name.chars().count().max(3)).then_some(nearest)
}

/// The number of characters to insert, delete or replace (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

/// Removes the source lines (`12 | …`) that a syntax error quotes. The location remains.
fn without_source(text: &str) -> String {
    let quotes = |line: &str| {
        line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start().starts_with('|')
    };
    text.lines().filter(|line| !quotes(line)).collect::<Vec<_>>().join(": ")
}

/// Does not contain the value: it may be the secret itself.
pub(super) const NOT_A_VARIABLE: &str = "is not the name of an environment variable";

/// Whether this can be the name of an environment variable, and is not a private key entered by mistake.
pub(super) fn is_variable_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let digits = name.strip_prefix("0x").unwrap_or(name);
    let is_key = digits.len() == 64 && digits.chars().all(|c| c.is_ascii_hexdigit());
    !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(plain) && !is_key
}

#[cfg(test)]
mod tests {
    use figment::Figment;
    use figment::providers::{Format, Toml};

    use super::*;
    use crate::{Database, Rpc, Signer};

    fn error_of<T: serde::de::DeserializeOwned>(toml: &str) -> String {
        redacted(Figment::from(Toml::string(toml)).extract::<T>().map(drop).expect_err(toml), "")
    }

    #[test]
    fn an_error_names_key_and_line_but_no_value() {
        for (error, place) in [
            (error_of::<Rpc>("urls = \"https://node/v3/hunter2\""), "urls"),
            (error_of::<Rpc>("broadcast = \"hunter2\""), "broadcast"),
            (error_of::<Rpc>("timeout = \"hunter2\""), "timeout"),
            (error_of::<Database>("url = \"postgres://u:hunter2@h"), "line 1"),
            (error_of::<Database>("url = postgres://u:hunter2@h"), "line 1"),
            (error_of::<Database>("max_connections = 1\nurl = 'hunter2' 'hunter2'"), "line 2"),
            (error_of::<Signer>("raw_key_env = \"hunter2\""), "raw_key_env"),
        ] {
            assert!(!error.contains("hunter2"), "{error}");
            assert!(error.contains(place), "{error}");
        }
    }

    #[test]
    fn a_key_is_no_name_of_a_variable() {
        let key = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";
        for name in ["KEY", "_key1", "GAPLESS_DEV_KEY"] {
            assert!(is_variable_name(name), "{name}");
        }
        for name in ["", "1KEY", "a b", "pass-word", key, &format!("0x{key}")] {
            assert!(!is_variable_name(name), "{name}");
        }
    }
}

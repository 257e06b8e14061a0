//! Removes configured values from configuration errors; keys and locations remain. Otherwise a URL where a list is
//! expected, or a password with a missing quote, would appear in the log.

use figment::error::{Actual, Kind};

/// One line for each error: the problem, the key, and where it was set.
pub(super) fn redacted(error: figment::Error) -> String {
    let lines = error.into_iter().map(|mut error| {
        error.kind = redact(error.kind);
        error.to_string()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn redact(kind: Kind) -> Kind {
    match kind {
        Kind::Message(text) => Kind::Message(without_source(&text)),
        Kind::InvalidType(actual, expected) => Kind::InvalidType(without_text(actual), expected),
        Kind::InvalidValue(actual, expected) => Kind::InvalidValue(without_text(actual), expected),
        Kind::UnknownVariant(_, expected) => Kind::UnknownVariant("another value".into(), expected),
        Kind::Unsupported(actual) => Kind::Unsupported(without_text(actual)),
        Kind::UnsupportedKey(actual, expected) => Kind::UnsupportedKey(without_text(actual), expected),
        other => other,
    }
}

/// Numbers and booleans are shown: a secret that looks like one was already parsed as a string.
fn without_text(actual: Actual) -> Actual {
    match actual {
        Actual::Str(_) | Actual::Char(_) | Actual::Bytes(_) => Actual::Other("a string".into()),
        other => other,
    }
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
        redacted(Figment::from(Toml::string(toml)).extract::<T>().map(drop).expect_err(toml))
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

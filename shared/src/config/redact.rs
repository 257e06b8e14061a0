//! What errors about the configuration may repeat of it: keys and places, and no text that was set. Whoever put a URL where a
//! list belongs, or forgot a quote behind a password, would find it in the log.

use figment::error::{Actual, Kind};

/// One line for each error: what is wrong, with which key, and where it was set.
pub(super) fn told(error: figment::Error) -> String {
    let lines = error.into_iter().map(|mut error| {
        error.kind = redact(error.kind);
        error.to_string()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn redact(kind: Kind) -> Kind {
    match kind {
        Kind::Message(text) => Kind::Message(without_source(&text)),
        Kind::InvalidType(actual, expected) => Kind::InvalidType(unsaid(actual), expected),
        Kind::InvalidValue(actual, expected) => Kind::InvalidValue(unsaid(actual), expected),
        Kind::UnknownVariant(_, expected) => Kind::UnknownVariant("another word".into(), expected),
        Kind::Unsupported(actual) => Kind::Unsupported(unsaid(actual)),
        Kind::UnsupportedKey(actual, expected) => Kind::UnsupportedKey(unsaid(actual), expected),
        other => other,
    }
}

/// Numbers and truth values are repeated: a secret that looks like one is taken as text before it gets here.
fn unsaid(actual: Actual) -> Actual {
    match actual {
        Actual::Str(_) | Actual::Char(_) | Actual::Bytes(_) => Actual::Other("a text".into()),
        other => other,
    }
}

/// A syntax error quotes the line it is in, between bars. The place is enough to find it.
fn without_source(text: &str) -> String {
    let quotes = |line: &str| {
        line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start().starts_with('|')
    };
    text.lines().filter(|line| !quotes(line)).collect::<Vec<_>>().join(": ")
}

/// Does not repeat it: it may be the secret itself.
pub(super) const NOT_A_VARIABLE: &str = "is not the name of an environment variable";

/// Whether this can be the name of an environment variable, and is not the secret that belongs into one.
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
    use crate::config::{Database, Rpc, Signer};

    fn refused<T: serde::de::DeserializeOwned>(toml: &str) -> String {
        told(Figment::from(Toml::string(toml)).extract::<T>().map(drop).expect_err(toml))
    }

    #[test]
    fn an_error_names_the_key_and_the_line_and_repeats_no_text() {
        for (told, place) in [
            (refused::<Rpc>("urls = \"https://node/v3/hunter2\""), "urls"),
            (refused::<Rpc>("broadcast = \"hunter2\""), "broadcast"),
            (refused::<Rpc>("timeout = \"hunter2\""), "timeout"),
            (refused::<Database>("url = \"postgres://u:hunter2@h"), "line 1"),
            (refused::<Database>("url = postgres://u:hunter2@h"), "line 1"),
            (refused::<Database>("max_connections = 1\nurl = 'hunter2' 'hunter2'"), "line 2"),
            (refused::<Signer>("raw_key_env = \"hunter2\""), "raw_key_env"),
        ] {
            assert!(!told.contains("hunter2"), "{told}");
            assert!(told.contains(place), "{told}");
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

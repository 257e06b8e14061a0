//! Searches program output for secrets in any common encoding.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};

/// A secret and its encodings.
#[derive(Debug)]
struct Wanted {
    name: &'static str,
    /// Lower-case; matched case-insensitively.
    spellings: Vec<String>,
    /// Matched case-sensitively.
    exact: Vec<String>,
}

#[derive(Debug, Default)]
pub struct Grep {
    wanted: Vec<Wanted>,
}

impl Grep {
    /// Adds a secret. If it is hex, the encodings of its bytes are added as well.
    pub fn add(&mut self, name: &'static str, secret: &str) {
        assert!(secret.len() >= 8, "{name}: too short, it could match by chance");
        let digits = secret.strip_prefix("0x").unwrap_or(secret);
        let mut ways: Vec<Vec<u8>> = vec![secret.as_bytes().to_vec()];
        ways.extend(hex::decode(digits).ok());
        let mut wanted = Wanted { name, spellings: vec![digits.to_lowercase()], exact: Vec::new() };
        for bytes in ways {
            wanted.spellings.push(hex::encode(&bytes));
            // As `{:?}` prints bytes.
            let listed: Vec<String> = bytes.iter().map(u8::to_string).collect();
            wanted.spellings.push(listed.join(", "));
            wanted.spellings.push(listed.join(","));
            wanted.exact.extend(in_base64(&bytes));
        }
        self.wanted.push(wanted);
    }

    /// Names of the secrets found in the text, each with its line.
    pub fn find(&self, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        for line in text.lines() {
            let lower = line.to_lowercase();
            for wanted in &self.wanted {
                if wanted.spellings.iter().any(|spelling| lower.contains(spelling))
                    || wanted.exact.iter().any(|spelling| line.contains(spelling))
                {
                    found.push(format!("{}: {line}", wanted.name));
                }
            }
        }
        found
    }
}

/// The base64 substrings of the bytes that do not depend on the surrounding text, for each of the three alignments.
fn in_base64(bytes: &[u8]) -> Vec<String> {
    let mut spellings = Vec::new();
    for before in 0..3 {
        // Only complete groups of three bytes of the secret.
        let ours = &bytes[(3 - before) % 3..];
        let whole = &ours[..ours.len() / 3 * 3];
        spellings.extend([STANDARD.encode(whole), URL_SAFE.encode(whole)]);
    }
    spellings.retain(|spelling| spelling.len() >= 8);
    spellings
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";

    #[test]
    fn a_secret_is_found_in_every_encoding() {
        let mut grep = Grep::default();
        grep.add("key", KEY);
        grep.add("password", "correct horse");
        let bytes = hex::decode(KEY).unwrap();
        for encoded in [
            KEY.to_owned(),
            format!("0x{KEY}"),
            KEY.to_uppercase(),
            format!("Key({bytes:?})"),
            STANDARD.encode(&bytes),
            STANDARD.encode([b"a".as_slice(), &bytes, b"bc"].concat()),
            URL_SAFE.encode([b"ab".as_slice(), &bytes].concat()),
        ] {
            assert_eq!(grep.find(&format!("one line\nhas {encoded} and\nanother")).len(), 1, "{encoded}");
        }
        for encoded in
            ["correct horse", "CORRECT HORSE", "Basic dXNlcjpjb3JyZWN0IGhvcnNl", "636F727265637420686f727365"]
        {
            assert_eq!(grep.find(encoded), [format!("password: {encoded}")]);
        }
        assert_eq!(grep.find("a horse, correctly"), Vec::<String>::new());
    }
}

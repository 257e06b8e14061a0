//! The keys that encrypt signing secrets, from a file of the operator.
//!
//! A line is `<key id> <key>`: a name and 32 bytes in base64 or hex. Empty lines and lines that begin with `#` are
//! ignored. The first key encrypts, all decrypt. To rotate: add a new first line, encrypt all secrets again, remove the
//! old line.

use std::fmt;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use rand::TryRngCore;
use rand::rand_core::OsError;
use rand::rngs::OsRng;
use thiserror::Error;
use zeroize::Zeroizing;

const KEY_BYTES: usize = 32;
/// Shorter than an encoded key, so that a key in the wrong column is refused, not used and printed as a name.
const MAX_KEY_ID_BYTES: usize = 32;
/// Programs differ in whether they write the padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Why a text is not a key file. Never contains a key.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidKeyRing {
    #[error("the file has no key")]
    Empty,
    #[error("line {line}: expected `<key id> <key>`")]
    Shape { line: usize },
    #[error("line {line}: {source}")]
    KeyId { line: usize, source: InvalidKeyId },
    #[error("line {line}: the key is not base64 or hex of {KEY_BYTES} bytes")]
    Key { line: usize },
    #[error("line {line}: key id `{key_id}` is already used in line {first}")]
    Duplicate { line: usize, first: usize, key_id: String },
}

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a key id has 1 to {MAX_KEY_ID_BYTES} letters, digits, `-`, `_` and `.`")]
pub struct InvalidKeyId;

/// Why no key could be made.
#[derive(Debug, Error)]
pub enum NewKeyError {
    #[error(transparent)]
    KeyId(#[from] InvalidKeyId),
    #[error("the operating system's random number generator failed")]
    Random(#[from] OsError),
}

type Key = Zeroizing<[u8; KEY_BYTES]>;

struct NamedKey {
    id: String,
    key: Key,
    line: usize,
}

/// At least one key. `Debug` shows the ids alone.
pub struct KeyRing {
    first: NamedKey,
    others: Vec<NamedKey>,
}

impl KeyRing {
    /// Reads the text of a key file.
    pub fn parse(text: &str) -> Result<KeyRing, InvalidKeyRing> {
        let mut keys: Vec<NamedKey> = Vec::new();
        for (index, content) in text.lines().enumerate() {
            let content = content.trim();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let key = parse_line(index + 1, content)?;
            if let Some(same) = keys.iter().find(|earlier| earlier.id == key.id) {
                return Err(InvalidKeyRing::Duplicate { line: key.line, first: same.line, key_id: key.id });
            }
            keys.push(key);
        }
        let mut keys = keys.into_iter();
        let first = keys.next().ok_or(InvalidKeyRing::Empty)?;
        Ok(KeyRing { first, others: keys.collect() })
    }

    /// The id of the key that encrypts. Secrets with another id are to be encrypted again before a key is removed.
    pub fn sealing_key_id(&self) -> &str {
        &self.first.id
    }

    /// All ids, the one that encrypts first.
    pub fn key_ids(&self) -> impl Iterator<Item = &str> {
        self.all().map(|key| key.id.as_str())
    }

    pub(crate) fn sealing_key(&self) -> (&str, &[u8; KEY_BYTES]) {
        (&self.first.id, &self.first.key)
    }

    pub(crate) fn key(&self, id: &str) -> Option<&[u8; KEY_BYTES]> {
        self.all().find(|key| key.id == id).map(|found| &*found.key)
    }

    fn all(&self) -> impl Iterator<Item = &NamedKey> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyRing")?;
        f.debug_list().entries(self.key_ids()).finish()
    }
}

/// A line with a new random key for the key file, without a line break.
pub fn new_key_line(key_id: &str) -> Result<Zeroizing<String>, NewKeyError> {
    check_key_id(key_id)?;
    let mut key = Key::default();
    OsRng.try_fill_bytes(&mut *key)?;
    let encoded = Zeroizing::new(BASE64.encode(*key));
    Ok(Zeroizing::new(format!("{key_id} {}", *encoded)))
}

fn parse_line(line: usize, content: &str) -> Result<NamedKey, InvalidKeyRing> {
    let mut words = content.split_whitespace();
    let (Some(id), Some(encoded), None) = (words.next(), words.next(), words.next()) else {
        return Err(InvalidKeyRing::Shape { line });
    };
    check_key_id(id).map_err(|source| InvalidKeyRing::KeyId { line, source })?;
    let key = decode(encoded).ok_or(InvalidKeyRing::Key { line })?;
    Ok(NamedKey { id: id.to_owned(), key, line })
}

/// Hex of 32 bytes has 64 digits, which as base64 would be 48 bytes: no text is both.
fn decode(encoded: &str) -> Option<Key> {
    let bytes = if encoded.len() == 2 * KEY_BYTES {
        hex::decode(encoded).ok()?
    } else {
        BASE64.decode(encoded).ok()?
    };
    let bytes = Zeroizing::new(bytes);
    <[u8; KEY_BYTES]>::try_from(bytes.as_slice()).ok().map(Key::new)
}

fn check_key_id(id: &str) -> Result<(), InvalidKeyId> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_valid = (1..=MAX_KEY_ID_BYTES).contains(&id.len()) && id.bytes().all(is_allowed);
    if is_valid { Ok(()) } else { Err(InvalidKeyId) }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

    use super::*;

    const BYTES: [u8; 32] = [0xa5; 32];

    #[test]
    fn comments_encodings_and_order_are_read() {
        let text = format!(
            "# Keys of webhooks\n\n  new.1 {}\t\r\nold-2\t{}\n # another\nold_3   {}\nold_4 {}",
            STANDARD.encode(BYTES),
            STANDARD_NO_PAD.encode(BYTES),
            hex::encode(BYTES),
            hex::encode_upper(BYTES),
        );
        let ring = KeyRing::parse(&text).unwrap();
        assert_eq!(ring.sealing_key_id(), "new.1");
        assert_eq!(ring.key_ids().collect::<Vec<_>>(), ["new.1", "old-2", "old_3", "old_4"]);
        assert!(ring.key_ids().all(|id| ring.key(id) == Some(&BYTES)));
        assert_eq!(ring.key("absent"), None);
        assert_eq!(format!("{ring:?}"), r#"KeyRing["new.1", "old-2", "old_3", "old_4"]"#);
    }

    #[test]
    fn an_error_has_the_line_and_never_the_key() {
        let (base64, hex) = (STANDARD.encode(BYTES), hex::encode(BYTES));
        let id = InvalidKeyId;
        for (text, expected) in [
            ("\n# nothing\n".to_owned(), InvalidKeyRing::Empty),
            (format!("# comment\n{base64}"), InvalidKeyRing::Shape { line: 2 }),
            (format!("k1 {base64} later"), InvalidKeyRing::Shape { line: 1 }),
            (format!("{base64} k1"), InvalidKeyRing::KeyId { line: 1, source: id }),
            (format!("{hex} {hex}"), InvalidKeyRing::KeyId { line: 1, source: id }),
            (format!("{} {hex}", "k".repeat(33)), InvalidKeyRing::KeyId { line: 1, source: id }),
            (format!("k/1 {hex}"), InvalidKeyRing::KeyId { line: 1, source: id }),
            (format!("k1 {}", &base64[4..]), InvalidKeyRing::Key { line: 1 }),
            (format!("k1 {}", &hex[2..]), InvalidKeyRing::Key { line: 1 }),
            (format!("k1 {hex}{hex}"), InvalidKeyRing::Key { line: 1 }),
            (format!("k1 {}", hex.replace('a', "g")), InvalidKeyRing::Key { line: 1 }),
            (
                format!("k1 {hex}\nk2 {hex}\n\nk1 {base64}"),
                InvalidKeyRing::Duplicate { line: 4, first: 1, key_id: "k1".into() },
            ),
        ] {
            let error = KeyRing::parse(&text).unwrap_err();
            assert_eq!(error, expected, "{text}");
            let printed = format!("{error} {error:?}");
            assert!(!printed.contains(&hex[..8]) && !printed.contains(&base64[..8]), "{printed}");
        }
    }

    #[test]
    fn a_new_line_is_a_key_file_and_differs_each_time() {
        let [one, two] = [0, 1].map(|_| new_key_line("k1").unwrap());
        assert_ne!(*one, *two);
        assert_eq!(KeyRing::parse(&one).unwrap().sealing_key_id(), "k1");
        assert!(matches!(new_key_line("k 1"), Err(NewKeyError::KeyId(_))));
    }
}

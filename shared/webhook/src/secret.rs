//! Signing secrets in the format of the Standard Webhooks specification: `whsec_` and the base64 of 24 to 64 bytes.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rand::TryRngCore;
use rand::rand_core::OsError;
use rand::rngs::OsRng;
use thiserror::Error;
use zeroize::Zeroizing;

const PREFIX: &str = "whsec_";
/// The limits of the specification.
const MIN_BYTES: usize = 24;
const MAX_BYTES: usize = 64;
/// As many as the output of SHA-256 has. More would not make the signature stronger.
const GENERATED_BYTES: usize = 32;

/// Why a text is not a signing secret. Never contains the text.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidSecret {
    #[error("a signing secret begins with `{PREFIX}`")]
    Prefix,
    #[error("a signing secret is standard base64 with padding after `{PREFIX}`")]
    Base64,
    #[error("a signing secret has {MIN_BYTES} to {MAX_BYTES} bytes, this one has {0}")]
    Length(usize),
}

/// The key that signs the deliveries of one webhook.
#[derive(Clone)]
pub struct SigningSecret(Zeroizing<Vec<u8>>);

impl SigningSecret {
    /// Fails if the operating system's random number generator fails.
    pub fn generate() -> Result<SigningSecret, OsError> {
        let mut bytes = Zeroizing::new(vec![0; GENERATED_BYTES]);
        OsRng.try_fill_bytes(&mut bytes)?;
        Ok(SigningSecret(bytes))
    }

    /// A secret that another system made, for receivers that keep theirs.
    pub fn parse(text: &str) -> Result<SigningSecret, InvalidSecret> {
        let encoded = text.strip_prefix(PREFIX).ok_or(InvalidSecret::Prefix)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| InvalidSecret::Base64)?;
        SigningSecret::from_bytes(bytes)
    }

    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Result<SigningSecret, InvalidSecret> {
        let bytes = Zeroizing::new(bytes);
        if !(MIN_BYTES..=MAX_BYTES).contains(&bytes.len()) {
            return Err(InvalidSecret::Length(bytes.len()));
        }
        Ok(SigningSecret(bytes))
    }

    /// The text that the receiver needs. The only access to it, so that uses are easy to find: show it once, in the
    /// response that created the secret.
    pub fn expose(&self) -> Zeroizing<String> {
        let encoded = Zeroizing::new(STANDARD.encode(&*self.0));
        Zeroizing::new(format!("{PREFIX}{}", *encoded))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_secret_can_be_parsed_and_is_never_printed() {
        let secret = SigningSecret::generate().unwrap();
        let text = secret.expose();
        assert_eq!(secret.bytes().len(), 32);
        assert_eq!(SigningSecret::parse(&text).unwrap().bytes(), secret.bytes());
        assert_eq!(format!("{secret:?}"), "SigningSecret(…)");
        assert_ne!(SigningSecret::generate().unwrap().bytes(), secret.bytes());
    }

    #[test]
    fn an_imported_secret_has_prefix_encoding_and_length_of_the_specification() {
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
        for right in [24, 32, 64] {
            assert_eq!(*SigningSecret::parse(&of(right)).unwrap().expose(), of(right));
        }
        for (wrong, error) in [
            (of(23), InvalidSecret::Length(23)),
            (of(65), InvalidSecret::Length(65)),
            ("whsec_".into(), InvalidSecret::Length(0)),
            (of(32).replace("whsec_", ""), InvalidSecret::Prefix),
            (of(32).replace("whsec_", "WHSEC_"), InvalidSecret::Prefix),
            (of(32).replace('=', ""), InvalidSecret::Base64),
            (of(32) + "\n", InvalidSecret::Base64),
            ("whsec_not base64".into(), InvalidSecret::Base64),
        ] {
            assert_eq!(SigningSecret::parse(&wrong).unwrap_err(), error, "{wrong}");
        }
    }

    #[test]
    fn an_error_does_not_contain_the_secret() {
        for text in ["whsec_bm90IGxvbmcgZW5vdWdo", "whsec_hunter2!", "hunter2"] {
            let error = SigningSecret::parse(text).unwrap_err();
            let printed = format!("{error} {error:?}");
            assert!(!printed.contains("hunter2") && !printed.contains("bm90"), "{printed}");
        }
    }
}

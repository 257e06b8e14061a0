//! Signing secrets at rest: XChaCha20-Poly1305 with a random nonce.
//!
//! The webhook's id is authenticated with the secret, so that a sealed value that was copied to another webhook's row
//! does not open. Reading the secrets takes the key file and the database; one of them is not enough.

use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use rand::TryRngCore;
use rand::rand_core::OsError;
use rand::rngs::OsRng;
use thiserror::Error;
use uuid::Uuid;

use crate::key_ring::KeyRing;
use crate::secret::SigningSecret;

/// Large enough that random nonces do not repeat under one key.
const NONCE_BYTES: usize = 24;

/// An encrypted secret, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The key that opens it.
    pub key_id: String,
    /// Nonce, then ciphertext and tag.
    pub sealed: Vec<u8>,
}

/// Why a sealed value could not be opened.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OpenError {
    /// The key was removed from the key file too early, or never was on this machine.
    #[error("the webhook secret is encrypted with key `{key_id}`, which the key file does not have")]
    UnknownKey { key_id: String },
    /// Changed, of another webhook, or encrypted with another key that has the same id.
    #[error("key `{key_id}` does not open the webhook secret: the value is damaged or of another webhook")]
    Refused { key_id: String },
}

impl KeyRing {
    /// Encrypts with the first key. Fails if the operating system's random number generator fails.
    pub fn seal(&self, webhook: Uuid, secret: &SigningSecret) -> Result<Sealed, OsError> {
        let (key_id, key) = self.sealing_key();
        let mut nonce = [0; NONCE_BYTES];
        OsRng.try_fill_bytes(&mut nonce)?;
        let payload = Payload { msg: secret.bytes(), aad: webhook.as_bytes() };
        let ciphertext = XChaCha20Poly1305::new(key.into())
            .encrypt(&XNonce::from(nonce), payload)
            .expect("64 bytes are below the cipher's limit");
        Ok(Sealed { key_id: key_id.to_owned(), sealed: [&nonce[..], &ciphertext].concat() })
    }

    /// Decrypts with the key that sealed the value.
    pub fn open(&self, webhook: Uuid, value: &Sealed) -> Result<SigningSecret, OpenError> {
        let key_id = value.key_id.clone();
        let Some(key) = self.key(&key_id) else { return Err(OpenError::UnknownKey { key_id }) };
        let opened = value.sealed.split_first_chunk::<NONCE_BYTES>().and_then(|(nonce, ciphertext)| {
            let payload = Payload { msg: ciphertext, aad: webhook.as_bytes() };
            let bytes = XChaCha20Poly1305::new(key.into()).decrypt(&XNonce::from(*nonce), payload).ok()?;
            SigningSecret::from_bytes(bytes).ok()
        });
        opened.ok_or(OpenError::Refused { key_id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_ring::new_key_line;

    fn line(key_id: &str) -> String {
        new_key_line(key_id).unwrap().to_string()
    }

    fn ring(lines: &[&str]) -> KeyRing {
        KeyRing::parse(&lines.join("\n")).unwrap()
    }

    #[test]
    fn a_sealed_secret_opens_again_and_is_not_readable() {
        let ring = ring(&[&line("k1")]);
        let (webhook, secret) = (Uuid::new_v4(), SigningSecret::generate().unwrap());
        let sealed = ring.seal(webhook, &secret).unwrap();
        assert_eq!(sealed.key_id, "k1");
        assert_eq!(sealed.sealed.len(), 24 + 32 + 16);
        assert!(!sealed.sealed.windows(8).any(|part| part == &secret.bytes()[..8]));
        assert_eq!(ring.open(webhook, &sealed).unwrap().bytes(), secret.bytes());
        assert_ne!(ring.seal(webhook, &secret).unwrap(), sealed, "a nonce is used once");
    }

    #[test]
    fn a_value_of_another_webhook_is_refused() {
        let ring = ring(&[&line("k1")]);
        let sealed = ring.seal(Uuid::new_v4(), &SigningSecret::generate().unwrap()).unwrap();
        let error = ring.open(Uuid::new_v4(), &sealed).unwrap_err();
        assert_eq!(error, OpenError::Refused { key_id: "k1".into() });
    }

    #[test]
    fn an_unknown_key_is_named() {
        let webhook = Uuid::new_v4();
        let sealed = ring(&[&line("of-2025")]).seal(webhook, &SigningSecret::generate().unwrap()).unwrap();
        let error = ring(&[&line("of-2026")]).open(webhook, &sealed).unwrap_err();
        assert_eq!(error, OpenError::UnknownKey { key_id: "of-2025".into() });
        assert!(error.to_string().contains("`of-2025`"), "{error}");
    }

    #[test]
    fn another_key_with_the_same_id_is_refused() {
        let webhook = Uuid::new_v4();
        let sealed = ring(&[&line("k1")]).seal(webhook, &SigningSecret::generate().unwrap()).unwrap();
        let error = ring(&[&line("k1")]).open(webhook, &sealed).unwrap_err();
        assert_eq!(error, OpenError::Refused { key_id: "k1".into() });
    }

    #[test]
    fn every_flipped_bit_and_every_shorter_value_is_refused() {
        let ring = ring(&[&line("k1")]);
        let webhook = Uuid::new_v4();
        let whole = ring.seal(webhook, &SigningSecret::generate().unwrap()).unwrap();
        let refused = |sealed: Vec<u8>| {
            let value = Sealed { key_id: "k1".into(), sealed };
            assert!(matches!(ring.open(webhook, &value), Err(OpenError::Refused { .. })));
        };
        for bit in 0..whole.sealed.len() * 8 {
            let mut changed = whole.sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            refused(changed);
        }
        for length in 0..whole.sealed.len() {
            refused(whole.sealed[..length].to_vec());
        }
        refused([&whole.sealed[..], &[0]].concat());
        assert!(ring.open(webhook, &whole).is_ok());
    }

    #[test]
    fn after_a_rotation_the_new_key_seals_and_the_old_one_still_opens() {
        let (old, new) = (line("old"), line("new"));
        let (webhook, secret) = (Uuid::new_v4(), SigningSecret::generate().unwrap());
        let before = ring(&[&old]).seal(webhook, &secret).unwrap();
        let rotated = ring(&[&new, &old]);
        let after = rotated.seal(webhook, &secret).unwrap();
        assert_eq!((before.key_id.as_str(), after.key_id.as_str()), ("old", "new"));
        for sealed in [before, after] {
            assert_eq!(rotated.open(webhook, &sealed).unwrap().bytes(), secret.bytes());
        }
    }
}

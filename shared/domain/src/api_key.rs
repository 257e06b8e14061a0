//! API keys: format, stored hash, scopes.
//!
//! `gpl_<id>_<secret>`: an id of 8 random bytes and a secret of 32, both in hex. The SHA-256 of the secret is stored.
//! A slow password hash is unnecessary: 256 random bits cannot be guessed.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use rand::TryRngCore;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::ids::SubmitterKey;

const PREFIX: &str = "gpl_";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

/// The public part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiKeyId(String);

impl ApiKeyId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ApiKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ApiKeyId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if is_hex(text, ID_BYTES) { Ok(ApiKeyId(text.to_owned())) } else { Err("is not an API key id") }
    }
}

/// What a key may do. No scope implies another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Send, simulate, cancel.
    TxWrite,
    /// Read transactions and submitters.
    TxRead,
    /// Operator actions.
    Admin,
}

impl Scope {
    pub const ALL: [Scope; 3] = [Scope::TxWrite, Scope::TxRead, Scope::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Scope::TxWrite => "tx:write",
            Scope::TxRead => "tx:read",
            Scope::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Scope::ALL
            .into_iter()
            .find(|scope| scope.as_str() == text)
            .ok_or_else(|| format!("`{text}` is not a scope: tx:write, tx:read or admin"))
    }
}

/// Allowed scopes and submitters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    pub scopes: BTreeSet<Scope>,
    /// `None`: all.
    pub submitters: Option<BTreeSet<SubmitterKey>>,
}

impl Rights {
    pub fn everything() -> Rights {
        Rights { scopes: Scope::ALL.into(), submitters: None }
    }

    pub fn covers(&self, submitter: &SubmitterKey) -> bool {
        self.submitters.as_ref().is_none_or(|own| own.contains(submitter))
    }
}

/// A new key with its secret. Never logged or stored; shown once, on creation.
pub struct ApiKeySecret {
    id: ApiKeyId,
    text: Zeroizing<String>,
}

impl fmt::Debug for ApiKeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKeySecret").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ApiKeySecret {
    /// Fails if the operating system's random number generator fails.
    pub fn random() -> Result<ApiKeySecret, rand::rand_core::OsError> {
        let mut bytes = Zeroizing::new([0_u8; ID_BYTES + SECRET_BYTES]);
        rand::rngs::OsRng.try_fill_bytes(&mut *bytes)?;
        let (id, secret) = bytes.split_at(ID_BYTES);
        let id = ApiKeyId(hex::encode(id));
        let text = Zeroizing::new(format!("{PREFIX}{id}_{}", *Zeroizing::new(hex::encode(secret))));
        Ok(ApiKeySecret { id, text })
    }

    pub fn id(&self) -> &ApiKeyId {
        &self.id
    }

    pub fn expose(&self) -> &str {
        &self.text
    }
}

/// A key presented by a client: its id and the hash of its secret, to compare with the stored one.
#[derive(Clone, Debug)]
pub struct PresentedKey {
    pub id: ApiKeyId,
    pub secret_hash: [u8; 32],
}

impl PresentedKey {
    /// `None` if the format is wrong.
    pub fn parse(text: &str) -> Option<PresentedKey> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let id = id.parse().ok()?;
        is_hex(secret, SECRET_BYTES)
            .then(|| PresentedKey { id, secret_hash: Sha256::digest(secret.as_bytes()).into() })
    }
}

fn is_hex(text: &str, bytes: usize) -> bool {
    text.len() == 2 * bytes && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, ChainId};

    #[test]
    fn a_key_is_recognised_by_its_id_and_hash_and_is_never_printed() {
        let key = ApiKeySecret::random().unwrap();
        let presented = PresentedKey::parse(key.expose()).unwrap();
        assert_eq!(&presented.id, key.id());
        assert_eq!(key.expose().len(), 4 + 16 + 1 + 64);
        let secret = key.expose().rsplit('_').next().unwrap();
        assert!(!format!("{key:?} {presented:?}").contains(secret));
        let other = ApiKeySecret::random().unwrap();
        assert_ne!(other.id(), key.id());
        assert_ne!(PresentedKey::parse(other.expose()).unwrap().secret_hash, presented.secret_hash);
    }

    #[test]
    fn only_the_exact_format_is_a_key() {
        let key = ApiKeySecret::random().unwrap();
        let text = key.expose();
        for bad in [
            String::new(),
            "gpl_".into(),
            text[4..].into(),
            text.to_uppercase(),
            format!("{text}0"),
            format!(" {text}"),
            text[..text.len() - 1].into(),
            text.replace("gpl_", "gpl-"),
        ] {
            assert!(PresentedKey::parse(&bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn rights_cover_the_submitters_they_name_on_the_chain_they_name() {
        let key =
            |chain, byte| SubmitterKey { chain_id: ChainId(chain), address: Address::repeat_byte(byte) };
        let limited = Rights { submitters: Some([key(1, 1)].into()), ..Rights::everything() };
        assert!(limited.covers(&key(1, 1)));
        assert!(!limited.covers(&key(2, 1)) && !limited.covers(&key(1, 2)));
        assert!(Rights::everything().covers(&key(2, 2)));
    }

    #[test]
    fn scopes_round_trip() {
        for scope in Scope::ALL {
            assert_eq!(scope.as_str().parse(), Ok(scope));
        }
        assert!("tx:*".parse::<Scope>().is_err());
    }
}

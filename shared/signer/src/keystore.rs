//! V3 keystore files: reading, creating and importing. Each file contains one encrypted key.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ethers_core::k256::ecdsa::SigningKey;
use ethers_core::rand::thread_rng;
use ethers_signers::{LocalWallet, Signer as _};
use zeroize::Zeroizing;

use gapless_config::Secret;
use gapless_domain::Address;

/// The messages contain no key or password.
#[derive(Debug, thiserror::Error)]
pub enum KeystoreError {
    #[error("the key is not 32 bytes of hex or not a valid private key")]
    BadKey,
    #[error("the password is empty")]
    EmptyPassword,
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("cannot encrypt {path}: {reason}")]
    Encrypt { path: PathBuf, reason: String },
    #[error("{reason}")]
    Decrypt { reason: String },
}

/// Creates a random key in `dir`, which is created if missing.
pub fn create(dir: &Path, password: &Secret) -> Result<(Address, PathBuf), KeystoreError> {
    let wallet = LocalWallet::new(&mut thread_rng());
    store(dir, &wallet, password)
}

/// Imports a key, in hex with or without `0x`, into `dir`.
pub fn import(
    dir: &Path,
    secret_hex: &Secret,
    password: &Secret,
) -> Result<(Address, PathBuf), KeystoreError> {
    store(dir, &wallet_from_hex(secret_hex)?, password)
}

pub(super) fn wallet_from_hex(secret_hex: &Secret) -> Result<LocalWallet, KeystoreError> {
    let text = secret_hex.expose().trim();
    let mut bytes = Zeroizing::new([0u8; 32]);
    hex::decode_to_slice(text.strip_prefix("0x").unwrap_or(text), bytes.as_mut_slice())
        .map_err(|_| KeystoreError::BadKey)?;
    let key = SigningKey::from_slice(bytes.as_slice()).map_err(|_| KeystoreError::BadKey)?;
    Ok(LocalWallet::from(key))
}

/// The file is synced to disk, readable only by its owner, before the address is returned.
fn store(dir: &Path, wallet: &LocalWallet, password: &Secret) -> Result<(Address, PathBuf), KeystoreError> {
    if password.is_empty() {
        return Err(KeystoreError::EmptyPassword);
    }
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| KeystoreError::File { path, source }
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(at(dir))?;
    let name = format!("{:x}.json", wallet.address());
    let path = dir.join(&name);
    // Create the file first, to set its mode and to never overwrite an existing key.
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(at(&path))?;
    let bytes = Zeroizing::new(wallet.signer().to_bytes().to_vec());
    let stored = LocalWallet::encrypt_keystore(
        dir,
        &mut thread_rng(),
        bytes.as_slice(),
        password.expose(),
        Some(&name),
    );
    if let Err(error) = stored {
        // An empty file would be reported as an invalid keystore at every startup.
        let _ = fs::remove_file(&path);
        return Err(KeystoreError::Encrypt { path, reason: error.to_string() });
    }
    File::open(&path).and_then(|file| file.sync_all()).map_err(at(&path))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(at(dir))?;
    Ok((wallet.address(), path))
}

/// Decrypts one file. Key derivation is slow by design: call it on a blocking thread.
pub(super) fn open(path: &Path, password: &Secret) -> Result<LocalWallet, KeystoreError> {
    let wallet = LocalWallet::decrypt_keystore(path, password.expose())
        .map_err(|error| KeystoreError::Decrypt { reason: error.to_string() })?;
    match stated_address(path) {
        Some(stated) if stated != wallet.address() => Err(KeystoreError::Decrypt {
            reason: format!("the file states {stated:#x}, but its key is of {:#x}", wallet.address()),
        }),
        _ => Ok(wallet),
    }
}

/// The plaintext address, which is optional.
fn stated_address(path: &Path) -> Option<Address> {
    let file: serde_json::Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let text = file.get("address")?.as_str()?;
    text.strip_prefix("0x").unwrap_or(text).parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const KEY: &str = "4646464646464646464646464646464646464646464646464646464646464646";

    #[test]
    fn a_key_is_stored_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let (keys, password) = (dir.path().join("keys"), Secret::new("pass"));
        let (address, path) = create(&keys, &password).unwrap();
        assert_eq!(open(&path, &password).unwrap().address(), address);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (imported, path) = import(&keys, &Secret::new(format!("0x{KEY}\n")), &password).unwrap();
        assert_eq!(format!("{imported:#x}"), "0x9d8a62f656a8d1615c1294fd71e9cfb3e4855a4f");
        assert_eq!(open(&path, &password).unwrap().address(), imported);
    }

    #[test]
    fn a_wrong_password_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let (_, path) = create(dir.path(), &Secret::new("right")).unwrap();
        let error = open(&path, &Secret::new("wrong")).unwrap_err().to_string();
        assert!(!error.contains("wrong") && !error.contains("right"), "{error}");
    }

    #[test]
    fn an_existing_key_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let (_, path) = import(dir.path(), &Secret::new(KEY), &Secret::new("first")).unwrap();
        assert!(import(dir.path(), &Secret::new(KEY), &Secret::new("second")).is_err());
        assert!(open(&path, &Secret::new("first")).is_ok());
    }

    #[test]
    fn invalid_keys_are_rejected_and_leave_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let zero = "0".repeat(64);
        for bad in ["", "0x", "46", "zz46464646464646464646464646464646464646464646464646464646464646", &zero]
        {
            let error = import(dir.path(), &Secret::new(bad), &Secret::new("p")).unwrap_err();
            assert!(matches!(error, KeystoreError::BadKey));
        }
        assert!(matches!(create(dir.path(), &Secret::default()), Err(KeystoreError::EmptyPassword)));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "no file is left");
    }

    #[test]
    fn a_file_that_states_another_address_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let (_, path) = create(dir.path(), &Secret::new("p")).unwrap();
        let mut file: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        file["address"] = "0000000000000000000000000000000000000001".into();
        fs::write(&path, file.to_string()).unwrap();
        assert!(open(&path, &Secret::new("p")).unwrap_err().to_string().contains("the file states"));
    }
}

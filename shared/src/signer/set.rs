//! Every key this process can sign with, read once at start.
//!
//! A key that cannot be read is reported and left out; it never keeps the others from working.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::keystore::{self, KeystoreError};
use super::{LocalSigner, Signer};
use crate::config::{self, Secret};
use crate::domain::Address;

/// A key that is not in the set, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerProblem {
    /// A path or the name of an environment variable.
    pub source: String,
    pub reason: String,
}

#[derive(Clone, Debug, Default)]
pub struct SignerSet {
    signers: BTreeMap<Address, Arc<dyn Signer>>,
    problems: Vec<SignerProblem>,
}

impl SignerSet {
    /// Reads what the configuration names. Always returns: what went wrong is in `problems`, and in the log.
    pub async fn load(config: &config::Signer) -> SignerSet {
        let mut set = SignerSet::default();
        if let Some(dir) = &config.keystore {
            set.load_keystore(dir, config).await;
        }
        for name in &config.raw_key_env {
            match raw_key(name) {
                Ok(signer) => set.insert(name, signer),
                Err(reason) => set.report(name, reason),
            }
        }
        set
    }

    pub fn get(&self, address: &Address) -> Option<Arc<dyn Signer>> {
        self.signers.get(address).cloned()
    }

    /// In ascending order.
    pub fn addresses(&self) -> Vec<Address> {
        self.signers.keys().copied().collect()
    }

    pub fn len(&self) -> usize {
        self.signers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.signers.is_empty()
    }

    pub fn problems(&self) -> &[SignerProblem] {
        &self.problems
    }

    /// Equal for two processes that can sign for the same addresses.
    pub fn fingerprint(&self) -> String {
        let mut digest = Sha256::new();
        for address in self.signers.keys() {
            digest.update(address.as_bytes());
        }
        hex::encode(digest.finalize())
    }

    async fn load_keystore(&mut self, dir: &Path, config: &config::Signer) {
        let opened = password(config).and_then(|password| Ok((password, key_files(dir, config)?)));
        let (password, files) = match opened {
            Ok(opened) => opened,
            Err(reason) => return self.report(&dir.display().to_string(), reason),
        };
        // Each takes a core for a while; more at once than cores would only hold more memory.
        let at_once = std::thread::available_parallelism().map_or(2, usize::from);
        let mut opening = futures::stream::iter(files)
            .map(|path| {
                let password = password.clone();
                async move {
                    let file = path.clone();
                    (path, tokio::task::spawn_blocking(move || keystore::open(&file, &password)).await)
                }
            })
            .buffered(at_once);
        while let Some((path, opened)) = opening.next().await {
            let source = path.display().to_string();
            match opened {
                Ok(Ok(wallet)) => self.insert(&source, LocalSigner::from_keystore(wallet)),
                Ok(Err(error)) => self.report(&source, error.to_string()),
                // The decrypting library panics on lengths it did not expect.
                Err(_) => self.report(&source, "not a well-formed V3 keystore".into()),
            }
        }
    }

    fn insert(&mut self, source: &str, signer: LocalSigner) {
        let address = signer.address();
        if self.signers.contains_key(&address) {
            return self.report(source, format!("{address:#x} has been read before"));
        }
        self.signers.insert(address, Arc::new(signer));
    }

    fn report(&mut self, source: &str, reason: String) {
        tracing::error!(source, reason, "a key could not be loaded; the others are used");
        self.problems.push(SignerProblem { source: source.to_owned(), reason });
    }
}

fn password(config: &config::Signer) -> Result<Secret, String> {
    match (&config.password_file, &config.password_env) {
        (Some(path), _) => {
            let text = std::fs::read_to_string(path).map(Zeroizing::new);
            let text = text.map_err(|error| format!("signer.password_file {}: {error}", path.display()))?;
            let line = text.strip_suffix('\n').unwrap_or(&text);
            Ok(Secret::new(line.strip_suffix('\r').unwrap_or(line)))
        }
        (None, Some(name)) => {
            variable(name).map_err(|reason| format!("signer.password_env {name}: {reason}"))
        }
        (None, None) => Err("neither signer.password_file nor signer.password_env is set".into()),
    }
}

fn variable(name: &str) -> Result<Secret, String> {
    std::env::var(name).map(Secret::new).map_err(|_| "the environment variable is not set".into())
}

fn raw_key(name: &str) -> Result<LocalSigner, String> {
    let wallet =
        keystore::wallet_from_hex(&variable(name)?).map_err(|error: KeystoreError| error.to_string())?;
    Ok(LocalSigner::from_raw_key(wallet))
}

/// Regular files in name order. Hidden ones are editors' and mounts'; the password may lie beside the keys.
fn key_files(dir: &Path, config: &config::Signer) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(dir).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut files: Vec<PathBuf> = entries
        .map_err(|error| error.to_string())?
        .iter()
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .map(std::fs::DirEntry::path)
        .filter(|path| path.is_file() && Some(path) != config.password_file.as_ref())
        .collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path) -> config::Signer {
        let password_file = dir.join("password");
        std::fs::write(&password_file, "secret\n").unwrap();
        config::Signer {
            keystore: Some(dir.to_owned()),
            password_file: Some(password_file),
            ..config::Signer::default()
        }
    }

    #[tokio::test]
    async fn keys_that_can_be_read_are_used_and_the_others_reported() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let (one, _) = keystore::create(dir.path(), &Secret::new("secret")).unwrap();
        let (two, _) = keystore::create(dir.path(), &Secret::new("secret")).unwrap();
        let (_, locked) = keystore::create(dir.path(), &Secret::new("another")).unwrap();
        std::fs::write(dir.path().join("notes.txt"), "not a key").unwrap();
        let broken = dir.path().join("broken.json");
        let file = std::fs::read_to_string(&locked).unwrap().replace("\"dklen\":32", "\"dklen\":3");
        std::fs::write(&broken, file).unwrap();
        std::fs::write(dir.path().join(".hidden"), "").unwrap();

        let set = SignerSet::load(&config).await;
        let mut expected = vec![one, two];
        expected.sort();
        assert_eq!(set.addresses(), expected);
        assert_eq!((set.len(), set.get(&one).unwrap().kind()), (2, "keystore"));
        let mut sources: Vec<&str> = set.problems().iter().map(|problem| problem.source.as_str()).collect();
        sources.sort_unstable();
        let notes = dir.path().join("notes.txt");
        let mut wanted = [locked.to_str().unwrap(), broken.to_str().unwrap(), notes.to_str().unwrap()];
        wanted.sort_unstable();
        assert_eq!(sources, wanted);
        assert!(!format!("{:?}", set.problems()).contains("secret"));
    }

    #[tokio::test]
    async fn a_missing_password_or_variable_is_a_problem_not_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let config = config::Signer {
            keystore: Some(dir.path().to_owned()),
            password_env: Some("GAPLESS_TEST_NO_SUCH_PASSWORD".into()),
            raw_key_env: vec!["GAPLESS_TEST_NO_SUCH_KEY".into()],
            ..config::Signer::default()
        };
        let set = SignerSet::load(&config).await;
        assert!(set.is_empty());
        assert_eq!(set.problems().len(), 2);
        assert!(set.problems()[1].source.contains("GAPLESS_TEST_NO_SUCH_KEY"));
    }

    #[tokio::test]
    async fn the_fingerprint_depends_on_the_addresses_alone() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let key = Secret::new("46".repeat(32));
        let mut prints = Vec::new();
        for dir in &dirs {
            let config = config(dir.path());
            keystore::import(dir.path(), &key, &Secret::new("secret")).unwrap();
            prints.push(SignerSet::load(&config).await.fingerprint());
        }
        assert_eq!(prints[0], prints[1]);
        assert_ne!(prints[0], SignerSet::default().fingerprint());
    }
}

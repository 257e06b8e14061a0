//! Local keys: keystore files with one password, and raw keys in environment variables.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt;
use zeroize::Zeroizing;

use super::LocalSigner;
use super::keystore;
use super::set::SignerSet;
use gapless_config::{self as config, Secret};

impl SignerSet {
    pub(super) async fn load_keystore(&self, dir: &Path, config: &config::Signer) {
        let opened = password(config).and_then(|password| Ok((password, key_files(dir, config)?)));
        let (password, files) = match opened {
            Ok(opened) => opened,
            Err(reason) => return self.report(&dir.display().to_string(), reason),
        };
        // Decryption is CPU-bound and needs much memory, so run one per core.
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
                Ok(Ok(wallet)) => {
                    self.add_from(&source, Arc::new(LocalSigner::from_keystore(wallet)));
                }
                Ok(Err(error)) => self.report(&source, error.to_string()),
                // The decryption library panics on unexpected lengths.
                Err(_) => self.report(&source, "not a valid V3 keystore".into()),
            }
        }
    }

    pub(super) fn load_raw_key(&self, name: &str) {
        match raw_key(name) {
            Ok(signer) => {
                self.add_from(name, Arc::new(signer));
            }
            Err(reason) => self.report(name, reason),
        }
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
        (None, Some(name)) => variable(name).map_err(|reason| format!("signer.password_env: {reason}")),
        (None, None) => Err("neither signer.password_file nor signer.password_env is set".into()),
    }
}

fn variable(name: &str) -> Result<Secret, String> {
    std::env::var(name).map(Secret::new).map_err(|_| "the environment variable is not set".into())
}

fn raw_key(name: &str) -> Result<LocalSigner, String> {
    LocalSigner::new(&variable(name)?).map_err(|error| error.to_string())
}

/// Regular files in name order, without hidden files (of editors and mounts) and without the password file.
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

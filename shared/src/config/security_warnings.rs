//! What a configuration allows and somebody should know of: ways that are not encrypted, secrets that others can read.

use std::path::Path;

use super::endpoint::shown_if_plain;
use super::{Config, RemoteSigner, Signer};
use crate::secret_file::is_open_to_all;

pub(super) fn security_warnings(config: &Config) -> Vec<String> {
    let mut security_warnings = Vec::new();
    for chain in config.chains.values() {
        for (index, url) in chain.urls.iter().enumerate() {
            if let Some(shown) = shown_if_plain(url.expose()) {
                security_warnings.push(format!(
                    "chain.{}.rpc.urls[{index}] ({shown}) is another machine and not encrypted: whoever sits between can read \
                     its key, and answer in its place; use https (docs/operations.md, TLS)",
                    chain.name
                ));
            }
        }
    }
    security_warnings.extend(plain_signers(&config.signer));
    let of_api = config.api.tls.iter().map(|tls| tls.key.as_path());
    for path in secret_files(&config.signer).into_iter().chain(of_api) {
        if is_open_to_all(path) {
            security_warnings.push(format!("every user of this machine can read {}", path.display()));
        }
    }
    security_warnings
}

/// With a token they are refused; without one, who is between chooses what comes back, and that is checked.
fn plain_signers(signer: &Signer) -> Vec<String> {
    let kinds = [("json_rpc", &signer.json_rpc), ("clef", &signer.clef), ("http", &signer.http)];
    let all = kinds.into_iter().flat_map(|(kind, remotes)| {
        remotes.iter().enumerate().map(move |(index, remote)| (format!("signer.{kind}.{index}.url"), remote))
    });
    all.filter_map(|(key, remote): (String, &RemoteSigner)| {
        let shown = shown_if_plain(remote.url.expose())?;
        Some(format!(
            "{key} ({shown}) is another machine and not encrypted: whoever sits between can ask it, too; use https"
        ))
    })
    .collect()
}

/// Files that hold a secret in the clear. Keystores are encrypted; so is what a signer keeps.
fn secret_files(signer: &Signer) -> Vec<&Path> {
    let remotes = signer.json_rpc.iter().chain(&signer.clef).chain(&signer.http);
    let of_remotes = remotes.flat_map(|remote| remote.token_file.iter().chain(&remote.client_key_file));
    let of_clouds = signer.aws_kms.iter().filter_map(|aws| aws.credentials_file.as_ref());
    let of_clouds = of_clouds.chain(signer.gcp_kms.iter().filter_map(|gcp| gcp.credentials_file.as_ref()));
    signer.password_file.iter().chain(of_remotes).chain(of_clouds).map(|path| path.as_path()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn load(toml: &str) -> Config {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gapless.toml");
        let chain = "[chain.a]\nid = 1\nrpc.urls";
        std::fs::write(&path, toml.replace("URLS", chain)).unwrap();
        Config::load(Some(&path)).unwrap()
    }

    #[test]
    fn a_plain_way_to_another_machine_is_remarked_without_its_secrets() {
        let config = load(
            "database.url = \"postgres://localhost/d\"\n[[signer.http]]\nurl = \"http://signer/hunter2\"\n\
             URLS = [\"http://u:hunter2@node:8545/hunter2\", \"https://node\", \"http://localhost:8545\"]",
        );
        let security_warnings = config.security_warnings();
        assert_eq!(security_warnings.len(), 2, "{security_warnings:?}");
        assert!(
            security_warnings[0].contains("chain.a.rpc.urls[0] (http://node:8545)"),
            "{security_warnings:?}"
        );
        assert!(
            security_warnings[1].contains("signer.http.0.url (http://signer:80)"),
            "{security_warnings:?}"
        );
        assert!(!security_warnings.concat().contains("hunter2"), "{security_warnings:?}");
    }

    #[test]
    fn a_password_that_everybody_can_read_is_remarked() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let config = load(&format!(
            "database.url = \"postgres://localhost/d\"\nsigner.password_file = \"{}\"\nURLS = []",
            file.path().display()
        ));
        assert_eq!(config.security_warnings(), Vec::<String>::new());
        std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o644)).unwrap();
        assert!(config.security_warnings()[0].contains(file.path().to_str().unwrap()));
    }
}

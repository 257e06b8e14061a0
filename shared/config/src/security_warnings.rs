//! Warnings about insecure settings: unencrypted connections, and secret files readable by other users.

use std::path::Path;

use super::endpoint::origin_if_unencrypted;
use super::{Config, RemoteSigner, Signer};
use crate::secret_file::is_world_readable;

pub(super) fn security_warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    for chain in config.chains.values() {
        for (index, url) in chain.urls.iter().enumerate() {
            if let Some(origin) = origin_if_unencrypted(url.expose()) {
                warnings.push(format!(
                    "chain.{}.rpc.urls[{index}] ({origin}) is an unencrypted connection to another machine: \
                     an attacker on the network can read its API key and forge responses; use https \
                     (docs/operate/access.md#tls)",
                    chain.name
                ));
            }
        }
    }
    warnings.extend(unencrypted_signers(&config.signer));
    if let Some(origin) = config.traces.otlp_url.as_ref().and_then(|url| origin_if_unencrypted(url.expose()))
    {
        warnings.push(format!(
            "traces.otlp_url ({origin}) is an unencrypted connection to another machine: an attacker on the network can \
             read spans and headers; use https"
        ));
    }
    let of_api = config.api.tls.iter().map(|tls| tls.key.as_path());
    let of_webhooks = config.events.webhook.key_file.iter().map(|path| path.as_path());
    for path in secret_files(&config.signer).into_iter().chain(of_api).chain(of_webhooks) {
        if is_world_readable(path) {
            warnings.push(format!("every user of this machine can read {}", path.display()));
        }
    }
    warnings
}

/// Only signers without a token: with one, an unencrypted URL is an error. Signatures are checked in any case.
fn unencrypted_signers(signer: &Signer) -> Vec<String> {
    let kinds = [("json_rpc", &signer.json_rpc), ("clef", &signer.clef), ("http", &signer.http)];
    let all = kinds.into_iter().flat_map(|(kind, remotes)| {
        remotes.iter().enumerate().map(move |(index, remote)| (format!("signer.{kind}.{index}.url"), remote))
    });
    all.filter_map(|(key, remote): (String, &RemoteSigner)| {
        let origin = origin_if_unencrypted(remote.url.expose())?;
        Some(format!("{key} ({origin}) is an unencrypted connection to another machine; use https"))
    })
    .collect()
}

/// Files with plaintext secrets. Keystore files are encrypted and not included.
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
    fn an_unencrypted_connection_is_reported_without_its_secrets() {
        let config = load(
            "database.url = \"postgres://localhost/d\"\ntraces.otlp_url = \"http://collector:4318/hunter2\"\n\
             [[signer.http]]\nurl = \"http://signer/hunter2\"\n\
             URLS = [\"http://u:hunter2@node:8545/hunter2\", \"https://node\", \"http://localhost:8545\"]",
        );
        let warnings = config.security_warnings();
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(warnings[0].contains("chain.a.rpc.urls[0] (http://node:8545)"), "{warnings:?}");
        assert!(warnings[1].contains("signer.http.0.url (http://signer:80)"), "{warnings:?}");
        assert!(warnings[2].contains("traces.otlp_url (http://collector:4318)"), "{warnings:?}");
        assert!(!warnings.concat().contains("hunter2"), "{warnings:?}");
    }

    #[test]
    fn a_world_readable_secret_file_is_reported() {
        for key in ["signer.password_file", "events.webhook.key_file"] {
            let file = tempfile::NamedTempFile::new().unwrap();
            let config = load(&format!(
                "database.url = \"postgres://localhost/d\"\n{key} = \"{}\"\nURLS = []",
                file.path().display()
            ));
            assert_eq!(config.security_warnings(), Vec::<String>::new());
            std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o644)).unwrap();
            assert!(config.security_warnings()[0].contains(file.path().to_str().unwrap()), "{key}");
        }
    }
}

//! TLS of a server. Certificate and key are files and are reloaded when they change.
//!
//! The files are polled, because neither a cluster that renews a mount nor a certificate agent signals the process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

/// Poll interval of the two files.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// PEM files, and how messages name them.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate and its chain.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// The section of the configuration with the keys `cert` and `key`, for example `api.tls`.
    pub section: &'static str,
    /// Whose certificate it is, for example `API`.
    pub server: &'static str,
}

#[derive(Clone, Debug)]
pub struct Tls {
    current: watch::Receiver<Arc<ServerConfig>>,
}

/// The files as they were read.
#[derive(PartialEq, Eq)]
struct Contents {
    cert: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
}

impl Tls {
    /// Fails if the files are unusable. If later versions are unusable, logs a warning and keeps the last usable ones.
    pub async fn start(files: TlsFiles, stop: &CancellationToken) -> anyhow::Result<Tls> {
        let contents = files.read().await?;
        let (changed, current) = watch::channel(Arc::new(files.server_config(&contents)?));
        tokio::spawn(reload_on_change(files, contents, changed, stop.clone()));
        Ok(Tls { current })
    }

    /// An acceptor with the current certificate.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.borrow().clone())
    }
}

async fn reload_on_change(
    files: TlsFiles,
    mut seen: Contents,
    changed: watch::Sender<Arc<ServerConfig>>,
    stop: CancellationToken,
) {
    let server = files.server;
    while tokio::time::timeout(POLL_INTERVAL, stop.cancelled()).await.is_err() {
        let found = match files.read().await {
            Ok(found) if found == seen => continue,
            Ok(found) => found,
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(error, "cannot read the {server}'s certificate; the old one stays in use");
                continue;
            }
        };
        // While only one of the files is replaced they do not match. The next poll reads both.
        match files.server_config(&found) {
            Ok(config) => {
                changed.send_replace(Arc::new(config));
                tracing::info!("{server} certificate reloaded");
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(error, "the {server}'s new certificate is unusable; the old one stays in use");
            }
        }
        seen = found;
    }
}

impl TlsFiles {
    /// Reads both files as a server does at its start, and returns the certificate chain in DER. The validity period is
    /// not checked: a server starts with an expired certificate, and clients refuse it.
    pub async fn certificates(&self) -> anyhow::Result<Vec<CertificateDer<'static>>> {
        let contents = self.read().await?;
        self.server_config(&contents)?;
        self.chain(&contents)
    }

    fn chain(&self, contents: &Contents) -> anyhow::Result<Vec<CertificateDer<'static>>> {
        let no_certificate = || format!("{}.cert contains no PEM certificate", self.section);
        let chain = CertificateDer::pem_slice_iter(&contents.cert).collect::<Result<Vec<_>, _>>();
        let chain = chain.with_context(no_certificate)?;
        anyhow::ensure!(!chain.is_empty(), no_certificate());
        Ok(chain)
    }

    async fn read(&self) -> anyhow::Result<Contents> {
        let cert = self.read_one("cert", &self.cert).await?;
        let key = Zeroizing::new(self.read_one("key", &self.key).await?);
        Ok(Contents { cert, key })
    }

    async fn read_one(&self, key: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
        tokio::fs::read(path).await.with_context(|| format!("{}.{key}: {}", self.section, path.display()))
    }

    /// HTTP/1.1 only, as without TLS.
    fn server_config(&self, contents: &Contents) -> anyhow::Result<ServerConfig> {
        let section = self.section;
        let chain = self.chain(contents)?;
        // Without the cause, which could quote the file.
        let key = PrivateKeyDer::from_pem_slice(&contents.key).ok();
        let key =
            key.with_context(|| format!("{section}.key contains no PEM private key, or it is encrypted"))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .context("could not set up TLS")?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .with_context(|| format!("{section}: invalid certificate, or the key does not match it"))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate_and_key() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn files(dir: &Path) -> TlsFiles {
        TlsFiles { cert: dir.join("c"), key: dir.join("k"), section: "api.tls", server: "API" }
    }

    fn server_config(cert: &str, key: &str) -> anyhow::Result<ServerConfig> {
        let contents = Contents { cert: cert.into(), key: Zeroizing::new(key.into()) };
        files(Path::new("unused")).server_config(&contents)
    }

    #[test]
    fn an_unusable_file_is_named_and_its_content_is_not_shown() {
        let ((cert, key), (_, other)) = (certificate_and_key(), certificate_and_key());
        assert!(server_config(&cert, &key).is_ok());
        for (unusable, named) in [
            (server_config("", &key), "api.tls.cert contains no PEM certificate"),
            (server_config(&key, &key), "api.tls.cert contains no PEM certificate"),
            (server_config(&cert, ""), "api.tls.key contains no PEM private key, or it is encrypted"),
            (server_config(&cert, &cert), "api.tls.key contains no PEM private key, or it is encrypted"),
            (server_config(&cert, &other), "api.tls: invalid certificate, or the key does not match it"),
        ] {
            let message = format!("{:#}", unusable.unwrap_err());
            assert!(message.contains(named), "{message}");
            assert!(key.lines().chain(other.lines()).all(|line| !message.contains(line)), "{message}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_certificate_is_reloaded_unless_its_key_does_not_match() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let write = |cert: &str, key: &str| {
            std::fs::write(&files.cert, cert).unwrap();
            std::fs::write(&files.key, key).unwrap();
        };
        let ((cert, key), (next, next_key)) = (certificate_and_key(), certificate_and_key());
        write(&cert, &key);
        let mut tls = Tls::start(files.clone(), &CancellationToken::new()).await.unwrap();
        tls.current.borrow_and_update();
        write(&next, &key);
        tokio::time::sleep(POLL_INTERVAL * 3).await;
        assert!(!tls.current.has_changed().unwrap());
        write(&next, &next_key);
        tls.current.changed().await.unwrap();
    }
}

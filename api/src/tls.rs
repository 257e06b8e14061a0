//! TLS for the API. Certificate and key are files and are reloaded when they change.
//!
//! The files are polled, because neither a cluster that renews a mount nor a certificate agent signals the process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gapless_config::ApiTls;
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

#[derive(Clone, Debug)]
pub(crate) struct Tls {
    current: watch::Receiver<Arc<ServerConfig>>,
}

/// The files as they were read.
#[derive(PartialEq, Eq)]
struct Files {
    cert: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
}

impl Tls {
    /// Fails if the files are unusable. If later versions are unusable, logs a warning and keeps the last usable ones.
    pub(crate) async fn start(config: &ApiTls, stop: &CancellationToken) -> anyhow::Result<Tls> {
        let files = Files::read(config).await?;
        let (changed, current) = watch::channel(Arc::new(files.server_config()?));
        tokio::spawn(reload_on_change(config.clone(), files, changed, stop.clone()));
        Ok(Tls { current })
    }

    /// An acceptor with the current certificate.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.borrow().clone())
    }
}

async fn reload_on_change(
    config: ApiTls,
    mut seen: Files,
    changed: watch::Sender<Arc<ServerConfig>>,
    stop: CancellationToken,
) {
    while tokio::time::timeout(POLL_INTERVAL, stop.cancelled()).await.is_err() {
        let found = match Files::read(&config).await {
            Ok(found) if found == seen => continue,
            Ok(found) => found,
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(error, "cannot read the API's certificate; the old one stays in use");
                continue;
            }
        };
        // While only one of the files is replaced they do not match. The next poll reads both.
        match found.server_config() {
            Ok(server) => {
                changed.send_replace(Arc::new(server));
                tracing::info!("API certificate reloaded");
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(error, "the API's new certificate is unusable; the old one stays in use");
            }
        }
        seen = found;
    }
}

impl Files {
    async fn read(config: &ApiTls) -> anyhow::Result<Files> {
        let cert = read("cert", &config.cert).await?;
        let key = Zeroizing::new(read("key", &config.key).await?);
        Ok(Files { cert, key })
    }

    /// HTTP/1.1 only, as without TLS.
    fn server_config(&self) -> anyhow::Result<ServerConfig> {
        let chain = CertificateDer::pem_slice_iter(&self.cert).collect::<Result<Vec<_>, _>>();
        let chain = chain.context("api.tls.cert contains no PEM certificate")?;
        anyhow::ensure!(!chain.is_empty(), "api.tls.cert contains no PEM certificate");
        // Without the cause, which could quote the file.
        let key = PrivateKeyDer::from_pem_slice(&self.key).ok();
        let key = key.context("api.tls.key contains no PEM private key, or it is encrypted")?;
        let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .context("could not set up TLS")?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .context("api.tls: invalid certificate, or the key does not match it")?;
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(server)
    }
}

async fn read(key: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    tokio::fs::read(path).await.with_context(|| format!("api.tls.{key}: {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate_and_key() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn files(cert: &str, key: &str) -> Files {
        Files { cert: cert.into(), key: Zeroizing::new(key.into()) }
    }

    #[test]
    fn an_unusable_file_is_named_and_its_content_is_not_shown() {
        let ((cert, key), (_, other)) = (certificate_and_key(), certificate_and_key());
        assert!(files(&cert, &key).server_config().is_ok());
        for (unusable, named) in [
            (files("", &key), "api.tls.cert"),
            (files(&key, &key), "api.tls.cert"),
            (files(&cert, ""), "api.tls.key"),
            (files(&cert, &cert), "api.tls.key"),
            (files(&cert, &other), "does not match"),
        ] {
            let message = format!("{:#}", unusable.server_config().unwrap_err());
            assert!(message.contains(named), "{message}");
            assert!(key.lines().chain(other.lines()).all(|line| !message.contains(line)), "{message}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_certificate_is_reloaded_unless_its_key_does_not_match() {
        let dir = tempfile::tempdir().unwrap();
        let config = ApiTls { cert: dir.path().join("c"), key: dir.path().join("k") };
        let write = |cert: &str, key: &str| {
            std::fs::write(&config.cert, cert).unwrap();
            std::fs::write(&config.key, key).unwrap();
        };
        let ((cert, key), (next, next_key)) = (certificate_and_key(), certificate_and_key());
        write(&cert, &key);
        let mut tls = Tls::start(&config, &CancellationToken::new()).await.unwrap();
        tls.current.borrow_and_update();
        write(&next, &key);
        tokio::time::sleep(POLL_INTERVAL * 3).await;
        assert!(!tls.current.has_changed().unwrap());
        write(&next, &next_key);
        tls.current.changed().await.unwrap();
    }
}

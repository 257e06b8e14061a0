//! TLS of the API's own: certificate and key are files, and are read again when they change.
//!
//! They are looked at by the clock. A signal would have to be sent by somebody who knows the process; a mount that is renewed
//! by a cluster, or a certificate by its agent, tells nobody.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gapless::config::ApiTls;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

/// Two small files. A certificate is replaced weeks before it ends.
const LOOK_EVERY: Duration = Duration::from_secs(5);

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
    /// Fails if the files cannot be used. Later ones that cannot be used are reported, and the last that could are kept.
    pub(crate) async fn start(config: &ApiTls, stop: &CancellationToken) -> anyhow::Result<Tls> {
        let files = Files::read(config).await?;
        let (changed, current) = watch::channel(Arc::new(files.server()?));
        tokio::spawn(follow(config.clone(), files, changed, stop.clone()));
        Ok(Tls { current })
    }

    /// For one connection, with the certificate of this moment.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.borrow().clone())
    }
}

async fn follow(
    config: ApiTls,
    mut seen: Files,
    changed: watch::Sender<Arc<ServerConfig>>,
    stop: CancellationToken,
) {
    while tokio::time::timeout(LOOK_EVERY, stop.cancelled()).await.is_err() {
        let found = match Files::read(&config).await {
            Ok(found) if found == seen => continue,
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(error = %format!("{error:#}"), "the API's certificate cannot be read; the old one serves");
                continue;
            }
        };
        // Of two files one is replaced first: between them they do not fit, and the next look finds the other.
        match found.server() {
            Ok(server) => {
                changed.send_replace(Arc::new(server));
                tracing::info!("the API has another certificate");
            }
            Err(error) => {
                tracing::warn!(error = %format!("{error:#}"), "the API's new certificate cannot be used; the old one serves");
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

    /// Only HTTP/1.1 is spoken, as without TLS.
    fn server(&self) -> anyhow::Result<ServerConfig> {
        let chain = CertificateDer::pem_slice_iter(&self.cert).collect::<Result<Vec<_>, _>>();
        let chain = chain.context("api.tls.cert holds no certificate in PEM")?;
        anyhow::ensure!(!chain.is_empty(), "api.tls.cert holds no certificate in PEM");
        // Without the cause: it could quote the file.
        let key = PrivateKeyDer::from_pem_slice(&self.key).ok();
        let key = key.context("api.tls.key holds no private key in PEM, or it is encrypted")?;
        let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .context("TLS cannot be set up")?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .context("api.tls: certificate and key cannot be used together")?;
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

    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn files(cert: &str, key: &str) -> Files {
        Files { cert: cert.into(), key: Zeroizing::new(key.into()) }
    }

    #[test]
    fn what_cannot_be_used_is_named_and_not_repeated() {
        let ((cert, key), (_, other)) = (pair(), pair());
        assert!(files(&cert, &key).server().is_ok());
        for (unusable, named) in [
            (files("", &key), "api.tls.cert"),
            (files(&key, &key), "api.tls.cert"),
            (files(&cert, ""), "api.tls.key"),
            (files(&cert, &cert), "api.tls.key"),
            (files(&cert, &other), "together"),
        ] {
            let told = format!("{:#}", unusable.server().unwrap_err());
            assert!(told.contains(named), "{told}");
            assert!(key.lines().chain(other.lines()).all(|line| !told.contains(line)), "{told}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_certificate_is_taken_up_and_one_that_does_not_fit_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let config = ApiTls { cert: dir.path().join("c"), key: dir.path().join("k") };
        let write = |cert: &str, key: &str| {
            std::fs::write(&config.cert, cert).unwrap();
            std::fs::write(&config.key, key).unwrap();
        };
        let ((cert, key), (next, next_key)) = (pair(), pair());
        write(&cert, &key);
        let mut tls = Tls::start(&config, &CancellationToken::new()).await.unwrap();
        tls.current.borrow_and_update();
        write(&next, &key);
        tokio::time::sleep(LOOK_EVERY * 3).await;
        assert!(!tls.current.has_changed().unwrap());
        write(&next, &next_key);
        tls.current.changed().await.unwrap();
    }
}

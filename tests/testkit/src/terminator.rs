//! A TLS-terminating proxy in front of a plain TCP server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::authority::Identity;

#[derive(Clone, Debug)]
pub struct Terminator {
    port: u16,
    shaken: Arc<AtomicUsize>,
}

impl Terminator {
    /// In front of `upstream` (`http://host:port`), with this certificate.
    pub async fn start(upstream: &str, identity: &Identity) -> Terminator {
        let upstream = upstream.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let (acceptor, shaken) = (acceptor(identity), Arc::new(AtomicUsize::new(0)));
        let counted = shaken.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, upstream, counted) = (acceptor.clone(), upstream.clone(), counted.clone());
                tokio::spawn(async move {
                    let mut stream = acceptor.accept(stream).await.ok()?;
                    counted.fetch_add(1, Ordering::Relaxed);
                    let mut upstream = TcpStream::connect(upstream).await.ok()?;
                    copy_bidirectional(&mut stream, &mut upstream).await.ok()
                });
            }
        });
        Terminator { port, shaken }
    }

    /// URL with this host name and this rest after the port.
    pub fn url(&self, host: &str, rest: &str) -> String {
        format!("https://{host}:{}{rest}", self.port)
    }

    /// Number of completed TLS handshakes.
    pub fn handshakes(&self) -> usize {
        self.shaken.load(Ordering::Relaxed)
    }
}

fn acceptor(identity: &Identity) -> TlsAcceptor {
    let chain =
        CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_no_client_auth()
        .with_single_cert(chain.expect("certificates"), key)
        .expect("a certificate and its key");
    TlsAcceptor::from(Arc::new(config))
}

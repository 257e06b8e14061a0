//! Accepts connections and serves HTTP/1.1, plain or over TLS, with limits on connections, header size, header time
//! and write time. HTTP/2 needs a reverse proxy.
//!
//! The framework's own server has none of these limits, so hyper serves its endpoint here.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gapless_config::Api;
use gapless_telemetry::metrics::API_CONNECTIONS;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use poem::http::uri::Scheme;
use poem::web::{LocalAddr, RemoteAddr};
use poem::{Endpoint, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::tls::Tls;
use crate::write_timeout::WriteTimeout;

type Stream = WriteTimeout<TcpStream>;

/// Pause after a failed accept, for example when file descriptors are exhausted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_connections: usize,
    pub(crate) max_header_bytes: usize,
    pub(crate) header_timeout: Duration,
    pub(crate) send_timeout: Duration,
}

impl Limits {
    pub(crate) fn new(api: &Api) -> Limits {
        Limits {
            max_connections: api.max_connections,
            max_header_bytes: api.max_header_bytes,
            header_timeout: api.header_timeout,
            send_timeout: api.send_timeout,
        }
    }
}

/// Serves until `stop`, then waits at most `grace` for open requests.
pub(crate) async fn serve(
    listener: TcpListener,
    endpoint: impl Endpoint<Output = Response> + 'static,
    limits: Limits,
    tls: Option<Tls>,
    stop: &CancellationToken,
    grace: Duration,
) {
    let server = Server {
        endpoint: Arc::new(endpoint),
        protocol: protocol(&limits),
        tls,
        handshake_timeout: limits.header_timeout,
        send_timeout: limits.send_timeout,
        stop: stop.clone(),
        abandon: CancellationToken::new(),
    };
    let slots = Arc::new(Semaphore::new(limits.max_connections));
    let connections = TaskTracker::new();
    while let Some((stream, remote, permit)) = accept(&listener, &slots, stop).await {
        connections.spawn(server.clone().serve_connection(stream, remote, permit));
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(grace, connections.wait()).await.is_err() {
        tracing::warn!(connections = connections.len(), "closing connections with unfinished requests");
        server.abandon.cancel();
        connections.wait().await;
    }
}

/// The next connection. At the connection limit, new ones wait in the listen backlog. `None`: stop.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
    stop: &CancellationToken,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let next = async {
        // The semaphore is never closed.
        let permit = slots.clone().acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok((stream, remote)) => return Some((stream, remote, permit)),
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        next = next => next,
        () = stop.cancelled() => None,
    }
}

fn protocol(limits: &Limits) -> http1::Builder {
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_header_size(limits.max_header_bytes);
    protocol
}

struct Server<E> {
    endpoint: Arc<E>,
    protocol: http1::Builder,
    tls: Option<Tls>,
    handshake_timeout: Duration,
    send_timeout: Duration,
    stop: CancellationToken,
    /// The grace period is over.
    abandon: CancellationToken,
}

// Not derived: that would require `E: Clone`.
impl<E> Clone for Server<E> {
    fn clone(&self) -> Self {
        Server {
            endpoint: self.endpoint.clone(),
            protocol: self.protocol.clone(),
            tls: self.tls.clone(),
            handshake_timeout: self.handshake_timeout,
            send_timeout: self.send_timeout,
            stop: self.stop.clone(),
            abandon: self.abandon.clone(),
        }
    }
}

impl<E: Endpoint<Output = Response> + 'static> Server<E> {
    async fn serve_connection(self, stream: TcpStream, remote: SocketAddr, permit: OwnedSemaphorePermit) {
        let _guard = ConnectionGuard::new(permit);
        // A response is one write: Nagle's algorithm would only delay it.
        let _ = stream.set_nodelay(true);
        let Ok(local) = stream.local_addr() else { return };
        let addresses = (LocalAddr(local.into()), RemoteAddr(remote.into()));
        // Below TLS, so that the timeout sees the socket's writes.
        let stream = WriteTimeout::new(stream, self.send_timeout);
        match &self.tls {
            None => self.serve_requests(stream, addresses, Scheme::HTTP).await,
            Some(tls) => {
                if let Some(stream) = self.handshake(tls, stream).await {
                    self.serve_requests(stream, addresses, Scheme::HTTPS).await;
                }
            }
        }
    }

    /// `None`: the handshake failed or timed out, or the server is stopping.
    async fn handshake(&self, tls: &Tls, stream: Stream) -> Option<TlsStream<Stream>> {
        let handshake = tokio::time::timeout(self.handshake_timeout, tls.acceptor().accept(stream));
        tokio::select! {
            result = handshake => match result {
                Ok(Ok(stream)) => Some(stream),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "TLS handshake failed");
                    None
                }
                Err(_) => {
                    tracing::debug!("TLS handshake timed out");
                    None
                }
            },
            () = self.stop.cancelled() => None,
        }
    }

    async fn serve_requests(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        (local, remote): (LocalAddr, RemoteAddr),
        scheme: Scheme,
    ) {
        let service = service_fn(|request: hyper::Request<Incoming>| {
            let endpoint = self.endpoint.clone();
            let parts = (request, local.clone(), remote.clone(), scheme.clone());
            async move { Ok::<_, Infallible>(endpoint.get_response(Request::from(parts)).await.into()) }
        });
        let connection = self.protocol.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        tokio::select! {
            // Errors of the connection are ignored: its requests were already logged and counted.
            _ = &mut connection => return,
            () = self.stop.cancelled() => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            _ = connection => {}
            () = self.abandon.cancelled() => {}
        }
    }
}

/// Holds the permit and counts the connection until it ends.
struct ConnectionGuard(#[allow(dead_code, reason = "held, not read")] OwnedSemaphorePermit);

impl ConnectionGuard {
    fn new(permit: OwnedSemaphorePermit) -> ConnectionGuard {
        metrics::gauge!(API_CONNECTIONS).increment(1.0);
        ConnectionGuard(permit)
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        metrics::gauge!(API_CONNECTIONS).decrement(1.0);
    }
}

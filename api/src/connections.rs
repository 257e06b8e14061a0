//! Connections: how many, how slow, how long their headers. HTTP/1.1 alone, in the clear or over TLS; whoever wants HTTP/2
//! puts something in front that speaks it.
//!
//! The framework's own server has none of these limits, so its endpoint is served by hyper here.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gapless::config::Api;
use gapless::observe::metrics::API_CONNECTIONS;
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

/// Before the next try where the system has nothing left to give, for example file descriptors.
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

/// Serves until `stop`, then answers what is under way for at most `grace`.
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
    let room = Arc::new(Semaphore::new(limits.max_connections));
    let connections = TaskTracker::new();
    while let Some((stream, from, place)) = accept(&listener, &room, stop).await {
        connections.spawn(server.clone().connection(stream, from, place));
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(grace, connections.wait()).await.is_err() {
        tracing::warn!(connections = connections.len(), "some requests were not answered in time");
        server.abandon.cancel();
        connections.wait().await;
    }
}

/// The next connection, once there is a place for it: who comes too early waits in the system's queue. `None`: stop.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
    stop: &CancellationToken,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let next = async {
        // The semaphore is never closed; were it, nobody could be let in.
        let place = room.clone().acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok((stream, from)) => return Some((stream, from, place)),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
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
    /// The time to answer is over.
    abandon: CancellationToken,
}

// Derived, it would want a cloneable endpoint.
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
    async fn connection(self, stream: TcpStream, from: SocketAddr, place: OwnedSemaphorePermit) {
        let _counted = Counted::new(place);
        // An answer is one write, which nothing should hold back.
        let _ = stream.set_nodelay(true);
        let Ok(here) = stream.local_addr() else { return };
        let between = (LocalAddr(here.into()), RemoteAddr(from.into()));
        // Below TLS: what a client does not read is not taken there either.
        let stream = WriteTimeout::new(stream, self.send_timeout);
        match &self.tls {
            None => self.requests(stream, between, Scheme::HTTP).await,
            Some(tls) => {
                if let Some(stream) = self.handshake(tls, stream).await {
                    self.requests(stream, between, Scheme::HTTPS).await;
                }
            }
        }
    }

    /// `None`: it is none that we can talk to, or it took too long, or there is no time left.
    async fn handshake(&self, tls: &Tls, stream: Stream) -> Option<TlsStream<Stream>> {
        let shaken = tokio::time::timeout(self.handshake_timeout, tls.acceptor().accept(stream));
        tokio::select! {
            shaken = shaken => match shaken {
                Ok(Ok(stream)) => Some(stream),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a TLS handshake failed");
                    None
                }
                Err(_) => {
                    tracing::debug!("a TLS handshake took too long");
                    None
                }
            },
            () = self.stop.cancelled() => None,
        }
    }

    async fn requests(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        (here, from): (LocalAddr, RemoteAddr),
        scheme: Scheme,
    ) {
        let service = service_fn(|request: hyper::Request<Incoming>| {
            let endpoint = self.endpoint.clone();
            let addressed = (request, here.clone(), from.clone(), scheme.clone());
            async move { Ok::<_, Infallible>(endpoint.get_response(Request::from(addressed)).await.into()) }
        });
        let connection = self.protocol.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        tokio::select! {
            // How it ended is the client's business; what it asked for was answered, logged and counted.
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

/// A place that is taken, however the connection ends.
struct Counted(#[allow(dead_code, reason = "held, not read")] OwnedSemaphorePermit);

impl Counted {
    fn new(place: OwnedSemaphorePermit) -> Counted {
        metrics::gauge!(API_CONNECTIONS).increment(1.0);
        Counted(place)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        metrics::gauge!(API_CONNECTIONS).decrement(1.0);
    }
}

//! Accepts connections and serves HTTP/1.1, plain or over TLS, with limits on connections, all and of one address,
//! header size, header time, write time and, if set, connection time. HTTP/2 needs a reverse proxy.
//!
//! The framework's own server has none of these limits, so hyper serves its endpoint here.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics::Gauge;
use poem::http::uri::Scheme;
use poem::web::{LocalAddr, RemoteAddr};
use poem::{Endpoint, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::per_address::{ClientConnection, PerAddress};
use crate::tls::Tls;

/// Without a timeout of its writes, a client that never reads its response would keep the connection and the response's
/// memory forever. Reads are limited by hyper and `body_limit`.
type Stream = Pin<Box<TimeoutStream<TcpStream>>>;

/// Pause after a failed accept, for example when file descriptors are exhausted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Further connections wait to be accepted.
    pub max_connections: usize,
    /// Of one client address, without an authenticated request (`ClientConnection`). Above it, the oldest are closed.
    /// `None`: unlimited.
    pub max_per_address: Option<usize>,
    /// Of the request line and all headers together.
    pub max_header_bytes: usize,
    /// From accepting the connection, or from the previous response, to the end of the request's headers; also the idle
    /// timeout. The TLS handshake has the same timeout.
    pub header_timeout: Duration,
    /// How long a client may read nothing of its response.
    pub send_timeout: Duration,
    /// From accepting the connection to its end. `None`: unlimited.
    pub connection_timeout: Option<Duration>,
    /// False: one request for each connection.
    pub keep_alive: bool,
    /// For open requests to finish after `stop`.
    pub shutdown_grace: Duration,
}

/// Serves until `stop`, then waits at most `limits.shutdown_grace` for open requests. Returns the number of connections
/// that were closed with unfinished requests. `open_connections` counts connections, not requests.
pub async fn serve(
    listener: TcpListener,
    endpoint: impl Endpoint<Output = Response> + 'static,
    limits: Limits,
    tls: Option<Tls>,
    open_connections: Gauge,
    stop: &CancellationToken,
) -> usize {
    let server = Server {
        endpoint: Arc::new(endpoint),
        protocol: protocol(&limits),
        per_address: PerAddress::new(limits.max_per_address),
        limits,
        tls,
        open_connections,
        stop: stop.clone(),
        abandon: CancellationToken::new(),
    };
    let slots = Arc::new(Semaphore::new(limits.max_connections));
    let connections = TaskTracker::new();
    while let Some((stream, remote, permit)) = accept(&listener, &slots, &server.per_address, stop).await {
        // Here and not in the task: in the order of arrival.
        let client = server.per_address.enter(remote.ip());
        client.hold_slot(permit);
        connections.spawn(server.clone().serve_connection(stream, remote, client));
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(limits.shutdown_grace, connections.wait()).await.is_ok() {
        return 0;
    }
    let unfinished = connections.len();
    server.abandon.cancel();
    connections.wait().await;
    unfinished
}

/// The next connection, when it has a slot. Meanwhile others wait in the listen backlog. `None`: stop.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
    per_address: &PerAddress,
    stop: &CancellationToken,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let next = async {
        let (stream, remote) = loop {
            match listener.accept().await {
                Ok(accepted) => break accepted,
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        };
        if let Ok(permit) = slots.clone().try_acquire_owned() {
            return Some((stream, remote, permit));
        }
        per_address.set_full(true);
        // The semaphore is never closed.
        let permit = slots.clone().acquire_owned().await.ok()?;
        per_address.set_full(false);
        Some((stream, remote, permit))
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
        .keep_alive(limits.keep_alive)
        .header_read_timeout(limits.header_timeout)
        .max_header_size(limits.max_header_bytes);
    protocol
}

struct Server<E> {
    endpoint: Arc<E>,
    protocol: http1::Builder,
    per_address: PerAddress,
    limits: Limits,
    tls: Option<Tls>,
    open_connections: Gauge,
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
            per_address: self.per_address.clone(),
            limits: self.limits,
            tls: self.tls.clone(),
            open_connections: self.open_connections.clone(),
            stop: self.stop.clone(),
            abandon: self.abandon.clone(),
        }
    }
}

impl<E: Endpoint<Output = Response> + 'static> Server<E> {
    async fn serve_connection(self, stream: TcpStream, remote: SocketAddr, client: ClientConnection) {
        let _guard = ConnectionGuard::new(client.clone(), self.open_connections.clone());
        let served = async {
            tokio::select! {
                // First, so that a request that has arrived is seen before the connection is closed for having none.
                biased;
                () = self.serve_stream(stream, remote, &client) => {}
                () = client.displaced() => {}
            }
        };
        match self.limits.connection_timeout {
            None => served.await,
            // On timeout the connection is dropped.
            Some(timeout) => {
                let _ = tokio::time::timeout(timeout, served).await;
            }
        }
    }

    async fn serve_stream(&self, stream: TcpStream, remote: SocketAddr, client: &ClientConnection) {
        // A response is one write: Nagle's algorithm would only delay it.
        let _ = stream.set_nodelay(true);
        let Ok(local) = stream.local_addr() else { return };
        let addresses = (LocalAddr(local.into()), RemoteAddr(remote.into()));
        // Below TLS, so that the timeout sees the socket's writes.
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.limits.send_timeout));
        let stream = Box::pin(stream);
        match &self.tls {
            None => self.serve_requests(stream, addresses, Scheme::HTTP, client).await,
            Some(tls) => {
                if let Some(stream) = self.handshake(tls, stream).await {
                    self.serve_requests(stream, addresses, Scheme::HTTPS, client).await;
                }
            }
        }
    }

    /// `None`: the handshake failed or timed out, or the server is stopping.
    async fn handshake(&self, tls: &Tls, stream: Stream) -> Option<TlsStream<Stream>> {
        let handshake = tokio::time::timeout(self.limits.header_timeout, tls.acceptor().accept(stream));
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
        client: &ClientConnection,
    ) {
        let service = service_fn(|request: hyper::Request<Incoming>| {
            let endpoint = self.endpoint.clone();
            let parts = (request, local.clone(), remote.clone(), scheme.clone());
            let client = client.clone();
            // Here and not in the future, which may be polled later.
            let in_progress = client.begin_request();
            async move {
                let _in_progress = in_progress;
                let mut request = Request::from(parts);
                request.set_data(client);
                Ok::<_, Infallible>(endpoint.get_response(request).await.into())
            }
        });
        let connection = self.protocol.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        tokio::select! {
            // Errors of the connection are ignored: they are the client's concern, and an endpoint that logs and
            // counts its requests has already done so.
            _ = &mut connection => return,
            () = self.stop.cancelled() => {}
        }
        // Closes a connection that has no request. One for a single request ends by itself, and its request may still
        // arrive within the grace period.
        if self.limits.keep_alive {
            connection.as_mut().graceful_shutdown();
        }
        tokio::select! {
            _ = connection => {}
            () = self.abandon.cancelled() => {}
        }
    }
}

/// Counts the connection and keeps its slot until it ends.
struct ConnectionGuard {
    open_connections: Gauge,
    client: ClientConnection,
}

impl ConnectionGuard {
    fn new(client: ClientConnection, open_connections: Gauge) -> ConnectionGuard {
        open_connections.increment(1.0);
        ConnectionGuard { open_connections, client }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.open_connections.decrement(1.0);
        // Requests that were abandoned may keep the connection's entry a little longer.
        self.client.free_slot();
    }
}

#[cfg(test)]
mod tests {
    use poem::web::Data;
    use poem::{EndpointExt, Route, get, handler};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::JoinHandle;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const LIMITS: Limits = Limits {
        max_connections: 1,
        max_per_address: None,
        max_header_bytes: 16 << 10,
        header_timeout: LONG,
        send_timeout: LONG,
        connection_timeout: None,
        keep_alive: true,
        shutdown_grace: LONG,
    };

    #[handler]
    fn fast() -> &'static str {
        "done"
    }

    #[handler]
    async fn never(Data(arrived): Data<&CancellationToken>) {
        arrived.cancel();
        std::future::pending().await
    }

    struct Running {
        address: SocketAddr,
        /// A request for `never` has arrived.
        arrived: CancellationToken,
        stop: CancellationToken,
        served: JoinHandle<usize>,
    }

    async fn start(limits: Limits) -> Running {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (arrived, stop) = (CancellationToken::new(), CancellationToken::new());
        let endpoint = Route::new()
            .at("/fast", get(fast))
            .at("/never", get(never))
            .at("/sign-in", get(sign_in))
            .data(arrived.clone());
        let served = tokio::spawn({
            let stop = stop.clone();
            async move { serve(listener, endpoint, limits, None, Gauge::noop(), &stop).await }
        });
        Running { address, arrived, stop, served }
    }

    async fn request(address: SocketAddr, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: here\r\n\r\n").as_bytes()).await.unwrap();
        stream
    }

    /// Fails if the server does not close the connection.
    async fn until_closed(mut stream: TcpStream) -> String {
        let mut received = Vec::new();
        // A reset closes it as well.
        let _ = tokio::time::timeout(LONG / 2, stream.read_to_end(&mut received)).await.unwrap();
        String::from_utf8(received).unwrap()
    }

    #[tokio::test]
    async fn without_keep_alive_a_connection_serves_one_request() {
        let running = start(Limits { keep_alive: false, ..LIMITS }).await;
        for _ in 0..2 {
            assert!(until_closed(request(running.address, "/fast").await).await.ends_with("done"));
        }
        running.stop.cancel();
        assert_eq!(running.served.await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_connection_ends_at_its_timeout_and_the_next_one_gets_its_slot() {
        let connection_timeout = Some(Duration::from_secs(1));
        let Running { address, .. } = start(Limits { connection_timeout, ..LIMITS }).await;
        let silent = TcpStream::connect(address).await.unwrap();
        let stuck = request(address, "/never").await;
        let mut next = request(address, "/fast").await;
        next.read_exact(&mut [0; 12]).await.unwrap();
        assert_eq!((until_closed(silent).await, until_closed(stuck).await), (String::new(), String::new()));
    }

    #[handler]
    fn sign_in(Data(client): Data<&ClientConnection>) -> &'static str {
        client.set_authenticated();
        "done"
    }

    #[tokio::test]
    async fn silent_connections_of_an_address_make_room_and_authenticated_ones_stay() {
        let limits = Limits { max_connections: 10, max_per_address: Some(3), ..LIMITS };
        let Running { address, .. } = start(limits).await;
        let mut known = Vec::new();
        for _ in 0..4 {
            let mut stream = request(address, "/sign-in").await;
            stream.read_exact(&mut [0; 12]).await.unwrap();
            known.push(stream);
        }
        let mut silent = Vec::new();
        for _ in 0..30 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        // It waits for none of their timeouts.
        request(address, "/fast").await.read_exact(&mut [0; 12]).await.unwrap();
        silent.truncate(20);
        for stream in silent {
            assert_eq!(until_closed(stream).await, "");
        }
        for mut stream in known {
            stream.write_all(b"GET /fast HTTP/1.1\r\nhost: here\r\n\r\n").await.unwrap();
            // Two responses: that to the first request was read in part.
            let mut received = String::new();
            while received.matches("done").count() < 2 {
                received.push(char::from(stream.read_u8().await.unwrap()));
            }
        }
    }

    #[tokio::test]
    async fn stop_closes_idle_connections_at_once_and_unfinished_requests_after_the_grace_period() {
        let grace = Duration::from_secs(1);
        let running = start(Limits { max_connections: 2, shutdown_grace: grace, ..LIMITS }).await;
        let mut idle = request(running.address, "/fast").await;
        idle.read_exact(&mut [0; 12]).await.unwrap();
        let unfinished = request(running.address, "/never").await;
        running.arrived.cancelled().await;
        running.stop.cancel();
        until_closed(idle).await;
        assert!(!running.served.is_finished());
        assert_eq!(running.served.await.unwrap(), 1);
        assert_eq!(until_closed(unfinished).await, "");
    }
}

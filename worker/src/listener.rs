//! HTTP listener for health probes and metrics: at most 32 connections, one request each, with a time limit. Probes
//! and scrapers retry anyway, so the listener has none of the API's limits that answer a client with an error.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use poem::http::uri::Scheme;
use poem::web::{LocalAddr, RemoteAddr};
use poem::{Endpoint, Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Concurrent connections; further ones wait to be accepted.
const CONNECTIONS: usize = 32;
/// Time limit of a connection. Readiness queries the database, which answers or fails well within it.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Pause after `accept` failed, for example because no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for open requests to finish when the worker stops.
const GRACE: Duration = Duration::from_secs(1);

/// Serves until `stop`.
pub(crate) async fn serve(
    listener: TcpListener,
    endpoint: impl Endpoint<Output = Response> + 'static,
    stop: CancellationToken,
) {
    let (endpoint, slots) = (Arc::new(endpoint), Arc::new(Semaphore::new(CONNECTIONS)));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let next = async {
            // The semaphore is never closed.
            let slot = slots.clone().acquire_owned().await;
            (listener.accept().await, slot)
        };
        let (accepted, slot) = tokio::select! {
            next = next => next,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, from)) => {
                let endpoint = endpoint.clone();
                connections.spawn(async move {
                    let _slot = slot;
                    // On timeout the connection is dropped.
                    let request = serve_request(stream, RemoteAddr(from.into()), endpoint);
                    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, request).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let rest = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(GRACE, rest).await;
}

async fn serve_request(stream: TcpStream, from: RemoteAddr, endpoint: Arc<impl Endpoint<Output = Response>>) {
    let Ok(here) = stream.local_addr() else { return };
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let endpoint = endpoint.clone();
        let addressed = (request, LocalAddr(here.into()), from.clone(), Scheme::HTTP);
        async move { Ok::<_, Infallible>(endpoint.get_response(Request::from(addressed)).await.into()) }
    });
    let mut protocol = http1::Builder::new();
    protocol.timer(TokioTimer::new()).keep_alive(false).max_header_size(MAX_HEADER_BYTES);
    // Connection errors are the client's concern.
    let _ = protocol.serve_connection(TokioIo::new(stream), service).await;
}

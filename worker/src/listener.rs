//! The worker's own port: a few connections, one request each, and none of them for long. It is for probes and for whoever
//! collects metrics, who come again anyway; the API's limits, which clients can be told of, are not needed here.

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

/// More than probes and collectors need at once. Who comes later waits to be accepted.
const CONNECTIONS: usize = 32;
/// From the first byte to the last. Readiness asks the database, which answers or fails well within it.
const LIFE: Duration = Duration::from_secs(10);
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Before the next try where the system has nothing left to give, for example file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// For what is under way when the worker stops.
const GRACE: Duration = Duration::from_secs(1);

/// Serves until `stop`.
pub(crate) async fn serve(
    listener: TcpListener,
    endpoint: impl Endpoint<Output = Response> + 'static,
    stop: CancellationToken,
) {
    let (endpoint, room) = (Arc::new(endpoint), Arc::new(Semaphore::new(CONNECTIONS)));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let next = async {
            // The semaphore is never closed.
            let place = room.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            next = next => next,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, from)) => {
                let endpoint = endpoint.clone();
                connections.spawn(async move {
                    let _place = place;
                    // One that takes longer is dropped, whatever it is about.
                    let _ =
                        tokio::time::timeout(LIFE, answer(stream, RemoteAddr(from.into()), endpoint)).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let rest = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(GRACE, rest).await;
}

async fn answer(stream: TcpStream, from: RemoteAddr, endpoint: Arc<impl Endpoint<Output = Response>>) {
    let Ok(here) = stream.local_addr() else { return };
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let endpoint = endpoint.clone();
        let addressed = (request, LocalAddr(here.into()), from.clone(), Scheme::HTTP);
        async move { Ok::<_, Infallible>(endpoint.get_response(Request::from(addressed)).await.into()) }
    });
    let mut protocol = http1::Builder::new();
    protocol.timer(TokioTimer::new()).keep_alive(false).max_header_size(MAX_HEADER_BYTES);
    // How it ended is the client's business.
    let _ = protocol.serve_connection(TokioIo::new(stream), service).await;
}

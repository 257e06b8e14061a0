//! The HTTP server alone: an empty handler in a separate process.

use std::time::Duration;

use anyhow::Result;
use gapless_cli::output::line;
use gapless_localnet::{Launch, Port};
use poem::http::StatusCode;
use poem::listener::TcpListener;
use poem::{Route, Server, handler, post};

use super::Taken;
use crate::bed::{Bed, keys, launched};
use crate::load::{self, Until};
use crate::measure::Usage;

const READY: &str = "doing nothing";

#[handler]
fn nothing() -> StatusCode {
    StatusCode::ACCEPTED
}

/// Runs in the child process.
pub(crate) async fn serve_nothing(port: u16) -> Result<()> {
    let server = Server::new(TcpListener::bind(("127.0.0.1", port)));
    line(READY);
    server.run(Route::new().at("/api/v1/tx", post(nothing))).await?;
    Ok(())
}

/// Posts the same requests as to the API.
pub(super) async fn run(bed: &Bed, clients: usize, time: Duration) -> Result<Taken> {
    let port = Port::claim()?;
    let log = bed.dir().join(format!("empty-{clients}-{}.log", port.number()));
    let launch = Launch::new("the empty handler", std::env::current_exe()?, log)
        .args(["empty-handler".to_owned(), port.number().to_string()]);
    let mut service = launched(launch, port, READY).await?;
    service.reachable().await?;
    let key = keys(1).remove(0);
    let body = move |number: usize| key.request(&format!("c{clients}-{number}"));
    let loaded = load::post(service.port(), clients, Until::Elapsed(time), body).await?;
    service.stop().await?;
    Ok(Taken {
        rate: loaded.rate(),
        count: loaded.count(),
        latencies: loaded.latencies,
        usage: Usage::default(),
    })
}

//! A TCP proxy between one process and PostgreSQL that can close, stall, drop and delay connections. It does not
//! parse the protocol.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

const CHUNK: usize = 16 * 1024;

/// A fault of the proxy, until `restore`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Connections are closed, and new ones are refused.
    Cut,
    /// Connections stay open, and nothing is forwarded in either direction.
    Hole,
    /// Requests are forwarded, responses are dropped, and at the end the connection is closed.
    AnswersLost,
    /// Each chunk is delayed.
    Slow(Duration),
}

#[derive(Clone, Copy, Debug, Default)]
struct Line {
    outage: Option<Outage>,
    /// Incremented to close every connection.
    cuts: u64,
    /// Incremented to silence every connection.
    silences: u64,
    /// Incremented to silence every connection at its next ping.
    silences_at_ping: u64,
}

/// A ping of the driver: a `Sync` message without a statement.
const PING: &[u8] = b"S\0\0\0\x04";

#[derive(Debug)]
pub struct TcpProxy {
    here: String,
    upstream: String,
    line: watch::Sender<Line>,
    serving: JoinHandle<()>,
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl TcpProxy {
    /// A proxy to the server of this URL.
    pub async fn start(database_url: &str) -> TcpProxy {
        let upstream = authority(database_url).to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap().to_string();
        let (line, watched) = watch::channel(Line::default());
        let server = upstream.clone();
        let serving = tokio::spawn(async move {
            // Dropped with this task, which closes all connections.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(carry(stream, server.clone(), watched.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        TcpProxy { here, upstream, line, serving }
    }

    /// URL of the same database through this proxy.
    pub fn url(&self, database_url: &str) -> String {
        assert_eq!(authority(database_url), self.upstream, "this proxy leads to another server");
        database_url.replacen(&self.upstream, &self.here, 1)
    }

    /// Starts an outage; replaces the current one.
    pub fn begin(&self, outage: Outage) {
        self.line.send_modify(|line| {
            line.outage = Some(outage);
            line.cuts += u64::from(outage == Outage::Cut);
        });
    }

    /// Existing connections forward nothing any more and are never closed, as if the server host or a firewall had
    /// dropped them. New connections work.
    pub fn silence(&self) {
        self.line.send_modify(|line| line.silences += 1);
    }

    /// Like `silence`, but each connection works until the driver's next ping, i.e. when it is returned to the pool
    /// or acquired.
    pub fn silence_at_ping(&self) {
        self.line.send_modify(|line| line.silences_at_ping += 1);
    }

    pub fn restore(&self) {
        self.line.send_modify(|line| {
            // A stream with dropped bytes cannot be continued.
            let torn = line.outage == Some(Outage::AnswersLost);
            *line = Line { outage: None, cuts: line.cuts + u64::from(torn), ..*line };
        });
    }
}

/// `host:port` of `postgres://user@host:port/name`.
fn authority(url: &str) -> &str {
    let rest = url.split_once('@').expect("a URL with a user").1;
    rest.split_once('/').expect("a URL with a database").0
}

async fn carry(client: TcpStream, upstream: String, mut line: watch::Receiver<Line>) {
    let begun = *line.borrow_and_update();
    if begun.outage == Some(Outage::Cut) {
        return;
    }
    let Ok(server) = TcpStream::connect(&upstream).await else { return };
    let (up, down) = (line.clone(), line.clone());
    let mut silent = line.clone();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (client, server) = (
        pump(from_client, to_server, up, Direction::Up),
        pump(from_server, to_client, down, Direction::Down),
    );
    tokio::pin!(client, server);
    let silence = async { silent.wait_for(|line| line.silences != begun.silences).await.is_ok() };
    let silenced = tokio::select! {
        () = &mut client => false,
        () = &mut server => false,
        _ = line.wait_for(|line| line.cuts != begun.cuts) => false,
        begun = silence => begun,
    };
    if silenced {
        // Both sockets stay open and are not read.
        std::future::pending().await
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// From the process.
    Up,
    /// From the database.
    Down,
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut line: watch::Receiver<Line>,
    direction: Direction,
) {
    let begun = *line.borrow();
    let mut chunk = vec![0; CHUNK];
    loop {
        let Ok(length @ 1..) = from.read(&mut chunk).await else { return };
        let Ok(now) = line.wait_for(|line| line.outage != Some(Outage::Hole)).await.map(|line| *line) else {
            return;
        };
        match now.outage {
            Some(Outage::AnswersLost) if direction == Direction::Down => continue,
            Some(Outage::Slow(delay)) => tokio::time::sleep(delay).await,
            _ => {}
        }
        if direction == Direction::Up
            && now.silences_at_ping != begun.silences_at_ping
            && chunk[..length] == *PING
        {
            // No response, and the connection stays open.
            std::future::pending::<()>().await;
        }
        if to.write_all(&chunk[..length]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An echo server.
    async fn echo() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://user@{}/name", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        url
    }

    async fn call(proxy: &TcpProxy, url: &str) -> TcpStream {
        TcpStream::connect(authority(&proxy.url(url))).await.unwrap()
    }

    async fn read_byte(stream: &mut TcpStream) -> Option<u8> {
        let mut byte = [0];
        (stream.read(&mut byte).await.ok()? == 1).then_some(byte[0])
    }

    #[tokio::test]
    async fn a_cut_closes_connections_until_restore() {
        let url = echo().await;
        let proxy = TcpProxy::start(&url).await;
        let mut stream = call(&proxy, &url).await;
        stream.write_all(b"a").await.unwrap();
        assert_eq!(read_byte(&mut stream).await, Some(b'a'));
        proxy.begin(Outage::Cut);
        assert_eq!(read_byte(&mut stream).await, None);
        assert_eq!(read_byte(&mut call(&proxy, &url).await).await, None, "refused");
        proxy.restore();
        let mut stream = call(&proxy, &url).await;
        stream.write_all(b"b").await.unwrap();
        assert_eq!(read_byte(&mut stream).await, Some(b'b'));
    }

    #[tokio::test]
    async fn a_silenced_connection_stays_open() {
        let url = echo().await;
        let proxy = TcpProxy::start(&url).await;
        let mut old = call(&proxy, &url).await;
        old.write_all(b"a").await.unwrap();
        assert_eq!(read_byte(&mut old).await, Some(b'a'));
        proxy.silence();
        let mut new = call(&proxy, &url).await;
        old.write_all(b"b").await.unwrap();
        new.write_all(b"c").await.unwrap();
        assert_eq!(read_byte(&mut new).await, Some(b'c'));
        let late = tokio::time::timeout(Duration::from_millis(100), read_byte(&mut old)).await;
        assert!(late.is_err(), "{late:?}");
    }

    #[tokio::test]
    async fn a_connection_silenced_at_its_ping_works_until_then() {
        let url = echo().await;
        let proxy = TcpProxy::start(&url).await;
        let mut stream = call(&proxy, &url).await;
        stream.write_all(b"a").await.unwrap();
        assert_eq!(read_byte(&mut stream).await, Some(b'a'));
        proxy.silence_at_ping();
        stream.write_all(b"b").await.unwrap();
        assert_eq!(read_byte(&mut stream).await, Some(b'b'));
        stream.write_all(PING).await.unwrap();
        let late = tokio::time::timeout(Duration::from_millis(100), read_byte(&mut stream)).await;
        assert!(late.is_err(), "{late:?}");
        let mut new = call(&proxy, &url).await;
        new.write_all(PING).await.unwrap();
        assert_eq!(read_byte(&mut new).await, Some(b'S'), "new connections work");
    }

    #[tokio::test]
    async fn a_hole_delays_everything_and_loses_nothing() {
        let url = echo().await;
        let proxy = TcpProxy::start(&url).await;
        let mut stream = call(&proxy, &url).await;
        proxy.begin(Outage::Hole);
        stream.write_all(b"a").await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(100), read_byte(&mut stream)).await;
        assert!(early.is_err(), "{early:?}");
        proxy.restore();
        assert_eq!(read_byte(&mut stream).await, Some(b'a'));
    }

    #[tokio::test]
    async fn lost_responses_end_with_a_closed_connection() {
        let url = echo().await;
        let proxy = TcpProxy::start(&url).await;
        let mut stream = call(&proxy, &url).await;
        proxy.begin(Outage::AnswersLost);
        stream.write_all(b"a").await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(100), read_byte(&mut stream)).await;
        assert!(early.is_err(), "{early:?}");
        proxy.restore();
        assert_eq!(read_byte(&mut stream).await, None);
    }
}

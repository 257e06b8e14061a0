//! A line between one process and PostgreSQL that can be cut, muted and slowed down. It does not read what it carries.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

const CHUNK: usize = 16 * 1024;

/// What is wrong with a line until it is mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Connections break, and new ones are refused.
    Cut,
    /// Connections stay, and nothing passes in either direction.
    Hole,
    /// What the process says arrives; what the database answers does not, and at the end the connection breaks.
    AnswersLost,
    /// Everything arrives, each piece so much later.
    Slow(Duration),
}

#[derive(Clone, Copy, Debug, Default)]
struct Line {
    outage: Option<Outage>,
    /// Grows when every connection is to break.
    cuts: u64,
    /// Grows when every connection is to fall silent.
    silences: u64,
    /// Grows when every connection is to fall silent at the next ping.
    silences_at_ping: u64,
}

/// A ping of the driver: a `Sync` message that belongs to no statement.
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
    /// A line to the server of this URL.
    pub async fn start(database_url: &str) -> TcpProxy {
        let upstream = authority(database_url).to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap().to_string();
        let (line, watched) = watch::channel(Line::default());
        let server = upstream.clone();
        let serving = tokio::spawn(async move {
            // Dropped with this task, and every connection with it.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(carry(stream, server.clone(), watched.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        TcpProxy { here, upstream, line, serving }
    }

    /// The same database, at the end of this line.
    pub fn url(&self, database_url: &str) -> String {
        assert_eq!(authority(database_url), self.upstream, "a line to another server");
        database_url.replacen(&self.upstream, &self.here, 1)
    }

    /// Takes the place of an outage that was there before.
    pub fn begin(&self, outage: Outage) {
        self.line.send_modify(|line| {
            line.outage = Some(outage);
            line.cuts += u64::from(outage == Outage::Cut);
        });
    }

    /// From now on nothing passes over the connections that there are, and they never break: as when the server's machine
    /// is gone, or something between has forgotten them. New ones are fine.
    pub fn forsake(&self) {
        self.line.send_modify(|line| line.silences += 1);
    }

    /// Like `forsake`, but each connection answers until the driver asks it whether it is well: when it is given back to its pool,
    /// or taken from it.
    pub fn forsake_at_ping(&self) {
        self.line.send_modify(|line| line.silences_at_ping += 1);
    }

    pub fn mend(&self) {
        self.line.send_modify(|line| {
            // A stream with a hole in it cannot go on.
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
    let forsaken = tokio::select! {
        () = &mut client => false,
        () = &mut server => false,
        _ = line.wait_for(|line| line.cuts != begun.cuts) => false,
        begun = silence => begun,
    };
    if forsaken {
        // Both ends stay open, and nobody reads them.
        std::future::pending().await
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// What the process says.
    Up,
    /// What the database answers.
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
            // The answer never comes, and nothing breaks.
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

    /// Says back what it hears.
    async fn echo() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://somebody@{}/name", listener.local_addr().unwrap());
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

    async fn call(wire: &TcpProxy, url: &str) -> TcpStream {
        TcpStream::connect(authority(&wire.url(url))).await.unwrap()
    }

    async fn heard(stream: &mut TcpStream) -> Option<u8> {
        let mut byte = [0];
        (stream.read(&mut byte).await.ok()? == 1).then_some(byte[0])
    }

    #[tokio::test]
    async fn what_is_said_arrives_and_a_cut_breaks_it_until_it_is_mended() {
        let url = echo().await;
        let wire = TcpProxy::start(&url).await;
        let mut stream = call(&wire, &url).await;
        stream.write_all(b"a").await.unwrap();
        assert_eq!(heard(&mut stream).await, Some(b'a'));
        wire.begin(Outage::Cut);
        assert_eq!(heard(&mut stream).await, None);
        assert_eq!(heard(&mut call(&wire, &url).await).await, None, "refused");
        wire.mend();
        let mut stream = call(&wire, &url).await;
        stream.write_all(b"b").await.unwrap();
        assert_eq!(heard(&mut stream).await, Some(b'b'));
    }

    #[tokio::test]
    async fn what_is_forsaken_stays_silent_and_does_not_break() {
        let url = echo().await;
        let wire = TcpProxy::start(&url).await;
        let mut old = call(&wire, &url).await;
        old.write_all(b"a").await.unwrap();
        assert_eq!(heard(&mut old).await, Some(b'a'));
        wire.forsake();
        let mut new = call(&wire, &url).await;
        old.write_all(b"b").await.unwrap();
        new.write_all(b"c").await.unwrap();
        assert_eq!(heard(&mut new).await, Some(b'c'));
        let late = tokio::time::timeout(Duration::from_millis(100), heard(&mut old)).await;
        assert!(late.is_err(), "{late:?}");
    }

    #[tokio::test]
    async fn what_is_forsaken_at_a_ping_answers_until_then() {
        let url = echo().await;
        let wire = TcpProxy::start(&url).await;
        let mut stream = call(&wire, &url).await;
        stream.write_all(b"a").await.unwrap();
        assert_eq!(heard(&mut stream).await, Some(b'a'));
        wire.forsake_at_ping();
        stream.write_all(b"b").await.unwrap();
        assert_eq!(heard(&mut stream).await, Some(b'b'));
        stream.write_all(PING).await.unwrap();
        let late = tokio::time::timeout(Duration::from_millis(100), heard(&mut stream)).await;
        assert!(late.is_err(), "{late:?}");
        let mut new = call(&wire, &url).await;
        new.write_all(PING).await.unwrap();
        assert_eq!(heard(&mut new).await, Some(b'S'), "new ones are fine");
    }

    #[tokio::test]
    async fn a_hole_keeps_everything_back_and_loses_nothing() {
        let url = echo().await;
        let wire = TcpProxy::start(&url).await;
        let mut stream = call(&wire, &url).await;
        wire.begin(Outage::Hole);
        stream.write_all(b"a").await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(100), heard(&mut stream)).await;
        assert!(early.is_err(), "{early:?}");
        wire.mend();
        assert_eq!(heard(&mut stream).await, Some(b'a'));
    }

    #[tokio::test]
    async fn lost_answers_end_in_a_broken_connection() {
        let url = echo().await;
        let wire = TcpProxy::start(&url).await;
        let mut stream = call(&wire, &url).await;
        wire.begin(Outage::AnswersLost);
        stream.write_all(b"a").await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(100), heard(&mut stream)).await;
        assert!(early.is_err(), "{early:?}");
        wire.mend();
        assert_eq!(heard(&mut stream).await, None);
    }
}

//! A minimal HTTP server that can send broken responses.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// A response.
#[derive(Debug)]
pub(super) enum Reply {
    Whole(u16, String),
    /// Full `content-length`, half of the body.
    Truncated(String),
    /// With invalid UTF-8.
    Corrupted(String),
    /// `begin`, followed by `0,0,0,…`, `bytes` in total.
    Flood {
        begin: String,
        bytes: usize,
        announced: bool,
    },
    Gzip(Vec<u8>),
    Drip,
    Redirect(String),
    Close,
    Never,
}

/// Interval between two bytes of `Drip`: shorter than any read timeout.
const DRIP: Duration = Duration::from_millis(20);

/// Sends a response after which the connection is closed.
async fn last(stream: &mut BufReader<TcpStream>, reply: Reply) -> std::io::Result<()> {
    match reply {
        Reply::Flood { begin, bytes, announced } => {
            let length = if announced { format!("content-length: {bytes}\r\n") } else { String::new() };
            stream
                .write_all(format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{length}\r\n{begin}").as_bytes())
                .await?;
            let part = b"0,".repeat(1 << 15);
            let mut left = bytes.saturating_sub(begin.len());
            while left > 0 {
                let now = left.min(part.len());
                stream.write_all(&part[..now]).await?;
                left -= now;
            }
            stream.flush().await
        }
        Reply::Gzip(body) => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip";
            stream.write_all(format!("{head}\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes()).await?;
            stream.write_all(&body).await?;
            stream.flush().await
        }
        Reply::Drip => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{").await?;
            loop {
                stream.write_all(b" ").await?;
                stream.flush().await?;
                tokio::time::sleep(DRIP).await;
            }
        }
        Reply::Redirect(to) => {
            let head = format!("HTTP/1.1 307 Elsewhere\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            stream.flush().await
        }
        _ => Ok(()),
    }
}

/// Serves one connection until either side ends it.
pub(super) async fn serve<F>(stream: TcpStream, handle: impl Fn(Value) -> F)
where
    F: Future<Output = Reply>,
{
    let mut stream = BufReader::new(stream);
    while let Some(body) = request(&mut stream).await {
        let (status, text, sent) = match handle(body).await {
            Reply::Whole(status, text) => (status, text.into_bytes(), 1),
            Reply::Truncated(text) => (200, text.into_bytes(), 2),
            Reply::Corrupted(text) => (200, corrupt(text.into_bytes()), 1),
            Reply::Close => return,
            Reply::Never => std::future::pending().await,
            other => {
                let _ = last(&mut stream, other).await;
                return;
            }
        };
        let kind = if text.starts_with(b"<") { "text/html" } else { "application/json" };
        let head =
            format!("HTTP/1.1 {status} OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", text.len());
        let part = &text[..text.len() / sent];
        let written = async {
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(part).await?;
            stream.flush().await
        };
        if written.await.is_err() || sent > 1 {
            return;
        }
    }
}

/// Flips the highest bit of every third byte, which makes the text invalid UTF-8.
fn corrupt(mut text: Vec<u8>) -> Vec<u8> {
    text.iter_mut().step_by(3).for_each(|byte| *byte ^= 0x80);
    text
}

/// The next request body. `None`: the connection was closed, or the request is malformed.
async fn request(stream: &mut BufReader<TcpStream>) -> Option<Value> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    serde_json::from_slice(&body).ok()
}

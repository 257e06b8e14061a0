//! Minimal PostgreSQL client: startup, simple query, terminate.
//!
//! Checks whether a server is ready and creates databases, without a client program or another SQL library. Works with
//! `trust` authentication only and reads no rows.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(30);
const PROTOCOL_3_0: i32 = 196_608;

/// Connects and waits for the server to accept commands.
pub(crate) async fn ping(port: u16, user: &str) -> Result<()> {
    let stream = tokio::time::timeout(TIMEOUT, connect(port, user)).await.context("timed out")??;
    terminate(stream).await
}

/// Runs one command.
pub(crate) async fn execute(port: u16, user: &str, sql: &str) -> Result<()> {
    let run = async {
        let mut stream = connect(port, user).await?;
        stream.write_all(&message(b'Q', &[sql])).await?;
        until_ready(&mut stream).await?;
        terminate(stream).await
    };
    tokio::time::timeout(TIMEOUT, run).await.context("timed out")?
}

async fn connect(port: u16, user: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let mut body = PROTOCOL_3_0.to_be_bytes().to_vec();
    for part in ["user", user, "database", "postgres", ""] {
        body.extend_from_slice(part.as_bytes());
        body.push(0);
    }
    stream.write_all(&with_length(&body)).await?;
    until_ready(&mut stream).await?;
    Ok(stream)
}

async fn terminate(mut stream: TcpStream) -> Result<()> {
    stream.write_all(&message(b'X', &[])).await?;
    Ok(())
}

/// Reads up to ReadyForQuery. Returns an ErrorResponse as an error at once.
async fn until_ready(stream: &mut TcpStream) -> Result<()> {
    loop {
        let kind = stream.read_u8().await?;
        let length = usize::try_from(stream.read_i32().await?).ok().and_then(|length| length.checked_sub(4));
        let mut body = vec![0; length.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?];
        stream.read_exact(&mut body).await?;
        match kind {
            b'Z' => return Ok(()),
            b'E' => bail!("PostgreSQL: {}", error_text(&body)),
            _ => {}
        }
    }
}

/// An ErrorResponse is a list of fields: one letter, then a string. `M` is the message.
fn error_text(body: &[u8]) -> String {
    let message = body.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(b"M"));
    String::from_utf8_lossy(message.unwrap_or(b"error without a message")).into_owned()
}

fn message(kind: u8, parts: &[&str]) -> Vec<u8> {
    let mut body = Vec::new();
    for part in parts {
        body.extend_from_slice(part.as_bytes());
        body.push(0);
    }
    let mut message = vec![kind];
    message.extend(with_length(&body));
    message
}

/// The length includes its own four bytes.
fn with_length(body: &[u8]) -> Vec<u8> {
    let length = i32::try_from(body.len() + 4).expect("commands are short");
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(body);
    framed
}

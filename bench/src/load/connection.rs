//! A minimal HTTP/1.1 keep-alive connection; bodies need a `content-length`.

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    line: String,
}

impl Connection {
    pub(crate) async fn open(port: u16) -> Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.context("cannot connect to the server")?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream: BufReader::new(stream), line: String::new() })
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<(u16, Vec<u8>)> {
        self.ask(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await
    }

    pub(crate) async fn post(&mut self, path: &str, json: &str) -> Result<(u16, Vec<u8>)> {
        let length = json.len();
        let head = "content-type: application/json\r\ncontent-length";
        self.ask(&format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{head}: {length}\r\n\r\n{json}")).await
    }

    /// Sends the request in one write, so that it is one TCP segment.
    async fn ask(&mut self, request: &str) -> Result<(u16, Vec<u8>)> {
        self.stream.write_all(request.as_bytes()).await?;
        let status = self.read_line().await?;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no status")?;
        let mut length = None;
        loop {
            let line = self.read_line().await?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = Some(value.trim().parse()?);
            }
        }
        let mut body = vec![0; length.context("a response without content-length")?];
        self.stream.read_exact(&mut body).await?;
        Ok((status, body))
    }

    async fn read_line(&mut self) -> Result<&str> {
        self.line.clear();
        if self.stream.read_line(&mut self.line).await? == 0 {
            bail!("the server has closed the connection");
        }
        Ok(self.line.trim_end())
    }
}

//! A minimal HTTP server implementation for fake services.

use std::sync::Arc;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Request {
    /// Method and path: `POST /sign`.
    pub(crate) line: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; null if it is not JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// A service that answers every request with a status and a JSON body. Returns its URL; it runs until the process ends.
pub(crate) async fn serve<S, F>(
    service: Arc<S>,
    respond: impl Fn(Arc<S>, Request) -> F + Copy + Send + 'static,
) -> String
where
    S: Send + Sync + 'static,
    F: Future<Output = (u16, Value)> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("a bound socket has an address"));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                while let Some(request) = request(&mut stream).await {
                    let (status, body) = respond(service.clone(), request).await;
                    answer(&mut stream, status, &body).await?;
                }
                Some(())
            });
        }
    });
    url
}

/// The next request. `None`: the connection was closed, or the request is malformed.
pub(crate) async fn request(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut first = String::new();
    if stream.read_line(&mut first).await.ok()? == 0 {
        return None;
    }
    let line = first.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    let mut request = Request { line, headers: Vec::new(), body: Vec::new() };
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        request.headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    request.body = vec![0; request.header("content-length").unwrap_or("0").parse().ok()?];
    stream.read_exact(&mut request.body).await.ok()?;
    Some(request)
}

pub(crate) async fn answer(stream: &mut BufReader<TcpStream>, status: u16, body: &Value) -> Option<()> {
    answer_text(stream, status, None, &body.to_string()).await
}

pub(crate) async fn answer_text(
    stream: &mut BufReader<TcpStream>,
    status: u16,
    header: Option<(&str, &str)>,
    text: &str,
) -> Option<()> {
    let header = header.map(|(name, value)| format!("{name}: {value}\r\n")).unwrap_or_default();
    let head = format!("HTTP/1.1 {status} OK\r\n{header}content-length: {}\r\n\r\n", text.len());
    stream.write_all((head + text).as_bytes()).await.ok()?;
    stream.flush().await.ok()
}

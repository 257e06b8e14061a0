//! A minimal HTTP server for tests, on a free port of 127.0.0.1.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What the server does with every request.
#[derive(Clone)]
pub(crate) enum Answer {
    /// Status and headers, a blank line, and the body.
    Text(String),
    /// Reads the request and answers nothing.
    Hang,
    /// Begins a response that does not end.
    HangInBody,
    /// Closes the connection without a response.
    Close,
}

impl Answer {
    /// A response whose connection stays open.
    pub(crate) fn status(status: u16, headers: &str, body: &str) -> Answer {
        Answer::Text(format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The request line and the headers.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl TestServer {
    pub(crate) async fn start(answer: Answer) -> TestServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = TestServer { address, connections: Arc::default(), requests: Arc::default() };
        let (connections, requests) = (server.connections.clone(), server.requests.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, answer.clone(), requests.clone()));
            }
        });
        server
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

async fn serve(stream: TcpStream, answer: Answer, requests: Arc<Mutex<Vec<Request>>>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let request = read(&mut stream).await?;
        requests.lock().unwrap().push(request);
        let text = match &answer {
            Answer::Text(text) => text,
            Answer::HangInBody => "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nbegin",
            Answer::Hang => "",
            Answer::Close => return None,
        };
        stream.write_all(text.as_bytes()).await.ok()?;
        if text.contains("connection: close") {
            return None;
        }
    }
}

/// The next request; `None` if the connection was closed.
async fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
    let mut body = vec![0; length.parse().ok()?];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request { head, body })
}

//! A fake remote signer over TCP, for tests of failures and wrong responses.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Method and path: `POST /sign`.
    pub(crate) line: String,
    /// In received order, with lower-case names.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) text: String,
    /// Null if the text is not JSON.
    pub(crate) body: Value,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str())
    }
}

/// How the signer reacts to a request.
pub(crate) enum Act {
    Answer(u16, String),
    /// A response with this `Date` header.
    #[cfg(feature = "aws-kms")]
    AnswerAt(String, u16, String),
    /// The connection closes in the middle of this body.
    Truncate(String),
    Reset,
    Hang,
}

pub(crate) struct FakeSigner {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Asked>>>,
}

impl FakeSigner {
    pub(crate) async fn start(act: impl Fn(&Asked) -> Act + Send + Sync + 'static) -> FakeSigner {
        FakeSigner::serve(None, act).await
    }

    pub(crate) async fn with_tls(
        tls: TlsAcceptor,
        act: impl Fn(&Asked) -> Act + Send + Sync + 'static,
    ) -> FakeSigner {
        FakeSigner::serve(Some(tls), act).await
    }

    async fn serve(
        tls: Option<TlsAcceptor>,
        act: impl Fn(&Asked) -> Act + Send + Sync + 'static,
    ) -> FakeSigner {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let seen = Arc::new(Mutex::new(Vec::new()));
        let signer = FakeSigner { url: format!("{scheme}://127.0.0.1:{port}"), seen: Arc::clone(&seen) };
        let act = Arc::new(act);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (act, seen, tls) = (Arc::clone(&act), Arc::clone(&seen), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        Some(tls) => converse(tls.accept(stream).await.ok()?, &*act, &seen).await,
                        None => converse(stream, &*act, &seen).await,
                    }
                });
            }
        });
        signer
    }

    pub(crate) fn seen(&self) -> Vec<Asked> {
        self.seen.lock().unwrap().clone()
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    act: &(impl Fn(&Asked) -> Act + Send + Sync),
    seen: &Mutex<Vec<Asked>>,
) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut line, mut headers) = (String::new(), Vec::new());
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        loop {
            let mut header = String::new();
            if stream.read_line(&mut header).await.ok()? == 0 {
                return None;
            }
            let Some((name, value)) = header.trim().split_once(": ") else { break };
            headers.push((name.to_lowercase(), value.to_owned()));
        }
        let line = line.trim().trim_end_matches(" HTTP/1.1").to_owned();
        let mut asked = Asked { line, headers, text: String::new(), body: Value::Null };
        let mut body = vec![0; asked.header("content-length").unwrap_or("0").parse().ok()?];
        stream.read_exact(&mut body).await.ok()?;
        asked.text = String::from_utf8_lossy(&body).into_owned();
        asked.body = serde_json::from_str(&asked.text).unwrap_or_default();
        seen.lock().unwrap().push(asked.clone());
        let (status, date, text, part) = match act(&asked) {
            Act::Answer(status, text) => (status, String::new(), text, 1),
            #[cfg(feature = "aws-kms")]
            Act::AnswerAt(at, status, text) => (status, format!("Date: {at}\r\n"), text, 1),
            Act::Truncate(text) => (200, String::new(), text, 2),
            Act::Reset => return None,
            Act::Hang => std::future::pending().await,
        };
        let head = format!("HTTP/1.1 {status} Said\r\n{date}Content-Length: {}\r\n\r\n", text.len());
        stream.write_all(head.as_bytes()).await.ok()?;
        stream.write_all(&text.as_bytes()[..text.len() / part]).await.ok()?;
        stream.flush().await.ok()?;
        if part > 1 {
            return None;
        }
    }
}

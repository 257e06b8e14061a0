//! A signing service as docs/signing-service.md describes it, which can be away and can lie.

use std::sync::{Arc, Mutex, PoisonError};

use ethers_core::types::transaction::eip2718::TypedTransaction;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::eventually::eventually;
use crate::submitter::Submitter;

/// How it behaves from now on.
#[derive(Clone, Debug)]
pub enum Manner {
    Honest,
    /// Answers 503 to everything.
    Away,
    /// Takes every request and answers none.
    Silent,
    /// Answers 422 with this text to every transaction.
    Refusing(&'static str),
    /// Puts this value into this field before it signs.
    Lying(&'static str, Value),
    /// Signs with this key whatever it is asked.
    WithKeyOf(Submitter),
}

#[derive(Clone, Debug)]
pub struct SigningService {
    url: String,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    submitter: Submitter,
    token: &'static str,
    manner: Mutex<Manner>,
    /// First lines of all requests so far.
    asked: Mutex<Vec<String>>,
}

impl SigningService {
    /// Holds the key of `submitter`, and answers only those who know `token`.
    pub async fn start(submitter: &Submitter, token: &'static str) -> SigningService {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("a bound socket has an address"));
        let manner = Mutex::new(Manner::Honest);
        let inner = Arc::new(Inner { submitter: submitter.clone(), token, manner, asked: Mutex::default() });
        let served = inner.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let inner = served.clone();
                tokio::spawn(async move { inner.serve(stream).await });
            }
        });
        SigningService { url, inner }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Until a request came that begins so: `POST /sign`.
    pub async fn wait_asked(&self, beginning: &str) {
        eventually(&format!("the signing service is asked {beginning}"), async || {
            let asked = self.inner.asked.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if asked.iter().any(|line| line.starts_with(beginning)) { Ok(()) } else { Err(asked) }
        })
        .await;
    }

    pub fn behave(&self, manner: Manner) {
        *self.inner.manner.lock().unwrap_or_else(PoisonError::into_inner) = manner;
    }
}

impl Inner {
    async fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let (mut first, mut length, mut known) = (String::new(), 0, false);
            loop {
                let mut line = String::new();
                if stream.read_line(&mut line).await.ok()? == 0 {
                    return None;
                }
                let line = line.trim_end();
                let (name, value) = line.split_once(": ").unwrap_or_default();
                match name.to_ascii_lowercase().as_str() {
                    "content-length" => length = value.parse().ok()?,
                    "authorization" => known = value == format!("Bearer {}", self.token),
                    _ => {}
                }
                if line.is_empty() {
                    break;
                }
                if first.is_empty() {
                    line.clone_into(&mut first);
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.ok()?;
            self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(first.clone());
            if matches!(self.manner(), Manner::Silent) {
                std::future::pending::<()>().await;
            }
            let (status, answer) = match known {
                true => self.answer(&first, serde_json::from_slice(&body).unwrap_or_default()),
                false => (401, json!({ "error": "who are you" })),
            };
            let text = answer.to_string();
            let head = format!("HTTP/1.1 {status} Said\r\ncontent-length: {}\r\n\r\n", text.len());
            stream.write_all((head + &text).as_bytes()).await.ok()?;
            stream.flush().await.ok()?;
        }
    }

    fn manner(&self) -> Manner {
        self.manner.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn answer(&self, request: &str, mut asked: Value) -> (u16, Value) {
        let manner = self.manner();
        match (&manner, request) {
            (Manner::Away, _) => return (503, json!({})),
            (_, "GET /addresses HTTP/1.1") => {
                return (200, json!({ "addresses": [self.submitter.address()] }));
            }
            (_, "POST /sign HTTP/1.1") => {}
            _ => return (404, json!({})),
        }
        let mut key = &self.submitter;
        match &manner {
            Manner::Refusing(reason) => return (422, json!({ "error": reason })),
            Manner::Lying(field, value) => asked[*field] = value.clone(),
            Manner::WithKeyOf(other) => key = other,
            Manner::Honest | Manner::Away | Manner::Silent => {}
        }
        match serde_json::from_value::<TypedTransaction>(asked) {
            Ok(typed) => (200, json!({ "raw": key.sign(&typed) })),
            Err(error) => (400, json!({ "error": error.to_string() })),
        }
    }
}

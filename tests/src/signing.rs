//! A signing service as docs/signing-service.md describes it, which can be away and can lie.

use std::sync::{Arc, Mutex, PoisonError};

use ethers_core::types::transaction::eip2718::TypedTransaction;
use serde_json::{Value, json};
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};

use crate::eventually::eventually;
use crate::plain_http;
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
        while let Some(request) = plain_http::request(&mut stream).await {
            self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(request.line.clone());
            if matches!(self.manner(), Manner::Silent) {
                std::future::pending::<()>().await;
            }
            let known = request.header("authorization") == Some(&format!("Bearer {}", self.token));
            let (status, body) = match known {
                true => self.answer(&request.line, request.json()),
                false => (401, json!({ "error": "who are you" })),
            };
            plain_http::answer(&mut stream, status, &body).await?;
        }
        None
    }

    fn manner(&self) -> Manner {
        self.manner.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn answer(&self, request: &str, mut asked: Value) -> (u16, Value) {
        let manner = self.manner();
        match (&manner, request) {
            (Manner::Away, _) => return (503, json!({})),
            (_, "GET /addresses") => {
                return (200, json!({ "addresses": [self.submitter.address()] }));
            }
            (_, "POST /sign") => {}
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

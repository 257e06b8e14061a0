//! A fake of the signing service in docs/operate/signing-service.md, with configurable failures.

use std::sync::Arc;

use ethers_core::types::transaction::eip2718::TypedTransaction;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::eventually::eventually;
use crate::plain_http::{self, Request};
use crate::submitter::Submitter;

/// How it responds from now on.
#[derive(Clone, Debug)]
pub enum Behaviour {
    Honest,
    /// Responds with 503 to everything.
    Away,
    /// Accepts every request and never responds.
    Silent,
    /// Responds with 422 and this text to every transaction.
    Refusing(&'static str),
    /// Changes this field of the transaction before signing.
    Lying(&'static str, Value),
    /// Signs with this other key.
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
    behaviour: Mutex<Behaviour>,
    /// Method and path of all requests so far.
    asked: Mutex<Vec<String>>,
}

impl SigningService {
    /// Signs with the key of `submitter`; requires the bearer token `token`.
    pub async fn start(submitter: &Submitter, token: &'static str) -> SigningService {
        let behaviour = Mutex::new(Behaviour::Honest);
        let inner =
            Arc::new(Inner { submitter: submitter.clone(), token, behaviour, asked: Mutex::default() });
        let url = plain_http::serve(inner.clone(), Inner::respond).await;
        SigningService { url, inner }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Waits for a request that starts with `beginning`, such as `POST /sign`.
    pub async fn wait_for_request(&self, beginning: &str) {
        eventually(&format!("the signing service receives {beginning}"), async || {
            let asked = self.inner.asked.lock().clone();
            if asked.iter().any(|line| line.starts_with(beginning)) { Ok(()) } else { Err(asked) }
        })
        .await;
    }

    pub fn set_behaviour(&self, behaviour: Behaviour) {
        *self.inner.behaviour.lock() = behaviour;
    }
}

impl Inner {
    async fn respond(self: Arc<Inner>, request: Request) -> (u16, Value) {
        self.asked.lock().push(request.line.clone());
        if matches!(self.behaviour(), Behaviour::Silent) {
            std::future::pending::<()>().await;
        }
        match request.header("authorization") == Some(&format!("Bearer {}", self.token)) {
            true => self.answer(&request.line, request.json()),
            false => (401, json!({ "error": "invalid token" })),
        }
    }

    fn behaviour(&self) -> Behaviour {
        self.behaviour.lock().clone()
    }

    fn answer(&self, request: &str, mut asked: Value) -> (u16, Value) {
        let behaviour = self.behaviour();
        match (&behaviour, request) {
            (Behaviour::Away, _) => return (503, json!({})),
            (_, "GET /addresses") => {
                return (200, json!({ "addresses": [self.submitter.address()] }));
            }
            (_, "POST /sign") => {}
            _ => return (404, json!({})),
        }
        let mut key = &self.submitter;
        match &behaviour {
            Behaviour::Refusing(reason) => return (422, json!({ "error": reason })),
            Behaviour::Lying(field, value) => asked[*field] = value.clone(),
            Behaviour::WithKeyOf(other) => key = other,
            Behaviour::Honest | Behaviour::Away | Behaviour::Silent => {}
        }
        match serde_json::from_value::<TypedTransaction>(asked) {
            Ok(typed) => (200, json!({ "raw": key.sign(&typed) })),
            Err(error) => (400, json!({ "error": error.to_string() })),
        }
    }
}

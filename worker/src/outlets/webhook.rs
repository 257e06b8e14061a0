//! Webhooks as outlets: each message is a signed POST request.

use std::time::SystemTime;

use async_trait::async_trait;
use gapless_store::outlets::WebhookSettings;
use gapless_store::webhooks::SealedSecret;
use gapless_webhook::{
    InvalidTarget, KeyRing, OpenError, Outcome, Sealed, Sender, SigningSecret, TargetUrl, sign,
};
use tokio::time::Instant;

use super::outlet::{Message, Outlet, Sent};

const CONTENT_TYPE: &str = "application/cloudevents+json";

#[derive(Debug)]
pub(super) struct Webhook {
    target: TargetUrl,
    secret: SigningSecret,
    /// Signs too until then.
    previous: Option<(SigningSecret, Instant)>,
    sender: Sender,
}

/// Why deliveries cannot be made at all.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error(transparent)]
    Secret(#[from] OpenError),
    #[error("the stored URL is not usable: {0}")]
    Target(#[from] InvalidTarget),
}

impl Webhook {
    pub(super) fn new(
        settings: &WebhookSettings,
        ring: &KeyRing,
        sender: Sender,
    ) -> Result<Webhook, Unusable> {
        let open = |secret: &SealedSecret| {
            let sealed = Sealed { key_id: secret.key_id.clone(), sealed: secret.sealed.clone() };
            ring.open(settings.id.0, &sealed)
        };
        let previous = settings.previous_secret.as_ref();
        let previous =
            previous.map(|(secret, left)| Ok::<_, OpenError>((open(secret)?, Instant::now() + *left)));
        Ok(Webhook {
            target: TargetUrl::parse(&settings.url)?,
            secret: open(&settings.secret)?,
            previous: previous.transpose()?,
            sender,
        })
    }
}

#[async_trait]
impl Outlet for Webhook {
    async fn send(&self, message: Message) -> Sent {
        let now = Instant::now();
        let previous = self.previous.as_ref().filter(|(_, until)| now < *until).map(|(secret, _)| secret);
        let body = message.body.into_bytes();
        let mut headers = sign(message.id, SystemTime::now(), &body, &self.secret, previous);
        headers.insert("content-type", gapless_webhook::HeaderValue::from_static(CONTENT_TYPE));
        sent(self.sender.send(&self.target, headers, body).await)
    }
}

fn sent(outcome: Outcome) -> Sent {
    let (error, retry_after) = (outcome.to_string(), outcome.retry_after());
    match outcome {
        Outcome::Delivered { status } => Sent::Delivered { status_code: Some(status) },
        Outcome::Gone => Sent::Gone { status_code: Some(410), error },
        Outcome::Failed { status, .. } => Sent::Failed { status_code: Some(status), error, retry_after },
        Outcome::TimedOut { .. } | Outcome::ConnectionFailed { .. } | Outcome::AddressRefused { .. } => {
            Sent::Failed { status_code: None, error, retry_after }
        }
    }
}

//! The headers of one delivery, by the Standard Webhooks specification.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use sha2::Sha256;
use uuid::Uuid;

use crate::secret::SigningSecret;

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Signs one delivery. `message` is the id of the event: the same in every retry, so that receivers can ignore
/// repetitions. `sent_at` is the time of this try: receivers refuse old ones.
///
/// While a secret is rotated, pass the old one as `previous`: the header then has both signatures, and receivers accept
/// a delivery if one of them is right.
pub fn sign(
    message: Uuid,
    sent_at: SystemTime,
    body: &[u8],
    secret: &SigningSecret,
    previous: Option<&SigningSecret>,
) -> HeaderMap {
    let id = message.to_string();
    // A clock before 1970 gives 0, which receivers refuse as too old.
    let timestamp = sent_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().to_string();
    let signatures: Vec<String> =
        [Some(secret), previous].into_iter().flatten().map(|key| one(key, &id, &timestamp, body)).collect();
    let value = |text: String| HeaderValue::try_from(text).expect("digits, base64 and spaces are ASCII");
    HeaderMap::from_iter([
        (ID, value(id)),
        (TIMESTAMP, value(timestamp)),
        (SIGNATURE, value(signatures.join(" "))),
    ])
}

/// `v1,` and the base64 of the HMAC-SHA256 of `id.timestamp.body`.
fn one(secret: &SigningSecret, id: &str, timestamp: &str, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.bytes()).expect("HMAC takes keys of every length");
    mac.update(id.as_bytes());
    mac.update(b".");
    mac.update(timestamp.as_bytes());
    mac.update(b".");
    mac.update(body);
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use standardwebhooks::{Webhook, WebhookError};

    use super::*;

    const BODY: &[u8] = r#"{"type":"com.gapless.tx.confirmed","data":"§"}"#.as_bytes();

    fn receiver(secret: &SigningSecret) -> Webhook {
        Webhook::new(&secret.expose()).unwrap()
    }

    fn signatures(headers: &HeaderMap) -> Vec<String> {
        headers[SIGNATURE].to_str().unwrap().split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn another_implementation_accepts_the_signature() {
        let secret = SigningSecret::generate().unwrap();
        let message = Uuid::new_v4();
        let headers = sign(message, SystemTime::now(), BODY, &secret, None);
        receiver(&secret).verify(BODY, &headers).unwrap();
        assert_eq!(headers.len(), 3);
        assert_eq!(headers["webhook-id"], message.to_string());
        assert_eq!(signatures(&headers).len(), 1);
    }

    #[test]
    fn another_implementation_refuses_a_changed_body_id_or_secret() {
        let secret = SigningSecret::generate().unwrap();
        let headers = sign(Uuid::new_v4(), SystemTime::now(), BODY, &secret, None);
        let refused =
            |outcome| assert!(matches!(outcome, Err(WebhookError::InvalidSignature)), "{outcome:?}");
        refused(receiver(&secret).verify(b"{}", &headers));
        refused(receiver(&SigningSecret::generate().unwrap()).verify(BODY, &headers));
        let mut replaced = headers.clone();
        replaced.insert(ID, HeaderValue::from_static("another"));
        refused(receiver(&secret).verify(BODY, &replaced));
    }

    #[test]
    fn another_implementation_refuses_an_old_timestamp_and_its_replacement() {
        let secret = SigningSecret::generate().unwrap();
        let old = SystemTime::now() - Duration::from_secs(600);
        let mut headers = sign(Uuid::new_v4(), old, BODY, &secret, None);
        let outcome = receiver(&secret).verify(BODY, &headers);
        assert!(matches!(outcome, Err(WebhookError::TimestampTooOldError)), "{outcome:?}");
        let now = sign(Uuid::new_v4(), SystemTime::now(), BODY, &secret, None);
        headers.insert(TIMESTAMP, now[TIMESTAMP].clone());
        let outcome = receiver(&secret).verify(BODY, &headers);
        assert!(matches!(outcome, Err(WebhookError::InvalidSignature)), "{outcome:?}");
    }

    #[test]
    fn during_a_rotation_both_secrets_verify_and_the_newest_comes_first() {
        let [new, old] = [0, 1].map(|_| SigningSecret::generate().unwrap());
        let (message, now) = (Uuid::new_v4(), SystemTime::now());
        let headers = sign(message, now, BODY, &new, Some(&old));
        receiver(&new).verify(BODY, &headers).unwrap();
        receiver(&old).verify(BODY, &headers).unwrap();
        let other = receiver(&SigningSecret::generate().unwrap()).verify(BODY, &headers);
        assert!(matches!(other, Err(WebhookError::InvalidSignature)), "{other:?}");
        let seconds = now.duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        let by = |secret| receiver(secret).sign(&message.to_string(), seconds, BODY).unwrap();
        assert_eq!(signatures(&headers), [by(&new), by(&old)]);
    }

    /// The example that the libraries of the specification share.
    #[test]
    fn the_signature_of_the_published_example_is_the_published_one() {
        let secret = SigningSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature =
            one(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}

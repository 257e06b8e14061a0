//! Signature Version 4 of AWS: who asks is proved by a keyed hash over the request.
//!
//! Only what a POST to a JSON service needs: a path that is not encoded, and no query.

use chrono::{DateTime, Utc};
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use crate::config::Secret;

#[derive(Clone, Debug)]
pub(super) struct AwsKeys {
    pub(super) access_key_id: String,
    pub(super) secret: Secret,
    /// With temporary credentials.
    pub(super) session_token: Option<Secret>,
}

/// What is signed.
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    /// Lower-case names in ascending order; `host` and `x-amz-date` among them.
    pub(super) headers: &'a [(&'a str, &'a str)],
    pub(super) body: &'a [u8],
}

/// As in the header `x-amz-date`.
pub(super) fn timestamp(at: DateTime<Utc>) -> String {
    at.format("%Y%m%dT%H%M%SZ").to_string()
}

/// The header `authorization`.
pub(super) fn authorization(
    keys: &AwsKeys,
    region: &str,
    service: &str,
    at: DateTime<Utc>,
    request: &Request<'_>,
) -> String {
    let names: Vec<&str> = request.headers.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let headers: String =
        request.headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    let body = hex::encode(Sha256::digest(request.body));
    // The empty line is that of the query.
    let canonical = format!("{}\n{}\n\n{headers}\n{names}\n{body}", request.method, request.path);
    let day = at.format("%Y%m%d").to_string();
    let scope = format!("{day}/{region}/{service}/aws4_request");
    let to_sign = format!(
        "AWS4-HMAC-SHA256\n{}\n{scope}\n{}",
        timestamp(at),
        hex::encode(Sha256::digest(canonical.as_bytes()))
    );
    let mut key = keyed_hash(format!("AWS4{}", keys.secret.expose()).as_bytes(), day.as_bytes());
    for part in [region, service, "aws4_request"] {
        key = keyed_hash(&key, part.as_bytes());
    }
    let signature = hex::encode(keyed_hash(&key, to_sign.as_bytes()));
    let id = &keys.access_key_id;
    format!("AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}")
}

fn keyed_hash(key: &[u8], data: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("keys of any length are taken");
    mac.update(data);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the test suite that AWS publishes for Signature Version 4; the secret is the one of its documentation.
    #[test]
    fn requests_of_awss_own_test_suite_are_signed_as_it_says() {
        let keys = AwsKeys {
            access_key_id: "AKIDEXAMPLE".into(),
            secret: Secret::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
            session_token: None,
        };
        let at = "2015-08-30T12:36:00Z".parse().unwrap();
        assert_eq!(timestamp(at), "20150830T123600Z");
        let (host, date) = (("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z"));
        let form = ("content-type", "application/x-www-form-urlencoded");
        // get-vanilla, post-vanilla, post-x-www-form-urlencoded
        for (method, headers, body, signature) in [
            ("GET", vec![host, date], "", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
            (
                "POST",
                vec![host, date],
                "",
                "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
            ),
            (
                "POST",
                vec![form, host, date],
                "Param1=value1",
                "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
            ),
        ] {
            let request = Request { method, path: "/", headers: &headers, body: body.as_bytes() };
            let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
            let expected = format!(
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
                 SignedHeaders={}, Signature={signature}",
                names.join(";")
            );
            assert_eq!(authorization(&keys, "us-east-1", "service", at, &request), expected);
        }
    }
}

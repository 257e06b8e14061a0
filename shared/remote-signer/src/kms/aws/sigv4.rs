//! AWS Signature Version 4: authenticates a request with an HMAC.
//!
//! Supports only what a POST to a JSON service needs: a path without encoding, and no query.

use chrono::{DateTime, Utc};
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use gapless_config::Secret;

#[derive(Clone, Debug)]
pub(super) struct AwsKeys {
    pub(super) access_key_id: String,
    pub(super) secret: Secret,
    /// Only for temporary credentials.
    pub(super) session_token: Option<Secret>,
}

/// The request to sign.
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    /// Lower-case names in ascending order; `host` and `x-amz-date` among them.
    pub(super) headers: &'a [(&'a str, &'a str)],
    pub(super) body: &'a [u8],
}

/// The value of the `x-amz-date` header.
pub(super) fn timestamp(at: DateTime<Utc>) -> String {
    at.format("%Y%m%dT%H%M%SZ").to_string()
}

/// The value of the `authorization` header.
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
    // The empty line is the query string.
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
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC accepts keys of any length");
    mac.update(data);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the test suite that AWS publishes for Signature Version 4; the secret is the one in its documentation.
    #[test]
    fn signatures_match_the_test_suite_of_aws() {
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

    #[test]
    fn secrets_are_not_printed() {
        let keys = AwsKeys {
            access_key_id: "AKIDEXAMPLE".into(),
            secret: Secret::new("hunter2"),
            session_token: Some(Secret::new("hunter3")),
        };
        assert!(!format!("{keys:?}").contains("hunter"));
    }
}

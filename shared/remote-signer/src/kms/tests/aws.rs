use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use aws_credential_types::Credentials;
use aws_credential_types::provider::future::ProvideCredentials as Provided;
use aws_credential_types::provider::{ProvideCredentials, error::CredentialsError};
use gapless_config::{self as config, AwsCredentials};

use super::*;

fn config(fake: &FakeSigner, credentials: AwsCredentials, timeout: Duration) -> config::AwsKms {
    config::AwsKms {
        region: "eu-central-1".into(),
        keys: Vec::new(),
        endpoint: Some(fake.url.clone()),
        credentials,
        credentials_file: None,
        profile: "gapless".into(),
        timeout,
        max_in_flight: 4,
    }
}

pub(super) fn kms(fake: &FakeSigner, timeout: Duration) -> AwsKms {
    let session = Some("the-session".to_owned());
    let keys = Credentials::new("AKIDEXAMPLE", "the-secret-of-the-tests", session, None, "tests");
    AwsKms::with_test_provider(&config(fake, AwsCredentials::Environment, timeout), keys)
}

/// The access key id that a request was signed with.
fn identity(asked: &Asked) -> String {
    let (_, rest) = asked.header("authorization").unwrap().split_once("Credential=").unwrap();
    rest.split_once('/').unwrap().0.to_owned()
}

#[tokio::test]
async fn requests_match_the_documented_api() {
    let tx = each_type()[2].clone();
    let digest = STANDARD.encode(tx.typed().sighash());
    let fake = service(honest).await;
    signer(key_of("aws_kms", &fake)).sign(&tx).await.unwrap();
    let asked = fake.seen().remove(0);
    assert_eq!(asked.line, "POST /");
    assert_eq!(asked.header("x-amz-target"), Some("TrentService.Sign"));
    assert_eq!(asked.header("content-type"), Some("application/x-amz-json-1.1"));
    assert_eq!(asked.header("x-amz-security-token"), Some("the-session"));
    let authorization = asked.header("authorization").unwrap();
    let day = &asked.header("x-amz-date").unwrap()[..8];
    let scope = format!("Credential=AKIDEXAMPLE/{day}/eu-central-1/kms/aws4_request, ");
    assert!(authorization.contains(&scope), "{authorization}");
    let body = json!({
        "KeyId": "alias/a", "Message": digest, "MessageType": "DIGEST", "SigningAlgorithm": "ECDSA_SHA_256",
    });
    assert_eq!(asked.body, body);
}

#[tokio::test]
async fn keys_of_other_curves_are_rejected() {
    let p256 = "3059301306072a8648ce3d020106082a8648ce3d030107034200";
    let other = [hex::decode(p256).unwrap(), vec![4; 65]].concat();
    let answer = json!({ "KeySpec": "ECC_NIST_P256", "PublicKey": STANDARD.encode(other) }).to_string();
    let fake = service(move |_| Act::Answer(200, answer.clone())).await;
    let reason = key_of("aws_kms", &fake).addresses().await.unwrap_err();
    assert!(reason.contains("secp256k1"), "{reason}");
}

#[tokio::test]
async fn a_wrong_clock_is_corrected_by_the_date_of_the_service() {
    let theirs = chrono::Utc::now() - chrono::TimeDelta::hours(3);
    let date = theirs.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let fake = service(move |asked| {
        let dated = asked.header("x-amz-date").unwrap();
        let dated = chrono::NaiveDateTime::parse_from_str(dated, "%Y%m%dT%H%M%SZ").unwrap();
        match (dated.and_utc() - theirs).num_minutes().abs() < 5 {
            true => honest(asked),
            false => {
                let said = json!({ "__type": "InvalidSignatureException", "message": "not yet current" });
                Act::AnswerAt(date.clone(), 400, said.to_string())
            }
        }
    })
    .await;
    let signer = signer(key_of("aws_kms", &fake));
    let tx = each_type()[2].clone();
    assert!(matches!(signer.sign(&tx).await, Err(SignerError::Unavailable { .. })));
    signer.sign(&tx).await.unwrap();
}

#[tokio::test]
async fn failures_have_our_message_and_keep_the_services_message_for_the_log() {
    let denied = json!({
        "__type": "com.amazonaws.kms#AccessDeniedException",
        "Message": "User: arn:aws:iam::1:user/x is not authorized",
    });
    for (status, body, reason, said) in [
        (400, denied.to_string(), "AccessDeniedException: this worker may not use the key", Some("user/x")),
        (400, json!({ "__type": "New\nException" }).to_string(), "NewException", None),
        (
            400,
            json!({ "__type": "DisabledException" }).to_string(),
            "DisabledException: the key is disabled",
            None,
        ),
        (502, "<html>secret</html>".into(), "HTTP 502", None),
        (200, "<html>secret</html>".into(), "invalid response", None),
    ] {
        let fake = service(move |_| Act::Answer(status, body.clone())).await;
        let failure = kms(&fake, Duration::from_secs(5)).public_key("k").await.unwrap_err();
        assert_eq!(failure.reason, reason);
        match said {
            Some(said) => assert!(failure.said.unwrap().contains(said)),
            None => assert_eq!(failure.said.unwrap_or_default(), ""),
        }
    }
}

/// Numbers its credentials, and says nothing about their end.
#[derive(Debug, Default)]
struct Counting(AtomicU32);

impl ProvideCredentials for Counting {
    fn provide_credentials<'a>(&'a self) -> Provided<'a>
    where
        Self: 'a,
    {
        let id = format!("id{}", self.0.fetch_add(1, SeqCst));
        Provided::ready(Ok(Credentials::new(id, "secret", None, None, "tests")))
    }
}

#[tokio::test]
async fn temporary_credentials_are_cached_until_rejected() {
    let fake = service(|asked| match identity(asked).as_str() {
        "id0" => Act::Answer(400, json!({ "__type": "ExpiredTokenException" }).to_string()),
        _ => honest(asked),
    })
    .await;
    let config = config(&fake, AwsCredentials::Container, Duration::from_secs(5));
    let kms = AwsKms::with_test_provider(&config, Counting::default());
    let failure = kms.public_key("k").await.unwrap_err();
    assert_eq!(failure.reason, "ExpiredTokenException: the credentials are not accepted");
    for _ in 0..2 {
        kms.public_key("k").await.unwrap();
    }
    let seen: Vec<String> = fake.seen().iter().map(identity).collect();
    assert_eq!(seen, ["id0", "id1", "id1"]);
}

#[tokio::test]
async fn a_file_is_read_again_for_every_request() {
    let fake = service(honest).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("credentials");
    let config = config::AwsKms {
        credentials_file: Some(path.clone()),
        ..config(&fake, AwsCredentials::File, Duration::from_secs(5))
    };
    let kms = AwsKms::new(&config).unwrap();
    let missing = kms.public_key("k").await.unwrap_err();
    assert_eq!(missing.reason, "no credentials");
    assert!(missing.said.unwrap().contains("credentials"));
    for number in 1..=2 {
        let text = format!(
            "[default]\naws_access_key_id = other\naws_secret_access_key = other\n\n# ours\n[gapless]\n\
             aws_access_key_id=id{number}\naws_secret_access_key = secret{number}\n\
             aws_session_token = token{number}\nregion = x\n[last]\naws_access_key_id = last\n"
        );
        std::fs::write(&path, text).unwrap();
        kms.public_key("k").await.unwrap();
        let asked = fake.seen().pop().unwrap();
        assert_eq!(identity(&asked), format!("id{number}"));
        assert_eq!(asked.header("x-amz-security-token"), Some(format!("token{number}").as_str()));
    }
    std::fs::write(&path, "[default]\naws_access_key_id = other\naws_secret_access_key = other\n").unwrap();
    assert_eq!(
        kms.public_key("k").await.unwrap_err().reason,
        "no credentials",
        "not those of another profile"
    );
    assert_eq!(fake.seen().len(), 2);
}

/// Has no credentials, and an error that names an account.
#[derive(Debug)]
struct Denied;

impl ProvideCredentials for Denied {
    fn provide_credentials<'a>(&'a self) -> Provided<'a>
    where
        Self: 'a,
    {
        Provided::ready(Err(CredentialsError::provider_error("account 123 is closed")))
    }
}

#[tokio::test]
async fn clients_do_not_read_why_there_are_no_credentials() {
    let fake = service(honest).await;
    for source in [AwsCredentials::File, AwsCredentials::Instance] {
        let config = config(&fake, source, Duration::from_secs(5));
        let failure = AwsKms::with_test_provider(&config, Denied).public_key("k").await.unwrap_err();
        assert_eq!(failure.reason, "no credentials");
        assert!(failure.said.unwrap().contains("account 123"));
    }
    assert!(fake.seen().is_empty());
}

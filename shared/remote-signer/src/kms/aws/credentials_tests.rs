use serde_json::json;

use super::*;
use crate::testing::{Act, FakeSigner};

fn config(credentials: AwsCredentials, file: Option<PathBuf>) -> config::AwsKms {
    config::AwsKms {
        region: "eu-central-1".into(),
        keys: Vec::new(),
        endpoint: None,
        credentials,
        credentials_file: file,
        profile: "gapless".into(),
        timeout: Duration::from_secs(10),
        max_in_flight: 4,
    }
}

fn with(credentials: AwsCredentials, variables: &[(&str, &str)]) -> Result<Credentials, String> {
    let environment =
        |name: &str| variables.iter().find(|(have, _)| *have == name).map(|(_, value)| (*value).to_owned());
    Credentials::new(&config(credentials, None), &environment)
}

async fn got(credentials: &Credentials) -> (String, String, Option<String>) {
    let keys = credentials.get(&ServiceClock::default()).await.unwrap();
    let token = keys.session_token.map(|token| token.expose().to_owned());
    (keys.access_key_id, keys.secret.expose().to_owned(), token)
}

fn expected(number: u32) -> (String, String, Option<String>) {
    (format!("id{number}"), format!("secret{number}"), Some(format!("token{number}")))
}

fn in_an_hour() -> String {
    (Utc::now() + chrono::TimeDelta::hours(1)).to_rfc3339()
}

#[tokio::test]
async fn missing_environment_variables_are_named() {
    let all =
        [("AWS_ACCESS_KEY_ID", "id1"), ("AWS_SECRET_ACCESS_KEY", "secret1"), ("AWS_SESSION_TOKEN", "token1")];
    assert_eq!(got(&with(AwsCredentials::Environment, &all).unwrap()).await, expected(1));
    for (credentials, missing) in [
        (AwsCredentials::Environment, "AWS_ACCESS_KEY_ID"),
        (AwsCredentials::Container, "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        (AwsCredentials::WebIdentity, "AWS_ROLE_ARN"),
    ] {
        let error = with(credentials, &[]).unwrap_err();
        assert!(error.contains(missing), "{error}");
    }
}

#[tokio::test]
async fn a_file_is_read_again_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("credentials");
    let credentials = Credentials::new(&config(AwsCredentials::File, Some(path.clone())), &|_| None).unwrap();
    let missing = credentials.get(&ServiceClock::default()).await.unwrap_err();
    assert!(missing.contains("credentials"), "{missing}");
    for number in 1..=2 {
        let text = format!(
            "[default]\naws_access_key_id = other\naws_secret_access_key = other\n\n# ours\n[gapless]\n\
             aws_access_key_id=id{number}\naws_secret_access_key = secret{number}\n\
             aws_session_token = token{number}\nregion = x\n[last]\naws_access_key_id = last\n"
        );
        std::fs::write(&path, text).unwrap();
        assert_eq!(got(&credentials).await, expected(number));
    }
    std::fs::write(&path, "[default]\naws_access_key_id = other\naws_secret_access_key = other\n").unwrap();
    assert!(credentials.get(&ServiceClock::default()).await.unwrap_err().contains("[gapless]"));
}

#[tokio::test]
async fn container_credentials_are_cached_until_rejected() {
    let fake = FakeSigner::start(|asked| match (asked.line.as_str(), asked.header("authorization")) {
        ("GET /v1/credentials", Some("pass")) => {
            let body = json!({
                "AccessKeyId": "id1", "SecretAccessKey": "secret1", "Token": "token1", "Expiration": in_an_hour(),
            });
            Act::Answer(200, body.to_string())
        }
        _ => Act::Answer(403, String::new()),
    })
    .await;
    let url = format!("{}/v1/credentials", fake.url);
    let full = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.as_str());
    let pass = ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "pass");
    let credentials = with(AwsCredentials::Container, &[full, pass]).unwrap();
    assert_eq!(got(&credentials).await, expected(1));
    assert_eq!(got(&credentials).await, expected(1));
    assert_eq!(fake.seen().len(), 1);
    credentials.forget().await;
    assert_eq!(got(&credentials).await, expected(1));
    assert_eq!(fake.seen().len(), 2);

    let without_token = with(AwsCredentials::Container, &[full]).unwrap();
    let error = without_token.get(&ServiceClock::default()).await.unwrap_err();
    assert!(error.contains("403") && !error.contains("/v1/credentials"), "{error}");
    for (url, fine) in [
        ("http://credentials.example/", false),
        ("http://169.254.170.23/v1/credentials", true),
        ("https://credentials.example/", true),
    ] {
        let made = with(AwsCredentials::Container, &[("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)]);
        assert_eq!(made.is_ok(), fine, "{url}: {made:?}");
    }
}

#[tokio::test]
async fn an_instance_gets_the_credentials_of_its_role() {
    let fake = FakeSigner::start(|asked| {
        let roles = "GET /latest/meta-data/iam/security-credentials/";
        let session = asked.header("x-aws-ec2-metadata-token") == Some("session");
        match asked.line.as_str() {
            "PUT /latest/api/token" if asked.header("x-aws-ec2-metadata-token-ttl-seconds").is_some() => {
                Act::Answer(200, "session".into())
            }
            line if session && line == roles => Act::Answer(200, "worker".into()),
            line if session && line == format!("{roles}worker") => {
                let body = json!({
                    "Code": "Success", "AccessKeyId": "id2", "SecretAccessKey": "secret2", "Token": "token2",
                    "Expiration": in_an_hour(),
                });
                Act::Answer(200, body.to_string())
            }
            _ => Act::Answer(401, String::new()),
        }
    })
    .await;
    let at = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", fake.url.as_str());
    let credentials = with(AwsCredentials::Instance, &[at]).unwrap();
    assert_eq!(got(&credentials).await, expected(2));
    assert_eq!(fake.seen().len(), 3);
}

#[tokio::test]
async fn a_web_identity_is_exchanged_for_role_credentials() {
    let fake = FakeSigner::start(|asked| {
        let form = "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr\
                    &RoleSessionName=gapless&WebIdentityToken=e.y.J";
        assert_eq!((asked.line.as_str(), asked.text.as_str()), ("POST /", form));
        let xml = format!(
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
             <SessionToken>token3</SessionToken><SecretAccessKey>secret3</SecretAccessKey>\
             <Expiration>{}</Expiration><AccessKeyId>id3</AccessKeyId></Credentials></x>",
            in_an_hour()
        );
        Act::Answer(200, xml)
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "e.y.J\n").unwrap();
    let variables = [
        ("AWS_ENDPOINT_URL_STS", fake.url.as_str()),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_str().unwrap()),
    ];
    assert_eq!(got(&with(AwsCredentials::WebIdentity, &variables).unwrap()).await, expected(3));
    let plain = [("AWS_ENDPOINT_URL_STS", "http://sts.example"), variables[1], variables[2]];
    assert!(with(AwsCredentials::WebIdentity, &plain).unwrap_err().contains("unencrypted"));
    assert!(Lent::from_xml("<AccessKeyId>a").is_none());
}

#[test]
fn expired_credentials_are_rejected() {
    let lent = Lent {
        access_key_id: "id".into(),
        secret_access_key: Secret::new("secret"),
        token: None,
        expiration: Some(Utc::now() - chrono::TimeDelta::minutes(1)),
    };
    assert!(lent.lasting(&ServiceClock::default()).is_err());
}

//! AWS KMS, IAM and STS emulated by moto, behind a proxy that can be switched off.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ethers_core::types::Address;
use ethers_core::utils::keccak256;
use gapless_localnet::{Launch, Process};
use serde_json::{Value, json};

use super::connection_switch::ConnectionSwitch;
use crate::eventually::eventually;
use crate::python::Tool;
use crate::submitter::Submitter;

pub const REGION: &str = "eu-central-1";

/// moto needs Python 3.10.
static MOTO: Tool = Tool::new("kms", 10, "AWS KMS");

#[derive(Debug)]
pub struct AwsKms {
    switch: ConnectionSwitch,
    /// Direct URL, without the proxy.
    url: String,
    http: reqwest::Client,
    _process: Process,
}

/// AWS credentials of a worker.
#[derive(Clone, Debug)]
pub struct AwsUser {
    pub name: String,
    pub id: String,
    pub secret: String,
}

/// Credentials of a role.
#[derive(Clone, Debug)]
pub struct TemporaryCredentials {
    pub id: String,
    pub secret: String,
    pub token: String,
    pub expiration: String,
}

impl AwsKms {
    /// `None` if there is no Python; a warning was printed.
    pub async fn start(dir: &Path) -> Option<AwsKms> {
        let python = MOTO.interpreter().await?;
        let (script, log) = (MOTO.directory().join("server.py"), dir.join("kms.log"));
        let launch = Launch::new("kms", python, &log).args([script.to_str().expect("a UTF-8 path")]);
        let mut process = launch.spawn().expect("moto starts");
        let behind = eventually("moto listens", async || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            assert!(process.exited().expect("it can be asked").is_none(), "moto exited:\n{text}");
            // Only a complete line; otherwise the port could be cut off.
            let found = text.lines().find_map(|line| line.strip_prefix("listening on http://"));
            found.filter(|_| text.ends_with('\n')).map(str::to_owned).ok_or(text)
        })
        .await;
        let url = format!("http://{behind}");
        let switch = ConnectionSwitch::start(behind).await;
        Some(AwsKms {
            switch,
            url,
            http: gapless_http_client::client_builder().build().expect("a client"),
            _process: process,
        })
    }

    pub fn url(&self) -> &str {
        self.switch.url()
    }

    pub fn set_reachable(&self, reachable: bool) {
        self.switch.set_open(reachable);
    }

    /// Creates a secp256k1 key. Returns its id and its submitter.
    pub async fn create_key(&self) -> (String, Submitter) {
        let made = self.kms("CreateKey", json!({ "KeySpec": "ECC_SECG_P256K1", "KeyUsage": "SIGN_VERIFY" }));
        let id = made.await["KeyMetadata"]["KeyId"].as_str().expect("a key has an id").to_owned();
        let key = self.kms("GetPublicKey", json!({ "KeyId": id })).await;
        let der = STANDARD.decode(key["PublicKey"].as_str().expect("a public key")).expect("base64");
        // The DER ends with the curve point; its first byte is the format.
        let address = Address::from_slice(&keccak256(&der[der.len() - 64..])[12..]);
        (id, Submitter::without_key(address))
    }

    pub async fn create_alias(&self, alias: &str, key: &str) {
        self.kms("CreateAlias", json!({ "AliasName": alias, "TargetKeyId": key })).await;
    }

    pub async fn point_alias(&self, alias: &str, key: &str) {
        self.kms("UpdateAlias", json!({ "AliasName": alias, "TargetKeyId": key })).await;
    }

    pub async fn set_enabled(&self, key: &str, enabled: bool) {
        let action = if enabled { "EnableKey" } else { "DisableKey" };
        self.kms(action, json!({ "KeyId": key })).await;
    }

    /// Creates a user without permissions.
    pub async fn create_user(&self, name: &str) -> AwsUser {
        self.iam(&[("Action", "CreateUser"), ("UserName", name)]).await;
        let made = self.iam(&[("Action", "CreateAccessKey"), ("UserName", name)]).await;
        let (id, secret) = (between(&made, "AccessKeyId"), between(&made, "SecretAccessKey"));
        AwsUser { name: name.to_owned(), id, secret }
    }

    /// Grants the user the permissions of a worker.
    pub async fn allow(&self, user: &AwsUser) {
        let policy = policy();
        let form = [("UserName", user.name.as_str()), ("PolicyName", "worker"), ("PolicyDocument", &policy)];
        self.iam(&[&[("Action", "PutUserPolicy")], &form[..]].concat()).await;
    }

    /// Creates a role with the permissions of a worker. Returns its ARN.
    pub async fn create_role(&self, name: &str) -> String {
        let trusting = json!({ "Version": "2012-10-17", "Statement": [] }).to_string();
        let form = [("RoleName", name), ("AssumeRolePolicyDocument", &trusting)];
        let made = self.iam(&[&[("Action", "CreateRole")], &form[..]].concat()).await;
        let policy = policy();
        let form = [("RoleName", name), ("PolicyName", "worker"), ("PolicyDocument", &policy)];
        self.iam(&[&[("Action", "PutRolePolicy")], &form[..]].concat()).await;
        between(&made, "Arn")
    }

    /// New credentials of a role, for an hour.
    pub async fn assume_role(&self, arn: &str) -> TemporaryCredentials {
        let form = [("Action", "AssumeRole"), ("RoleArn", arn), ("RoleSessionName", "tests")];
        let made = self.query(REGION, "sts", &form).await;
        TemporaryCredentials {
            id: between(&made, "AccessKeyId"),
            secret: between(&made, "SecretAccessKey"),
            token: between(&made, "SessionToken"),
            expiration: between(&made, "Expiration"),
        }
    }

    async fn kms(&self, action: &str, body: Value) -> Value {
        let request = self
            .http
            .post(&self.url)
            .header("x-amz-target", format!("TrentService.{action}"))
            .header("content-type", "application/x-amz-json-1.1")
            .header("authorization", the_tests(REGION, "kms"));
        let text = self.answered(action, request.body(body.to_string())).await;
        serde_json::from_str(&text).unwrap_or_default()
    }

    async fn iam(&self, form: &[(&str, &str)]) -> String {
        self.query("us-east-1", "iam", form).await
    }

    async fn query(&self, region: &str, service: &str, form: &[(&str, &str)]) -> String {
        let mut url = reqwest::Url::parse(&self.url).expect("a URL");
        url.query_pairs_mut().extend_pairs(form);
        let body = url.query().unwrap_or_default().to_owned();
        let request = self
            .http
            .post(&self.url)
            .header("content-type", "application/x-www-form-urlencoded")
            .header("authorization", the_tests(region, service));
        self.answered(form[0].1, request.body(body)).await
    }

    async fn answered(&self, what: &str, request: reqwest::RequestBuilder) -> String {
        let response = request.send().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let (status, text) = (response.status(), response.text().await.unwrap_or_default());
        assert!(status.is_success(), "{what}: {status} {text}");
        text
    }
}

/// Credentials that `tools/kms/server.py` allows everything.
fn the_tests(region: &str, service: &str) -> String {
    format!(
        "AWS4-HMAC-SHA256 Credential=the-tests/20260101/{region}/{service}/aws4_request, SignedHeaders=host, Signature=0"
    )
}

fn policy() -> String {
    let allowed = ["kms:Sign", "kms:GetPublicKey"];
    let statement = json!([{ "Effect": "Allow", "Action": allowed, "Resource": "*" }]);
    json!({ "Version": "2012-10-17", "Statement": statement }).to_string()
}

fn between(xml: &str, name: &str) -> String {
    let found = xml.split_once(&format!("<{name}>")).and_then(|(_, rest)| rest.split_once('<'));
    found.unwrap_or_else(|| panic!("no {name} in {xml}")).0.to_owned()
}

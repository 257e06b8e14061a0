//! Credentials of a container (ECS, EKS) and of an instance (EC2, version 2 of its metadata service), as AWS documents
//! them.

use serde_json::json;
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::aws::TemporaryCredentials;
use crate::plain_http::{self, Request};

const CONTAINER_TOKEN: &str = "a-token-of-a-container";
const SESSION: &str = "a-session-of-the-metadata-service";
const ROLES: &str = "GET /latest/meta-data/iam/security-credentials/";

#[derive(Debug)]
pub struct CredentialServer {
    url: String,
    serving: JoinHandle<()>,
}

impl Drop for CredentialServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl CredentialServer {
    pub async fn start(credentials: TemporaryCredentials) -> CredentialServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("a bound socket has an address"));
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let credentials = credentials.clone();
                tokio::spawn(async move { serve(stream, &credentials).await });
            }
        });
        CredentialServer { url, serving }
    }

    /// The environment of a worker in a container.
    pub fn container(&self) -> [(&'static str, String); 2] {
        [
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{}/v1/credentials", self.url)),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN", CONTAINER_TOKEN.to_owned()),
        ]
    }

    /// The environment of a worker on an instance.
    pub fn instance(&self) -> [(&'static str, String); 1] {
        [("AWS_EC2_METADATA_SERVICE_ENDPOINT", self.url.clone())]
    }

    /// What a worker must not log.
    pub fn secrets(&self) -> [&'static str; 2] {
        [CONTAINER_TOKEN, SESSION]
    }
}

async fn serve(stream: TcpStream, credentials: &TemporaryCredentials) -> Option<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = plain_http::request(&mut stream).await {
        let (status, text) = answer(&request, credentials);
        // The SDK needs the lifetime of a session.
        let lifetime = Some(("x-aws-ec2-metadata-token-ttl-seconds", "21600"));
        plain_http::answer_text(&mut stream, status, lifetime, &text).await?;
    }
    None
}

fn answer(request: &Request, credentials: &TemporaryCredentials) -> (u16, String) {
    let keys = json!({
        "Code": "Success", "AccessKeyId": credentials.id, "SecretAccessKey": credentials.secret,
        "Token": credentials.token, "Expiration": credentials.expiration,
    });
    let in_session = request.header("x-aws-ec2-metadata-token") == Some(SESSION);
    match request.line.as_str() {
        "GET /v1/credentials" if request.header("authorization") == Some(CONTAINER_TOKEN) => {
            (200, keys.to_string())
        }
        "PUT /latest/api/token" => (200, SESSION.to_owned()),
        line if in_session && line == ROLES => (200, "worker".to_owned()),
        line if in_session && line.strip_prefix(ROLES) == Some("worker") => (200, keys.to_string()),
        _ => (403, String::new()),
    }
}

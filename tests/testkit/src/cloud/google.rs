//! A fake of Google Cloud KMS, written from its documentation because there is no emulator: tokens that a service account
//! signs itself, public keys as PEM, signatures of digests, and checksums of all of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use crc::{CRC_32_ISCSI, Crc};
use ethers_core::k256::ecdsa::Signature;
use ethers_core::k256::ecdsa::signature::hazmat::PrehashSigner;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};

use crate::eventually::eventually;
use crate::plain_http::{self, Request};
use crate::submitter::Submitter;

const ACCOUNT: &str = "gapless@p.iam.gserviceaccount.com";
const SCOPE: &str = "https://www.googleapis.com/auth/cloudkms";
/// How every token begins: the encoded header of a JSON Web Token.
pub const TOKEN_HEAD: &str = "eyJhbGciOiJSUzI1NiIs";
/// The number of `EC_SIGN_SECP256K1_SHA256`.
const ALGORITHM: u32 = 31;
const HSM: u32 = 2;

/// How it responds to requests about a key from now on.
#[derive(Clone, Debug)]
pub enum GoogleBehaviour {
    Honest,
    /// Accepts every request and never responds.
    Silent,
    /// Rejects with this HTTP status and this Google status.
    Refusing(u16, &'static str),
    /// Signs with this other key.
    WithKeyOf(Submitter),
    /// Returns these bytes as the signature, with a matching checksum.
    Garbage(&'static [u8]),
    /// Returns a wrong checksum of the signature.
    WrongChecksum,
    /// Reports that it did not verify the checksum of the digest.
    Unverified,
}

#[derive(Debug)]
pub struct GoogleKms {
    url: String,
    account: PathBuf,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Keys and their behaviour.
    keys: Mutex<Vec<(Submitter, GoogleBehaviour)>>,
    /// Of the service account.
    public_key: Vec<u8>,
    /// Method and path of all requests so far.
    asked: Mutex<Vec<String>>,
}

impl GoogleKms {
    /// Has the keys of `submitters`, and accepts the service account whose key file it writes into `dir`.
    pub async fn start(submitters: &[Submitter], dir: &Path) -> GoogleKms {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("a bound socket has an address"));
        let pair = KeyPair::generate(KeySize::Rsa2048).expect("a key of a service account");
        let account = dir.join("service-account.json");
        std::fs::write(&account, account_file(&pair)).unwrap();
        let keys = submitters.iter().map(|key| (key.clone(), GoogleBehaviour::Honest)).collect();
        let public_key = pair.public_key().as_ref().to_vec();
        let inner = Arc::new(Inner { keys: Mutex::new(keys), public_key, asked: Mutex::default() });
        let served = inner.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let inner = served.clone();
                tokio::spawn(async move { inner.serve(stream).await });
            }
        });
        GoogleKms { url, account, inner }
    }

    /// Resource name of the key of the nth submitter.
    pub fn key(&self, index: usize) -> String {
        format!("projects/p/locations/global/keyRings/r/cryptoKeys/{index}/cryptoKeyVersions/1")
    }

    /// A table of `[[signer.gcp_kms]]` for these keys.
    pub fn config(&self, keys: Value) -> Value {
        let account = self.account.to_str().expect("a UTF-8 path");
        json!({ "endpoint": self.url, "credentials_file": account, "keys": keys, "timeout": "5s" })
    }

    /// For every key.
    pub fn set_behaviour(&self, behaviour: &GoogleBehaviour) {
        for (_, own) in self.inner.keys.lock().iter_mut() {
            *own = behaviour.clone();
        }
    }

    /// For the key of the nth submitter.
    pub fn set_behaviour_of_key(&self, index: usize, behaviour: GoogleBehaviour) {
        self.inner.keys.lock()[index].1 = behaviour;
    }

    /// Waits for a sign request for the nth submitter's key.
    pub async fn wait_for_sign_request(&self, index: usize) {
        let line = format!("POST /v1/{}:asymmetricSign", self.key(index));
        eventually("Google KMS receives a sign request", async || {
            let asked = self.inner.asked.lock().clone();
            if asked.contains(&line) { Ok(()) } else { Err(asked) }
        })
        .await;
    }
}

fn account_file(pair: &KeyPair) -> String {
    let der: Pkcs8V1Der<'_> = pair.as_der().expect("a key can be written");
    let account = json!({
        "type": "service_account",
        "client_email": ACCOUNT,
        "project_id": "p",
        "private_key_id": "1",
        "private_key": pem("PRIVATE KEY", der.as_ref()),
    });
    account.to_string()
}

fn pem(what: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).expect("base64")).collect();
    format!("-----BEGIN {what}-----\n{}\n-----END {what}-----\n", lines.join("\n"))
}

fn crc32c(bytes: &[u8]) -> u32 {
    Crc::<u32>::new(&CRC_32_ISCSI).checksum(bytes)
}

impl Inner {
    async fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        while let Some(request) = plain_http::request(&mut stream).await {
            let (line, query) = request.line.split_once('?').unwrap_or((&request.line, ""));
            // The answers have enumerations as numbers.
            assert!(query.ends_with("%24alt=json%3Benum-encoding%3Dint"), "{query}");
            self.asked.lock().push(line.to_owned());
            let (status, body) = match self.is_authentic(&request) {
                false => refused(401, "UNAUTHENTICATED"),
                true => match self.key_of(line) {
                    Some((_, GoogleBehaviour::Silent)) => std::future::pending().await,
                    Some((_, GoogleBehaviour::Refusing(status, word))) => refused(status, word),
                    Some((key, behaviour)) => answer(line, &request.json(), &key, &behaviour),
                    None => refused(404, "NOT_FOUND"),
                },
            };
            plain_http::answer(&mut stream, status, &body).await?;
        }
        None
    }

    fn key_of(&self, line: &str) -> Option<(Submitter, GoogleBehaviour)> {
        let (_, rest) = line.split_once("/v1/projects/p/locations/global/keyRings/r/cryptoKeys/")?;
        let index: usize = rest.split_once("/cryptoKeyVersions/1")?.0.parse().ok()?;
        self.keys.lock().get(index).cloned()
    }

    /// Whether the service account signed the token, for this scope and at most an hour.
    fn is_authentic(&self, request: &Request) -> bool {
        let token = request.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let Some((signed, signature)) = token.and_then(|token| token.rsplit_once('.')) else { return false };
        assert!(signed.starts_with(TOKEN_HEAD), "{signed}");
        let decoded = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap_or_default();
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &self.public_key);
        let claims = signed.split_once('.').map(|(_, claims)| decoded(claims)).unwrap_or_default();
        let claims: Value = serde_json::from_slice(&claims).unwrap_or_default();
        let second = |name: &str| claims[name].as_u64().unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        key.verify(signed.as_bytes(), &decoded(signature)).is_ok()
            && claims["iss"] == ACCOUNT
            && claims["scope"] == SCOPE
            && second("iat") <= now
            && (now..now + 3660).contains(&second("exp"))
    }
}

fn refused(status: u16, word: &str) -> (u16, Value) {
    (status, json!({ "error": { "code": status, "message": "as the test wants it", "status": word } }))
}

fn answer(line: &str, asked: &Value, key: &Submitter, behaviour: &GoogleBehaviour) -> (u16, Value) {
    if line.starts_with("GET") && line.ends_with("/publicKey") {
        return (200, public_key(key));
    }
    let Some(name) = line.strip_prefix("POST /v1/").and_then(|rest| rest.strip_suffix(":asymmetricSign"))
    else {
        return refused(404, "NOT_FOUND");
    };
    let digest = asked["digest"]["sha256"].as_str().and_then(|text| STANDARD.decode(text).ok());
    let Some(digest) = digest.filter(|digest| digest.len() == 32) else {
        return refused(400, "INVALID_ARGUMENT");
    };
    let signature = match behaviour {
        GoogleBehaviour::Garbage(bytes) => bytes.to_vec(),
        GoogleBehaviour::WithKeyOf(other) => sign(other, &digest),
        _ => sign(key, &digest),
    };
    let checksum = crc32c(&signature) ^ u32::from(matches!(behaviour, GoogleBehaviour::WrongChecksum));
    let verified = asked["digestCrc32c"] == json!(crc32c(&digest).to_string());
    let body = json!({
        "name": name,
        "signature": STANDARD.encode(&signature),
        // 64-bit numbers are strings in Google's JSON.
        "signatureCrc32c": checksum.to_string(),
        "verifiedDigestCrc32c": verified && !matches!(behaviour, GoogleBehaviour::Unverified),
        "protectionLevel": HSM,
    });
    (200, body)
}

fn public_key(key: &Submitter) -> Value {
    // SubjectPublicKeyInfo of a point on secp256k1.
    let head = hex::decode("3056301006072a8648ce3d020106052b8104000a034200").expect("hex");
    let point = key.wallet().signer().verifying_key().to_encoded_point(false);
    let pem = pem("PUBLIC KEY", &[&head, point.as_bytes()].concat());
    json!({
        "pem": pem, "algorithm": ALGORITHM, "pemCrc32c": crc32c(pem.as_bytes()).to_string(),
        "protectionLevel": HSM,
    })
}

/// With low or high `s` at random, as an HSM does.
fn sign(key: &Submitter, digest: &[u8]) -> Vec<u8> {
    let low: Signature = key.wallet().signer().sign_prehash(digest).expect("a digest can be signed");
    let (r, s) = low.split_scalars();
    let either = if rand::random() { low } else { Signature::from_scalars(r, -s).expect("not zero") };
    either.to_der().as_bytes().to_vec()
}

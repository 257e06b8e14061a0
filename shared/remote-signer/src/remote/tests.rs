use std::sync::Arc;
use std::time::{Duration, Instant};

use ethers_core::types::U256;
use ethers_signers::{LocalWallet, Signer as _};
use serde_json::{Value, json};

use super::*;
use crate::remote_signer::RemoteKey;
use crate::testing::{Act, Asked, FakeSigner};
use gapless_domain::Nonce;
use gapless_signer::testing::{each_type, signed, wallet};
use gapless_signer::{Signer, SignerError};

const PROTOCOLS: [Protocol; 3] = [Protocol::JsonRpc, Protocol::Clef, Protocol::Service];

fn signer(protocol: Protocol, config: &config::RemoteSigner) -> RemoteKey {
    let remote_signer = Arc::new(Remote::new(protocol, config).unwrap());
    RemoteKey::new(wallet().address(), remote_signer)
}

fn at(fake: &FakeSigner) -> config::RemoteSigner {
    config::RemoteSigner { timeout: Duration::from_millis(500), ..config::RemoteSigner::at(&fake.url) }
}

/// A result in the form of the protocol.
fn reply(protocol: Protocol, asked: &Asked, raw: &Bytes) -> Act {
    let text = match protocol {
        Protocol::JsonRpc => json!({ "jsonrpc": "2.0", "id": asked.body["id"], "result": raw }),
        Protocol::Clef => {
            json!({ "jsonrpc": "2.0", "id": asked.body["id"], "result": { "raw": raw, "tx": {} } })
        }
        Protocol::Service => json!({ "raw": raw }),
    };
    Act::Answer(200, text.to_string())
}

#[tokio::test]
async fn each_protocol_signs_each_type() {
    for protocol in PROTOCOLS {
        for tx in each_type() {
            let answer = signed(&wallet(), &tx);
            let fake = FakeSigner::start(move |asked| reply(protocol, asked, &answer)).await;
            let signer = signer(protocol, &at(&fake));
            let draft = signer.sign(&tx).await.unwrap();
            assert_eq!(draft.raw, signed(&wallet(), &tx));
            assert_eq!((signer.kind(), signer.address()), (protocol.name(), tx.from));
        }
    }
}

#[tokio::test]
async fn a_signer_receives_every_field() {
    let [legacy, listed, dynamic] = each_type();
    for tx in [&legacy, &listed, &dynamic] {
        let answer = signed(&wallet(), tx);
        let fake = FakeSigner::start(move |asked| reply(Protocol::Service, asked, &answer)).await;
        signer(Protocol::Service, &at(&fake)).sign(tx).await.unwrap();
        let asked = fake.seen().remove(0);
        assert_eq!(asked.line, "POST /sign");
        let mut expected = json!({
            "from": tx.from, "to": tx.payload.to, "value": "0xde0b6b3a7640000", "data": "0xabcd0001",
            "nonce": "0x9", "gas": "0x15f90", "chainId": "0x7a69",
        });
        let (address, key) = (format!("0x{}", "07".repeat(20)), format!("0x{}", "08".repeat(32)));
        let list = json!([{ "address": address, "storageKeys": [key] }]);
        match tx {
            tx if tx == &legacy => (expected["type"], expected["gasPrice"]) = (json!("0x0"), json!("0x14")),
            tx if tx == &listed => {
                (expected["type"], expected["gasPrice"]) = (json!("0x1"), json!("0x14"));
                expected["accessList"] = list;
            }
            _ => {
                (expected["type"], expected["maxFeePerGas"]) = (json!("0x2"), json!("0x1e"));
                (expected["maxPriorityFeePerGas"], expected["accessList"]) = (json!("0x2"), list);
            }
        }
        assert_eq!(asked.body, expected);
    }
}

#[tokio::test]
async fn the_methods_are_those_of_the_protocol() {
    for (protocol, list, sign) in [
        (Protocol::JsonRpc, "eth_accounts", "eth_signTransaction"),
        (Protocol::Clef, "account_list", "account_signTransaction"),
    ] {
        let fake = FakeSigner::start(|asked| {
            let result = json!([Address::repeat_byte(1), Address::repeat_byte(2)]);
            Act::Answer(
                200,
                json!({ "jsonrpc": "2.0", "id": asked.body["id"], "result": result }).to_string(),
            )
        })
        .await;
        let signer = signer(protocol, &at(&fake));
        let both = vec![Address::repeat_byte(1), Address::repeat_byte(2)];
        assert_eq!(signer.remote_signer.addresses().await.unwrap(), both);
        let _ = signer.sign(&each_type()[0]).await;
        let methods: Vec<Value> = fake.seen().iter().map(|asked| asked.body["method"].clone()).collect();
        assert_eq!(methods, [list, sign]);
    }
    let listing = json!({ "addresses": [Address::repeat_byte(1)] }).to_string();
    let fake = FakeSigner::start(move |_| Act::Answer(200, listing.clone())).await;
    let config = config::RemoteSigner::at(format!("{}/v1/", fake.url));
    let found = signer(Protocol::Service, &config).remote_signer.addresses().await.unwrap();
    assert_eq!((found, fake.seen()[0].line.as_str()), (vec![Address::repeat_byte(1)], "GET /v1/addresses"));
}

#[tokio::test]
async fn a_different_transaction_is_refused_with_the_field() {
    let other_key: LocalWallet =
        "4747474747474747474747474747474747474747474747474747474747474747".parse().unwrap();
    let tx = each_type()[2].clone();
    let mut later = tx.clone();
    later.nonce = Nonce(10);
    let mut dearer = tx.clone();
    dearer.payload.value = U256::exp10(20);
    let good = signed(&wallet(), &tx);
    for protocol in PROTOCOLS {
        for (raw, field) in [
            (signed(&wallet(), &later), "nonce"),
            (signed(&wallet(), &dearer), "value"),
            (signed(&other_key, &tx), "from"),
            (good[..good.len() / 2].to_vec().into(), "raw"),
            (vec![0; 200_000].into(), "type"),
            (Bytes::new(), "raw"),
        ] {
            let fake = FakeSigner::start(move |asked| reply(protocol, asked, &raw)).await;
            match signer(protocol, &at(&fake)).sign(&tx).await {
                Err(SignerError::Refused { reason, .. }) => {
                    assert!(reason.contains(&format!("`{field}`")), "{field}: {reason}");
                }
                other => panic!("{field}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn invalid_responses_are_temporary() {
    let tx = each_type()[2].clone();
    let acts: [fn(&Asked) -> Act; 13] = [
        |_| Act::Answer(500, "{}".into()),
        |_| Act::Answer(503, "<html>busy</html>".into()),
        |_| Act::Answer(200, "<html>log in</html>".into()),
        |_| Act::Answer(200, String::new()),
        |_| Act::Answer(200, "{}".into()),
        |_| Act::Answer(200, "{\"raw\": 7}".into()),
        |_| Act::Answer(401, "{\"error\": \"who are you\"}".into()),
        |_| Act::Answer(307, String::new()),
        |_| Act::Answer(200, "7".repeat(2 << 20)),
        |_| Act::Answer(200, json!({ "jsonrpc": "2.0", "id": 77, "result": "0x00" }).to_string()),
        |_| Act::Truncate("{\"raw\": \"0x0102030405060708\"}".into()),
        |_| Act::Reset,
        |_| Act::Hang,
    ];
    for protocol in PROTOCOLS {
        for (index, act) in acts.into_iter().enumerate() {
            let fake = FakeSigner::start(act).await;
            let result = signer(protocol, &at(&fake)).sign(&tx).await;
            assert!(
                matches!(result, Err(SignerError::Unavailable { .. })),
                "{protocol:?} {index}: {result:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_unreachable_signer_is_temporary() {
    let fake = FakeSigner::start(|_| Act::Reset).await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(fake.seen().is_empty());
    let config = config::RemoteSigner::at(format!("http://{free}/secret-path"));
    let signer = signer(Protocol::JsonRpc, &config);
    let error = signer.sign(&each_type()[0]).await.unwrap_err();
    assert!(matches!(error, SignerError::Unavailable { .. }), "{error}");
    assert!(!format!("{error} {signer:?}").contains("secret-path"));
}

#[tokio::test]
async fn refusals_are_distinguished_from_failures() {
    let tx = each_type()[2].clone();
    for (code, message, refused) in [
        (-32000, "Request denied", true),
        (4001, "User rejected the request.", true),
        (-32602, "No Signer available", false),
        (-32000, "SIGNING_FROM_IS_NOT_AN_UNLOCKED_ACCOUNT", false),
        (-32603, "Internal error", false),
    ] {
        let fake = FakeSigner::start(move |asked| {
            let error = json!({ "code": code, "message": message });
            Act::Answer(400, json!({ "jsonrpc": "2.0", "id": asked.body["id"], "error": error }).to_string())
        })
        .await;
        let error = signer(Protocol::JsonRpc, &at(&fake)).sign(&tx).await.unwrap_err();
        assert_eq!(matches!(error, SignerError::Refused { .. }), refused, "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
    for (status, body, refused) in [
        (422, "{\"error\": \"over the limit\"}", true),
        (422, "<html>", false),
        (400, "{\"error\": \"over the limit\"}", false),
        (403, "{\"error\": \"over the limit\"}", false),
    ] {
        let fake = FakeSigner::start(move |_| Act::Answer(status, body.into())).await;
        let error = signer(Protocol::Service, &at(&fake)).sign(&tx).await.unwrap_err();
        assert_eq!(matches!(error, SignerError::Refused { .. }), refused, "{error}");
        assert_eq!(error.to_string().contains("over the limit"), refused, "{error}");
    }
}

#[tokio::test]
async fn a_transaction_of_another_sender_is_not_sent_to_the_signer() {
    let fake = FakeSigner::start(|_| Act::Hang).await;
    let mut tx = each_type()[0].clone();
    tx.from = Address::zero();
    let result = signer(Protocol::Service, &at(&fake)).sign(&tx).await;
    assert!(matches!(result, Err(SignerError::Refused { .. })));
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn the_token_is_read_for_every_request_and_never_printed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let fake = FakeSigner::start(|_| Act::Answer(401, String::new())).await;
    let config = config::RemoteSigner { token_file: Some(file.clone()), ..at(&fake) };
    let signer = signer(Protocol::Service, &config);
    let tx = each_type()[0].clone();
    let error = signer.sign(&tx).await.unwrap_err();
    assert!(matches!(&error, SignerError::Unavailable { .. }), "there is no such file: {error}");
    for token in ["first-token", "second-token"] {
        std::fs::write(&file, format!("{token}\n")).unwrap();
        let error = signer.sign(&tx).await.unwrap_err();
        assert!(!format!("{error} {signer:?} {config:?}").contains("-token"), "{error}");
    }
    let shown: Vec<_> =
        fake.seen().into_iter().map(|asked| asked.header("authorization").map(str::to_owned)).collect();
    assert_eq!(shown, [Some("Bearer first-token".to_owned()), Some("Bearer second-token".to_owned())]);
}

#[tokio::test]
async fn concurrent_requests_are_limited() {
    let tx = each_type()[0].clone();
    let fake = FakeSigner::start(|_| Act::Hang).await;
    let config = config::RemoteSigner { max_in_flight: 1, ..at(&fake) };
    let signer = signer(Protocol::Service, &config);
    let begun = Instant::now();
    let (first, second) = tokio::join!(signer.sign(&tx), signer.sign(&tx));
    assert!(first.is_err() && second.is_err());
    assert_eq!(fake.seen().len(), 2);
    assert!(begun.elapsed() >= config.timeout * 2, "each has its full timeout, one after the other");
}

mod tls {
    use std::path::Path;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::RootCertStore;
    use tokio_rustls::rustls::crypto::ring::default_provider;
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::rustls::server::{ServerConfig, WebPkiClientVerifier};

    use super::*;

    type Authority = CertifiedIssuer<'static, KeyPair>;

    fn authority() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// Certificate and key, as PEM.
    fn issue(authority: &Authority) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
    }

    /// Accepts only clients with a certificate of `authority`.
    fn acceptor(authority: &Authority) -> TlsAcceptor {
        let provider = Arc::new(default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
        let (cert, key) = issue(authority);
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    fn file(dir: &Path, name: &str, text: &str) -> Option<std::path::PathBuf> {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    }

    #[tokio::test]
    async fn mutual_tls_authenticates_both_sides() {
        let (ours, theirs) = (authority(), authority());
        let tx = each_type()[2].clone();
        let answer = signed(&wallet(), &tx);
        let fake =
            FakeSigner::with_tls(acceptor(&ours), move |asked| reply(Protocol::Service, asked, &answer))
                .await;
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = issue(&ours);
        let (unknown_cert, unknown_key) = issue(&theirs);
        let good = config::RemoteSigner {
            timeout: Duration::from_secs(5),
            ca_file: file(dir.path(), "ca.pem", &ours.pem()),
            client_cert_file: file(dir.path(), "cert.pem", &cert),
            client_key_file: file(dir.path(), "key.pem", &key),
            ..config::RemoteSigner::at(&fake.url)
        };
        signer(Protocol::Service, &good).sign(&tx).await.unwrap();

        let unknown_server =
            config::RemoteSigner { ca_file: file(dir.path(), "other.pem", &theirs.pem()), ..good.clone() };
        let system_authorities = config::RemoteSigner { ca_file: None, ..good.clone() };
        let no_certificate =
            config::RemoteSigner { client_cert_file: None, client_key_file: None, ..good.clone() };
        let unknown_client = config::RemoteSigner {
            client_cert_file: file(dir.path(), "unknown-cert.pem", &unknown_cert),
            client_key_file: file(dir.path(), "unknown-key.pem", &unknown_key),
            ..good.clone()
        };
        for config in [unknown_server, system_authorities, no_certificate, unknown_client] {
            let result = signer(Protocol::Service, &config).sign(&tx).await;
            assert!(matches!(result, Err(SignerError::Unavailable { .. })), "{result:?}");
        }
        assert_eq!(fake.seen().len(), 1, "nobody else was heard");
    }

    #[test]
    fn files_that_hold_nothing_of_use_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let empty = file(dir.path(), "empty.pem", "nothing");
        let base = config::RemoteSigner::at("https://signer");
        let no_authority = config::RemoteSigner { ca_file: empty.clone(), ..base.clone() };
        let no_key =
            config::RemoteSigner { client_cert_file: empty.clone(), client_key_file: empty, ..base.clone() };
        let missing = config::RemoteSigner { ca_file: Some(dir.path().join("none.pem")), ..base };
        for config in [no_authority, no_key, missing] {
            let error = Remote::new(Protocol::Service, &config).unwrap_err();
            assert!(error.contains(".pem"), "{error}");
        }
    }
}

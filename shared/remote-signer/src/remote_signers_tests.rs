use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::mpsc;

use super::*;
use crate::testing::{Act, FakeSigner};

/// Polls until `seen` returns true.
async fn until(what: &str, mut seen: impl FnMut() -> bool) {
    let waiting = async {
        while !seen() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test]
async fn listed_addresses_are_present_at_once_and_others_when_the_signer_responds() {
    let up = Arc::new(AtomicBool::new(false));
    let (listed, asked, local) = (Address::repeat_byte(1), Address::repeat_byte(2), Address::repeat_byte(3));
    let open = Arc::clone(&up);
    let fake = FakeSigner::start(move |_| match open.load(Relaxed) {
        true => Act::Answer(200, serde_json::json!({ "addresses": [listed, asked] }).to_string()),
        false => Act::Answer(503, String::new()),
    })
    .await;
    let at = || config::RemoteSigner::at(&fake.url);
    let config = config::Signer {
        http: vec![config::RemoteSigner { addresses: vec![listed, local], ..at() }, at()],
        ..config::Signer::default()
    };
    let set = Arc::new(SignerSet::default());
    let remote_signers = RemoteSigners::load(&config, set.clone());
    assert_eq!((set.addresses(), remote_signers.may_grow()), (vec![listed, local], true));
    assert_eq!(set.get(&listed).unwrap().kind(), "http");
    assert!(set.problems().is_empty() && set.get(&asked).is_none());

    let (found, mut news) = mpsc::unbounded_channel();
    let discovering = tokio::spawn(async move { remote_signers.discover(found).await });
    until("both are reported", || set.problems().len() == 2).await;
    assert!(set.problems()[0].reason.contains("503"), "{:?}", set.problems());
    let before = set.fingerprint();
    up.store(true, Relaxed);
    assert_eq!(news.recv().await, Some(vec![asked]), "the other address has a signer already");
    discovering.await.unwrap();
    assert_eq!(news.recv().await, None, "discovery has ended");
    assert_eq!(set.addresses(), vec![listed, asked, local]);
    assert_ne!(set.fingerprint(), before);
    let reasons: Vec<String> = set.problems().into_iter().map(|problem| problem.reason).collect();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.contains("does not sign for 0x0303")), "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.contains("already has a signer")), "{reasons:?}");
}

#[tokio::test]
async fn an_unresponsive_signer_does_not_delay_another() {
    let silent = FakeSigner::start(|_| Act::Hang).await;
    let fake = FakeSigner::start(|asked| {
        let result = [Address::repeat_byte(5)];
        Act::Answer(200, serde_json::json!({ "id": asked.body["id"], "result": result }).to_string())
    })
    .await;
    let config = config::Signer {
        json_rpc: vec![config::RemoteSigner::at(&silent.url), config::RemoteSigner::at(&fake.url)],
        ..config::Signer::default()
    };
    let set = Arc::new(SignerSet::default());
    let remote_signers = RemoteSigners::load(&config, set.clone());
    assert!(set.is_empty() && remote_signers.may_grow());
    let (found, mut news) = mpsc::unbounded_channel();
    let discovering = tokio::spawn(async move { remote_signers.discover(found).await });
    assert_eq!(news.recv().await, Some(vec![Address::repeat_byte(5)]));
    discovering.abort();
}

#[tokio::test]
async fn signers_that_are_queried_once_all_have_an_answer() {
    let (silent, closed) = (FakeSigner::start(|_| Act::Hang).await, FakeSigner::start(|_| Act::Reset).await);
    let address = Address::repeat_byte(5);
    let fake = FakeSigner::start(move |_| {
        Act::Answer(200, serde_json::json!({ "addresses": [address] }).to_string())
    })
    .await;
    let at = |fake: &FakeSigner| config::RemoteSigner::at(&fake.url);
    let config =
        config::Signer { http: vec![at(&silent), at(&closed), at(&fake)], ..config::Signer::default() };
    let set = Arc::new(SignerSet::default());
    let answers = RemoteSigners::load(&config, set.clone()).query_once(Duration::from_millis(300)).await;
    let names: Vec<&str> = answers.iter().map(|answer| answer.source.as_str()).collect();
    assert_eq!(names, ["signer.http.0", "signer.http.1", "signer.http.2"]);
    assert!(answers[0].addresses.as_ref().unwrap_err().contains("did not answer"), "{answers:?}");
    assert!(answers[1].addresses.is_err());
    assert_eq!(answers[2].addresses, Ok(vec![address]));
    assert_eq!(set.addresses(), vec![address]);
}

/// The problems of a configuration with keys of both cloud services.
#[cfg(not(all(feature = "aws-kms", feature = "gcp-kms")))]
fn problems_with_cloud_keys() -> Vec<gapless_signer::SignerProblem> {
    let keys = |id: &str| vec![config::CloudKey { id: id.into(), address: Some(Address::repeat_byte(1)) }];
    let aws = config::AwsKms {
        region: "eu-central-1".into(),
        keys: keys("alias/a"),
        endpoint: None,
        credentials: config::AwsCredentials::Instance,
        credentials_file: None,
        profile: "default".into(),
        timeout: Duration::from_secs(1),
        max_in_flight: 1,
    };
    let gcp = config::GcpKms {
        keys: keys("k"),
        endpoint: "https://kms.example".into(),
        credentials_file: None,
        timeout: Duration::from_secs(1),
        max_in_flight: 1,
    };
    let config = config::Signer { aws_kms: vec![aws], gcp_kms: vec![gcp], ..config::Signer::default() };
    let set = Arc::new(SignerSet::default());
    RemoteSigners::load(&config, set.clone());
    set.problems()
}

#[cfg(not(feature = "aws-kms"))]
#[test]
fn keys_of_aws_kms_are_reported_in_a_build_without_support() {
    let problem = gapless_signer::SignerProblem {
        source: "signer.aws_kms.0".into(),
        reason: "this build has no support for AWS KMS (cargo feature aws-kms)".into(),
    };
    assert!(problems_with_cloud_keys().contains(&problem));
}

#[cfg(not(feature = "gcp-kms"))]
#[test]
fn keys_of_google_cloud_kms_are_reported_in_a_build_without_support() {
    let problem = gapless_signer::SignerProblem {
        source: "signer.gcp_kms.0".into(),
        reason: "this build has no support for Google Cloud KMS (cargo feature gcp-kms)".into(),
    };
    assert!(problems_with_cloud_keys().contains(&problem));
}

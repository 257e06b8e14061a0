use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::mpsc;

use super::super::keystore;
use super::super::testing::{Act, FakeSigner};
use super::*;
use gapless_config::Secret;

fn config(dir: &Path) -> config::Signer {
    let password_file = dir.join("password");
    std::fs::write(&password_file, "secret\n").unwrap();
    config::Signer {
        keystore: Some(dir.to_owned()),
        password_file: Some(password_file),
        ..config::Signer::default()
    }
}

#[tokio::test]
async fn keys_that_can_be_read_are_used_and_the_others_reported() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let (one, _) = keystore::create(dir.path(), &Secret::new("secret")).unwrap();
    let (two, _) = keystore::create(dir.path(), &Secret::new("secret")).unwrap();
    let (_, locked) = keystore::create(dir.path(), &Secret::new("another")).unwrap();
    std::fs::write(dir.path().join("notes.txt"), "not a key").unwrap();
    let broken = dir.path().join("broken.json");
    let file = std::fs::read_to_string(&locked).unwrap().replace("\"dklen\":32", "\"dklen\":3");
    std::fs::write(&broken, file).unwrap();
    std::fs::write(dir.path().join(".hidden"), "").unwrap();

    let set = SignerSet::load(&config).await;
    let mut expected = vec![one, two];
    expected.sort();
    assert_eq!(set.addresses(), expected);
    assert_eq!((set.len(), set.get(&one).unwrap().kind()), (2, "keystore"));
    let problems = set.problems();
    let mut sources: Vec<&str> = problems.iter().map(|problem| problem.source.as_str()).collect();
    sources.sort_unstable();
    let notes = dir.path().join("notes.txt");
    let mut wanted = [locked.to_str().unwrap(), broken.to_str().unwrap(), notes.to_str().unwrap()];
    wanted.sort_unstable();
    assert_eq!(sources, wanted);
    assert!(!format!("{:?}", set.problems()).contains("secret"));
}

#[tokio::test]
async fn a_missing_password_or_variable_is_reported_as_a_problem() {
    let dir = tempfile::tempdir().unwrap();
    let config = config::Signer {
        keystore: Some(dir.path().to_owned()),
        password_env: Some("GAPLESS_TEST_NO_SUCH_PASSWORD".into()),
        raw_key_env: vec!["GAPLESS_TEST_NO_SUCH_KEY".into()],
        ..config::Signer::default()
    };
    let set = SignerSet::load(&config).await;
    assert!(set.is_empty());
    assert_eq!(set.problems().len(), 2);
    assert!(set.problems()[1].source.contains("GAPLESS_TEST_NO_SUCH_KEY"));
}

#[tokio::test]
async fn the_fingerprint_depends_on_the_addresses_alone() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let key = Secret::new("46".repeat(32));
    let mut prints = Vec::new();
    for dir in &dirs {
        let config = config(dir.path());
        keystore::import(dir.path(), &key, &Secret::new("secret")).unwrap();
        prints.push(SignerSet::load(&config).await.fingerprint());
    }
    assert_eq!(prints[0], prints[1]);
    assert_ne!(prints[0], SignerSet::default().fingerprint());
}

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
    let set = Arc::new(SignerSet::load(&config).await);
    assert_eq!((set.addresses(), set.may_grow()), (vec![listed, local], true));
    assert_eq!(set.get(&listed).unwrap().kind(), "http");
    assert!(set.problems().is_empty() && set.get(&asked).is_none());

    let (found, mut news) = mpsc::unbounded_channel();
    let discovering = {
        let set = Arc::clone(&set);
        tokio::spawn(async move { set.discover(found).await })
    };
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
    let set = Arc::new(SignerSet::load(&config).await);
    assert!(set.is_empty() && set.may_grow());
    let (found, mut news) = mpsc::unbounded_channel();
    let discovering = {
        let set = Arc::clone(&set);
        tokio::spawn(async move { set.discover(found).await })
    };
    assert_eq!(news.recv().await, Some(vec![Address::repeat_byte(5)]));
    discovering.abort();
}

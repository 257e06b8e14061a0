use std::path::Path;

use super::super::keystore;
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

#[test]
fn a_problem_of_a_source_is_replaced_and_removed() {
    let set = SignerSet::default();
    assert!(set.set_problem("signer.http.0", "HTTP 503") && set.set_problem("signer.http.1", "HTTP 503"));
    assert!(!set.set_problem("signer.http.0", "HTTP 503"), "nothing changed");
    assert!(set.set_problem("signer.http.0", "HTTP 500"));
    let problem =
        |source: &str, reason: &str| SignerProblem { source: source.to_owned(), reason: reason.to_owned() };
    let other = problem("signer.http.1", "HTTP 503");
    assert_eq!(set.problems(), [problem("signer.http.0", "HTTP 500"), other.clone()]);
    set.clear_problems("signer.http.0");
    assert_eq!(set.problems(), [other]);
}

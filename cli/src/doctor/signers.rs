//! The signers: local keys can be opened, remote signers answer, and who has the key of each submitter.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gapless_config::{Config, Signer};
use gapless_domain::Address;
use gapless_remote_signer::{RemoteSigners, SignerAnswer};
use gapless_signer::SignerSet;
use gapless_store::SubmitterView;

use super::REQUEST_LIMIT;
use super::report::{Area, Check, Subject};

/// Opening a keystore file takes about a second of a core, on purpose.
const OPENING_LIMIT: Duration = Duration::from_secs(25);

/// Addresses that the configured signers sign for.
pub(super) type Keys = BTreeSet<Address>;

pub(super) async fn check(config: &Config, submitters: &Option<Vec<SubmitterView>>) -> (Vec<Check>, Keys) {
    let subject = Subject::new(Area::Signers, "signer");
    let settings = &config.signer;
    if !has_signers(settings) {
        let warning = subject.warning(
            "keys",
            "no signer is configured: a worker with this configuration does not start",
            "set signer.keystore or a remote signer; the API needs none",
        );
        return (vec![warning], Keys::new());
    }
    let mut checks = Vec::new();
    let loaded = tokio::time::timeout(OPENING_LIMIT, SignerSet::load(settings)).await;
    let is_complete = loaded.is_ok();
    let set = match loaded {
        Ok(set) => Arc::new(set),
        Err(_) => {
            let why = format!("opening the local keys takes longer than {OPENING_LIMIT:?}");
            checks.push(subject.not_checked("local keys", why));
            Arc::default()
        }
    };
    let local = set.len();
    if is_complete && (settings.keystore.is_some() || !settings.raw_key_env.is_empty()) {
        checks.extend(local_keys(&subject, &set, local));
    }
    let known = set.problems().len();
    let remote = RemoteSigners::load(settings, Arc::clone(&set));
    let answers = remote.query_once(REQUEST_LIMIT).await;
    checks.extend(answers.iter().map(answered));
    // Those that could not be set up, and keys that they lack or that two signers have.
    checks.extend(set.problems().into_iter().skip(known).map(|problem| {
        Subject::new(Area::Signers, problem.source).problem(
            "remote signer",
            problem.reason,
            "correct this signer, or its keys in the configuration",
        )
    }));
    let keys: Keys = set.addresses().into_iter().collect();
    if !is_complete {
        return (checks, keys);
    }
    if keys.is_empty() {
        checks.push(subject.problem(
            "keys",
            "no key is usable: a worker with this configuration does not start",
            "correct the signers above",
        ));
    }
    checks.extend(without_key(&keys, submitters));
    (checks, keys)
}

fn has_signers(signer: &Signer) -> bool {
    signer.keystore.is_some()
        || !signer.raw_key_env.is_empty()
        || !(signer.json_rpc.is_empty() && signer.clef.is_empty() && signer.http.is_empty())
        || !(signer.aws_kms.is_empty() && signer.gcp_kms.is_empty())
}

fn local_keys(subject: &Subject, set: &SignerSet, opened: usize) -> Vec<Check> {
    let mut checks: Vec<Check> = set
        .problems()
        .into_iter()
        .map(|problem| {
            let (message, advice) = unopened(&problem.reason);
            Subject::new(Area::Signers, problem.source).problem("local key", message, advice)
        })
        .collect();
    if opened > 0 {
        checks.push(subject.ok("local keys", format!("{opened} opened: {}", listed(&set.addresses()))));
    } else if checks.is_empty() {
        checks.push(subject.problem(
            "local keys",
            "the keystore contains no key",
            "create one with `gapless keys new`, or correct signer.keystore",
        ));
    }
    checks
}

/// The message and the advice for a local key that could not be opened.
fn unopened(reason: &str) -> (String, &'static str) {
    // What the keystore library says if the checksum of the decrypted key is wrong.
    if reason.eq_ignore_ascii_case("mac mismatch") {
        let message = "the password does not decrypt it".to_owned();
        return (message, "correct signer.password_file or signer.password_env, or remove the file");
    }
    let advice = match reason.contains("environment variable") {
        true => "set the variable for this program and for the worker",
        false => "correct the file or its permissions, or remove it from the keystore",
    };
    (reason.to_owned(), advice)
}

fn answered(answer: &SignerAnswer) -> Check {
    let subject = Subject::new(Area::Signers, format!("{} ({})", answer.source, answer.endpoint));
    let advice = "start the signer, or correct its URL, its token and its certificates";
    match &answer.addresses {
        Ok(addresses) if addresses.is_empty() => {
            subject.problem("remote signer", "it answers, and has no addresses", "add a key to the signer")
        }
        Ok(addresses) => subject.ok("remote signer", format!("it signs for {}", listed(addresses))),
        Err(reason) => subject.problem("remote signer", reason.clone(), advice),
    }
}

/// Submitters of the database that no configured signer has. A warning only: another worker may have the key.
fn without_key(keys: &Keys, submitters: &Option<Vec<SubmitterView>>) -> Vec<Check> {
    let Some(submitters) = submitters else {
        let subject = Subject::new(Area::Signers, "signer");
        return vec![subject.not_checked("submitters", "the database could not be read")];
    };
    let missing = submitters.iter().filter(|submitter| !keys.contains(&submitter.key.address));
    missing
        .map(|submitter| {
            let waiting = submitter.queue_depth + submitter.in_flight;
            Subject::new(Area::Signers, submitter.key.to_string()).warning(
                "submitters",
                format!("no configured signer has its key; {waiting} of its transactions are not final"),
                "add its key; if another worker has it, run this with the configuration of that worker",
            )
        })
        .collect()
}

/// The first few addresses, and how many more.
fn listed(addresses: &[Address]) -> String {
    const SHOWN: usize = 5;
    let first: Vec<String> = addresses.iter().take(SHOWN).map(|address| format!("{address:#x}")).collect();
    match addresses.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{} and {more} more", first.join(", ")),
        _ => first.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Outcome;
    use super::*;

    #[test]
    fn a_remote_signer_without_addresses_or_answer_is_a_problem() {
        let answer = |addresses| {
            answered(&SignerAnswer {
                source: "signer.http.0".into(),
                endpoint: "https://s".into(),
                addresses,
            })
        };
        assert_eq!(answer(Ok(vec![Address::repeat_byte(1)])).outcome, Outcome::Ok);
        assert_eq!(answer(Ok(Vec::new())).outcome, Outcome::Problem);
        assert_eq!(answer(Err("closed".into())).outcome, Outcome::Problem);
    }

    #[test]
    fn long_lists_are_cut() {
        let all: Vec<Address> = (1..=7).map(Address::repeat_byte).collect();
        assert!(listed(&all).ends_with("and 2 more"));
        assert!(!listed(&all[..5]).contains("more"));
    }

    #[tokio::test]
    async fn keys_that_cannot_be_opened_are_named_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        let text = "database.url = \"postgres://localhost/d\"\nsigner.raw_key_env = [\"GAPLESS_NO_SUCH_KEY\"]\n[chain.a]\nid = 1";
        std::fs::write(&path, text).unwrap();
        let (checks, keys) = check(&Config::load(Some(&path)).unwrap(), &Some(Vec::new())).await;
        assert!(keys.is_empty());
        let named = checks.iter().find(|check| check.name == "local key").unwrap();
        assert_eq!((named.subject.as_str(), named.outcome), ("GAPLESS_NO_SUCH_KEY", Outcome::Problem));
        assert!(named.advice.as_ref().unwrap().contains("set the variable"), "{named:?}");
    }
}

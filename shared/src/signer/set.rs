//! Every key this process can sign with: those read once at start, and those of remote signers.
//!
//! A key that cannot be read is reported and left out; it never keeps the others from working. Addresses of remote
//! signers that the configuration lists are there from the start, whether the signer is or not. The other addresses of
//! remote signers come when their signer has answered (`discover`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use futures::StreamExt;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use zeroize::Zeroizing;

use super::keystore::{self, KeystoreError};
use super::remote::{Protocol, Remote, RemoteSigner};
use super::{LocalSigner, Signer};
use crate::config::{self, Secret};
use crate::domain::Address;

/// Between two questions to a remote signer that did not answer, at first and at the most.
const ASK_AGAIN: Duration = Duration::from_millis(500);
const ASK_AGAIN_AT_MOST: Duration = Duration::from_secs(15);

/// A key that is not in the set, or a remote signer that is not there, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerProblem {
    /// A path, the name of an environment variable, or a place in the configuration.
    pub source: String,
    pub reason: String,
}

#[derive(Debug, Default)]
pub struct SignerSet {
    known: RwLock<Known>,
    remotes: Vec<Source>,
}

#[derive(Debug, Default)]
struct Known {
    signers: BTreeMap<Address, Arc<dyn Signer>>,
    problems: Vec<SignerProblem>,
}

/// A remote signer of the configuration.
#[derive(Debug)]
struct Source {
    name: String,
    remote: Arc<Remote>,
    /// Empty: it is asked.
    listed: Vec<Address>,
}

impl SignerSet {
    /// Reads what the configuration names; asks nobody. Always returns: what went wrong is in `problems`, and in the log.
    pub async fn load(config: &config::Signer) -> SignerSet {
        let mut set = SignerSet::default();
        if let Some(dir) = &config.keystore {
            set.load_keystore(dir, config).await;
        }
        for name in &config.raw_key_env {
            match raw_key(name) {
                Ok(signer) => {
                    set.insert(name, signer);
                }
                Err(reason) => set.report(name, reason),
            }
        }
        for (protocol, remotes) in [
            (Protocol::JsonRpc, &config.json_rpc),
            (Protocol::Clef, &config.clef),
            (Protocol::Service, &config.http),
        ] {
            for (index, remote) in remotes.iter().enumerate() {
                set.load_remote(format!("signer.{}.{index}", protocol.word()), protocol, remote);
            }
        }
        set
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, address: &Address) -> Option<Arc<dyn Signer>> {
        self.known().signers.get(address).cloned()
    }

    /// In ascending order.
    pub fn addresses(&self) -> Vec<Address> {
        self.known().signers.keys().copied().collect()
    }

    pub fn len(&self) -> usize {
        self.known().signers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known().signers.is_empty()
    }

    /// Whether `discover` may still find addresses.
    pub fn may_grow(&self) -> bool {
        self.remotes.iter().any(|source| source.listed.is_empty())
    }

    /// As of now: a remote signer that has answered is no problem any more.
    pub fn problems(&self) -> Vec<SignerProblem> {
        self.known().problems.clone()
    }

    /// Equal for two processes that can sign for the same addresses.
    pub fn fingerprint(&self) -> String {
        let mut digest = Sha256::new();
        for address in self.known().signers.keys() {
            digest.update(address.as_bytes());
        }
        hex::encode(digest.finalize())
    }

    /// Asks every remote signer what it signs for, each until it has answered; none waits for another. Addresses that
    /// come in are usable at once, and are told to `found`.
    pub async fn discover(&self, found: mpsc::UnboundedSender<Vec<Address>>) {
        let asking = self.remotes.iter().map(|source| self.ask(source, &found));
        futures::future::join_all(asking).await;
    }

    async fn ask(&self, source: &Source, found: &mpsc::UnboundedSender<Vec<Address>>) {
        let mut pause = ASK_AGAIN;
        loop {
            let reason = match source.remote.addresses().await {
                Ok(addresses) if addresses.is_empty() && source.listed.is_empty() => {
                    "it signs for no address".to_owned()
                }
                Ok(addresses) => {
                    tracing::info!(
                        source = source.name,
                        endpoint = source.remote.shown(),
                        addresses = addresses.len(),
                        "a remote signer answers"
                    );
                    self.settle(source);
                    return self.take_over(source, addresses, found);
                }
                Err(reason) => reason,
            };
            self.complain(source, reason);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(ASK_AGAIN_AT_MOST);
        }
    }

    /// What the configuration lists is not added to: a list is a restriction.
    fn take_over(
        &self,
        source: &Source,
        addresses: Vec<Address>,
        found: &mpsc::UnboundedSender<Vec<Address>>,
    ) {
        for missing in source.listed.iter().filter(|address| !addresses.contains(address)) {
            self.report(&source.name, format!("it does not sign for {missing:#x}, which is listed"));
        }
        if !source.listed.is_empty() {
            return;
        }
        let new: Vec<Address> =
            addresses.into_iter().filter(|address| self.insert_remote(source, *address)).collect();
        // Nobody listens any more: the process is about to stop.
        let _ = found.send(new);
    }

    fn load_remote(&mut self, name: String, protocol: Protocol, config: &config::RemoteSigner) {
        let remote = match Remote::new(protocol, config) {
            Ok(remote) => Arc::new(remote),
            Err(reason) => return self.report(&name, reason),
        };
        let source = Source { name, remote, listed: config.addresses.clone() };
        for address in &config.addresses {
            self.insert_remote(&source, *address);
        }
        self.remotes.push(source);
    }

    /// False: another signer has it.
    fn insert_remote(&self, source: &Source, address: Address) -> bool {
        let signer = RemoteSigner { address, remote: Arc::clone(&source.remote) };
        self.insert(&source.name, signer)
    }

    /// A remote signer did not answer: said once, until it does or until the reason is another.
    fn complain(&self, source: &Source, reason: String) {
        let mut known = self.change();
        match known.problems.iter_mut().find(|problem| problem.source == source.name) {
            Some(problem) if problem.reason == reason => return,
            Some(problem) => problem.reason.clone_from(&reason),
            None => {
                known.problems.push(SignerProblem { source: source.name.clone(), reason: reason.clone() });
            }
        }
        drop(known);
        tracing::error!(
            source = source.name,
            endpoint = source.remote.shown(),
            reason,
            "a remote signer does not answer; it is asked again, the others are used"
        );
    }

    fn settle(&self, source: &Source) {
        self.change().problems.retain(|problem| problem.source != source.name);
    }

    async fn load_keystore(&self, dir: &Path, config: &config::Signer) {
        let opened = password(config).and_then(|password| Ok((password, key_files(dir, config)?)));
        let (password, files) = match opened {
            Ok(opened) => opened,
            Err(reason) => return self.report(&dir.display().to_string(), reason),
        };
        // Each takes a core for a while; more at once than cores would only hold more memory.
        let at_once = std::thread::available_parallelism().map_or(2, usize::from);
        let mut opening = futures::stream::iter(files)
            .map(|path| {
                let password = password.clone();
                async move {
                    let file = path.clone();
                    (path, tokio::task::spawn_blocking(move || keystore::open(&file, &password)).await)
                }
            })
            .buffered(at_once);
        while let Some((path, opened)) = opening.next().await {
            let source = path.display().to_string();
            match opened {
                Ok(Ok(wallet)) => {
                    self.insert(&source, LocalSigner::from_keystore(wallet));
                }
                Ok(Err(error)) => self.report(&source, error.to_string()),
                // The decrypting library panics on lengths it did not expect.
                Err(_) => self.report(&source, "not a well-formed V3 keystore".into()),
            }
        }
    }

    /// False: the address has a signer already, and keeps it.
    fn insert(&self, source: &str, signer: impl Signer + 'static) -> bool {
        let address = signer.address();
        let mut known = self.change();
        if known.signers.contains_key(&address) {
            drop(known);
            self.report(source, format!("{address:#x} has been read before"));
            return false;
        }
        known.signers.insert(address, Arc::new(signer));
        true
    }

    fn report(&self, source: &str, reason: String) {
        tracing::error!(source, reason, "a key could not be loaded; the others are used");
        self.change().problems.push(SignerProblem { source: source.to_owned(), reason });
    }
}

fn password(config: &config::Signer) -> Result<Secret, String> {
    match (&config.password_file, &config.password_env) {
        (Some(path), _) => {
            let text = std::fs::read_to_string(path).map(Zeroizing::new);
            let text = text.map_err(|error| format!("signer.password_file {}: {error}", path.display()))?;
            let line = text.strip_suffix('\n').unwrap_or(&text);
            Ok(Secret::new(line.strip_suffix('\r').unwrap_or(line)))
        }
        (None, Some(name)) => {
            variable(name).map_err(|reason| format!("signer.password_env {name}: {reason}"))
        }
        (None, None) => Err("neither signer.password_file nor signer.password_env is set".into()),
    }
}

fn variable(name: &str) -> Result<Secret, String> {
    std::env::var(name).map(Secret::new).map_err(|_| "the environment variable is not set".into())
}

fn raw_key(name: &str) -> Result<LocalSigner, String> {
    let wallet =
        keystore::wallet_from_hex(&variable(name)?).map_err(|error: KeystoreError| error.to_string())?;
    Ok(LocalSigner::from_raw_key(wallet))
}

/// Regular files in name order. Hidden ones are editors' and mounts'; the password may lie beside the keys.
fn key_files(dir: &Path, config: &config::Signer) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(dir).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut files: Vec<PathBuf> = entries
        .map_err(|error| error.to_string())?
        .iter()
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .map(std::fs::DirEntry::path)
        .filter(|path| path.is_file() && Some(path) != config.password_file.as_ref())
        .collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::super::remote::testing::{Act, FakeSigner};
    use super::*;

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
    async fn a_missing_password_or_variable_is_a_problem_not_an_end() {
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

    /// Waits, without a clock of its own, until `true`.
    async fn until(what: &str, mut seen: impl FnMut() -> bool) {
        let waiting = async {
            while !seen() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap_or_else(|_| panic!("{what}"));
    }

    #[tokio::test]
    async fn listed_addresses_are_there_before_their_signer_and_the_others_when_it_answers() {
        let up = Arc::new(AtomicBool::new(false));
        let (listed, asked, local) =
            (Address::repeat_byte(1), Address::repeat_byte(2), Address::repeat_byte(3));
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
        assert_eq!(news.recv().await, None, "nobody is asked any more");
        assert_eq!(set.addresses(), vec![listed, asked, local]);
        assert_ne!(set.fingerprint(), before);
        let reasons: Vec<String> = set.problems().into_iter().map(|problem| problem.reason).collect();
        assert_eq!(reasons.len(), 2, "{reasons:?}");
        assert!(reasons.iter().any(|reason| reason.contains("does not sign for 0x0303")), "{reasons:?}");
        assert!(reasons.iter().any(|reason| reason.contains("has been read before")), "{reasons:?}");
    }

    #[tokio::test]
    async fn one_silent_signer_does_not_keep_another_from_being_found() {
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
}

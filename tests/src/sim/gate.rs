//! What a process does to the world outside passes its gate, call by call: asks of a node, a signature, a commit. At a chosen
//! call the gate fails it, loses its answer, or stops the process there.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::log::Log;

/// What happens at one of the calls to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hitch {
    /// At the how manieth call from now; 0 is the next.
    pub(super) at: u64,
    /// When the call has had its effect; else before.
    pub(super) after: bool,
    /// The process stops there, until it is told to go on or is killed; else the call fails.
    pub(super) stop: bool,
}

impl std::fmt::Display for Hitch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.stop { "stops" } else { "fails" };
        let when = if self.after { "after" } else { "before" };
        write!(f, "{what} {when} call {}", self.at)
    }
}

#[derive(Debug)]
pub(super) struct Gate {
    name: char,
    hitch: Mutex<Option<Hitch>>,
    stopped: Notify,
    go: Notify,
    log: Log,
}

impl Gate {
    pub(super) fn new(name: char, log: Log) -> Arc<Gate> {
        Arc::new(Gate { name, hitch: Mutex::default(), stopped: Notify::new(), go: Notify::new(), log })
    }

    pub(super) fn set(&self, hitch: Option<Hitch>) {
        *self.hitch.lock().unwrap() = hitch;
    }

    /// One call. `lost` is what the caller hears of one that failed.
    pub(super) async fn pass<T>(
        &self,
        call: &str,
        effect: impl Future<Output = T>,
        lost: impl FnOnce() -> T,
    ) -> T {
        let Some(Hitch { after, stop, .. }) = self.due() else {
            self.say(call);
            return effect.await;
        };
        if after {
            let answer = effect.await;
            self.say(&format!("{call}: done, and no answer"));
            if !stop {
                return lost();
            }
            self.stop(call).await;
            return answer;
        }
        self.say(&format!("{call}: not done"));
        if !stop {
            return lost();
        }
        self.stop(call).await;
        effect.await
    }

    async fn stop(&self, call: &str) {
        self.stopped.notify_one();
        self.go.notified().await;
        self.say(&format!("{call}: goes on"));
    }

    /// Returns when the process has stopped at a call.
    pub(super) async fn stopped(&self) {
        self.stopped.notified().await;
    }

    pub(super) fn go_on(&self) {
        self.go.notify_one();
    }

    fn due(&self) -> Option<Hitch> {
        let mut hitch = self.hitch.lock().unwrap();
        match hitch.as_mut() {
            Some(due) if due.at == 0 => hitch.take(),
            Some(later) => {
                later.at -= 1;
                None
            }
            None => None,
        }
    }

    fn say(&self, what: &str) {
        self.log.add(format!("     {} {what}", self.name));
    }
}

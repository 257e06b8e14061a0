//! All external calls of a process (node, signer, commit) pass through its call boundary. At a chosen call the
//! boundary fails the call, drops its response, or stops the process.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::log::Log;

/// A fault at a later call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallFault {
    /// Number of calls before it; 0 is the next call.
    pub(crate) at: u64,
    /// After the effect of the call; otherwise before it.
    pub(crate) after: bool,
    /// The process stops there until it is continued or killed; otherwise the call fails.
    pub(crate) stop: bool,
}

impl std::fmt::Display for CallFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.stop { "stops" } else { "fails" };
        let when = if self.after { "after" } else { "before" };
        write!(f, "{what} {when} call {}", self.at)
    }
}

#[derive(Debug)]
pub(crate) struct CallBoundary {
    name: char,
    fault: Mutex<Option<CallFault>>,
    stopped: Notify,
    go: Notify,
    log: Log,
}

impl CallBoundary {
    pub(crate) fn new(name: char, log: Log) -> Arc<CallBoundary> {
        Arc::new(CallBoundary {
            name,
            fault: Mutex::default(),
            stopped: Notify::new(),
            go: Notify::new(),
            log,
        })
    }

    pub(crate) fn set(&self, fault: Option<CallFault>) {
        *self.fault.lock().unwrap() = fault;
    }

    /// Performs one call. `lost` is the result of a failed call.
    pub(crate) async fn pass<T>(
        &self,
        call: &str,
        effect: impl Future<Output = T>,
        lost: impl FnOnce() -> T,
    ) -> T {
        let Some(CallFault { after, stop, .. }) = self.due() else {
            self.log_event(call);
            return effect.await;
        };
        if after {
            let answer = effect.await;
            self.log_event(&format!("{call}: done, response lost"));
            if !stop {
                return lost();
            }
            self.stop(call).await;
            return answer;
        }
        self.log_event(&format!("{call}: not done"));
        if !stop {
            return lost();
        }
        self.stop(call).await;
        effect.await
    }

    async fn stop(&self, call: &str) {
        self.stopped.notify_one();
        self.go.notified().await;
        self.log_event(&format!("{call}: continues"));
    }

    /// Returns when the process has stopped at a call.
    pub(crate) async fn stopped(&self) {
        self.stopped.notified().await;
    }

    pub(crate) fn go_on(&self) {
        self.go.notify_one();
    }

    fn due(&self) -> Option<CallFault> {
        let mut fault = self.fault.lock().unwrap();
        match fault.as_mut() {
            Some(due) if due.at == 0 => fault.take(),
            Some(later) => {
                later.at -= 1;
                None
            }
            None => None,
        }
    }

    fn log_event(&self, what: &str) {
        self.log.add(format!("     {} {what}", self.name));
    }
}

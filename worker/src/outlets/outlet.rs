//! The port for consumers that workers deliver events to.

use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::results::{Attempt, AttemptResult};

/// One event as it is sent.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// Id of the event: the same in every attempt, so that the receiver can ignore repetitions.
    pub(super) id: Uuid,
    /// CloudEvents, JSON.
    pub(super) body: String,
}

/// A consumer that takes one event at a time. Order, cursor, retries and health are not its concern: the runner calls it
/// with events of different submitters at the same time, and with the next event of a submitter only when the one before
/// was sent or given up.
#[async_trait]
pub(super) trait Outlet: Send + Sync + std::fmt::Debug {
    async fn send(&self, message: Message) -> Sent;
}

/// What became of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Delivered {
        status_code: Option<u16>,
    },
    Failed {
        status_code: Option<u16>,
        /// For people, without secrets.
        error: String,
        /// What the receiver asked for.
        retry_after: Option<Duration>,
    },
    /// The receiver wants no more messages.
    Gone {
        status_code: Option<u16>,
        error: String,
    },
}

impl Sent {
    pub(super) fn attempt(self, duration: Duration) -> Attempt {
        let (status_code, result) = match self {
            Sent::Delivered { status_code } => (status_code, AttemptResult::Delivered),
            Sent::Failed { status_code, error, retry_after } => {
                (status_code, AttemptResult::Failed { error, retry_after })
            }
            Sent::Gone { status_code, error } => {
                (status_code, AttemptResult::Failed { error, retry_after: None })
            }
        };
        Attempt { result, status_code, duration }
    }
}

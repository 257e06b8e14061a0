//! What adapters must keep, as functions that any adapter's tests can run. Each returns what was broken, in words; an empty
//! list is a pass. They assert nothing themselves, so that they fit every test framework.
//!
//! Common to all ports: errors are values and never panics; what does not exist is a value (`None`) and never an error; asking
//! twice changes nothing; every call comes back within a limit.

mod chain;
mod event;
mod policy;
mod signer;

pub use chain::{chain_connector, mempool_inspector, rebroadcast};
pub use event::event_publisher;
pub use policy::{fee_policy, gas_bump_policy, stuck_policy};
pub use signer::signer;

use std::fmt::Debug;
use std::time::Duration;

/// What was found broken.
#[derive(Debug, Default)]
struct Findings(Vec<String>);

impl Findings {
    fn expect(&mut self, holds: bool, otherwise: impl Into<String>) {
        if !holds {
            self.0.push(otherwise.into());
        }
    }

    /// The value of a call that must succeed, within the limit.
    async fn value<T, E: Debug>(
        &mut self,
        call: &str,
        limit: Duration,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Option<T> {
        match self.answer(call, limit, answer).await? {
            Ok(value) => Some(value),
            Err(error) => {
                self.0.push(format!("{call}: an error where there is an answer: {error:?}"));
                None
            }
        }
    }

    /// Whatever a call says, within the limit.
    async fn answer<T>(&mut self, call: &str, limit: Duration, answer: impl Future<Output = T>) -> Option<T> {
        let answer = tokio::time::timeout(limit, answer).await;
        self.expect(answer.is_ok(), format!("{call}: no answer within {limit:?}"));
        answer.ok()
    }
}

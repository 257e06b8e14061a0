//! Contract tests for adapters, as functions that any adapter's tests can call. Each returns the violations as text;
//! an empty list is a pass. They contain no assertions, so they work with every test framework.
//!
//! Common to all ports: errors are returned and never panics; a missing object is `None` and never an error;
//! repeating a read changes nothing; every call returns within a time limit.

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

/// Contract violations found so far.
#[derive(Debug, Default)]
struct Findings(Vec<String>);

impl Findings {
    fn expect(&mut self, condition: bool, violation: impl Into<String>) {
        if !condition {
            self.0.push(violation.into());
        }
    }

    /// The value of a call that must succeed within the limit.
    async fn value<T, E: Debug>(
        &mut self,
        call: &str,
        limit: Duration,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Option<T> {
        match self.answer(call, limit, answer).await? {
            Ok(value) => Some(value),
            Err(error) => {
                self.0.push(format!("{call}: unexpected error: {error:?}"));
                None
            }
        }
    }

    /// The result of a call that must return within the limit.
    async fn answer<T>(&mut self, call: &str, limit: Duration, answer: impl Future<Output = T>) -> Option<T> {
        let answer = tokio::time::timeout(limit, answer).await;
        self.expect(answer.is_ok(), format!("{call}: no answer within {limit:?}"));
        answer.ok()
    }
}

//! Accounts with delegated code (EIP-7702). Nodes accept one pending transaction of such an account, because its
//! balance can change without a transaction of its own. The window is then one, whatever is configured. Bytes that a
//! node refuses for this reason are resent unchanged.

use gapless_domain::SubState;
use std::time::Duration;

use tokio::time::Instant;

use super::submit::resend_lower;
use crate::lane::Lane;

/// A delegation can be set or removed at any time; a busy lane reads the code this often.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The last read of the account's code. Part of the preparation's state: a reload drops it.
#[derive(Debug, Default)]
pub(super) struct CodeCheck {
    at: Option<Instant>,
}

impl CodeCheck {
    fn is_recent(&self) -> bool {
        self.at.is_some_and(|at| at.elapsed() < CHECK_INTERVAL)
    }

    fn done(&mut self) {
        self.at = Some(Instant::now());
    }
}

/// Reads the account's code after each load and then every `CHECK_INTERVAL`, only if the configured window is above
/// one. If the request fails, the last known value stays.
pub(crate) async fn check(lane: &mut Lane) {
    let fresh = lane.prepare.code_check.is_recent();
    let known = lane.rows.sequence().is_some_and(|sequence| sequence.delegated);
    if fresh || (lane.configured_window() <= 1 && !known) {
        return;
    }
    lane.prepare.code_check.done();
    match lane.chain.connector.delegation(lane.address()).await {
        Ok(delegate) => set_delegated(lane, delegate.is_some()),
        Err(error) => {
            tracing::debug!(error = %error, "could not read the account's code; keeping the last known value");
        }
    }
}

/// A node refused a second pending transaction of this account, or misses a lower nonce. That is enough for a window
/// of one until the code is read again: the delegation may still be pending.
pub(crate) fn refused(lane: &mut Lane, index: usize) {
    lane.prepare.code_check.done();
    set_delegated(lane, true);
    resend_lower(lane, index);
}

/// An intent that was refused because of an earlier one is sent when it becomes the oldest, before its backoff ends.
pub(crate) fn advance(lane: &mut Lane) {
    if !lane.rows.sequence().is_some_and(|sequence| sequence.delegated) {
        return;
    }
    let Some(oldest) = lane.rows.open.iter_mut().find(|tx| tx.is_unmined()) else { return };
    if oldest.intent.sub_state == Some(SubState::DelegatedLimit)
        && !oldest.sending.is_accepted
        && !oldest.sending.was_first
    {
        oldest.sending.was_first = true;
        oldest.sending.due = Instant::now();
    }
}

fn set_delegated(lane: &mut Lane, delegated: bool) {
    if lane.rows.set_delegated(delegated) {
        let window = lane.window();
        tracing::info!(delegated, window, "the account's delegation changed");
    }
}

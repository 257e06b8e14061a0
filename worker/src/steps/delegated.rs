//! Accounts with delegated code (EIP-7702). Nodes take one transaction of such an account at a time, because its balance
//! can go by other ways: the window is one, whatever it is set to. What a node refuses for that goes out again, unchanged.

use std::time::Duration;

use tokio::time::Instant;

use super::submit::resend_lower;
use crate::lane::Lane;

/// Why it waits.
pub(crate) const LIMIT: &str = "delegated_limit";
/// An account can become delegated, or cease to be, at any time; a busy lane looks again this often.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Looks at the account's code: once after each load, then now and then. Only where a larger window is set; a window of
/// one needs no question. If the node cannot tell, what was known stays.
pub(crate) async fn look(lane: &mut Lane) {
    let fresh = lane.code_seen.is_some_and(|at| at.elapsed() < LOOK_AGAIN);
    let known = lane.sequence.as_ref().is_some_and(|sequence| sequence.delegated);
    if fresh || (lane.set_window() <= 1 && !known) {
        return;
    }
    lane.code_seen = Some(Instant::now());
    match lane.chain.connector.delegation(lane.address()).await {
        Ok(delegate) => note(lane, delegate.is_some()),
        Err(error) => {
            tracing::debug!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
                error = %error, "the account's code could not be read; going on with what is known");
        }
    }
}

/// A node says that this account has its one transaction already, or that a lower nonce is missing. Its word is enough for
/// a window of one until the code is looked at again: the delegation may be on its way.
pub(crate) fn refused(lane: &mut Lane, index: usize) {
    lane.code_seen = Some(Instant::now());
    note(lane, true);
    resend_lower(lane, index);
}

/// What was refused because of an earlier one goes out when it is the oldest, not when its back-off is over.
pub(crate) fn advance(lane: &mut Lane) {
    if !lane.sequence.as_ref().is_some_and(|sequence| sequence.delegated) {
        return;
    }
    let Some(oldest) = lane.open.iter_mut().find(|tx| tx.is_unmined()) else { return };
    if oldest.intent.sub_state.as_deref() == Some(LIMIT) && !oldest.is_taken && !oldest.was_first {
        oldest.was_first = true;
        oldest.due = Instant::now();
    }
}

fn note(lane: &mut Lane, delegated: bool) {
    let Some(sequence) = lane.sequence.as_mut().filter(|sequence| sequence.delegated != delegated) else {
        return;
    };
    sequence.delegated = delegated;
    let window = lane.window();
    tracing::info!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
        fencing_token = lane.lease.token().0, delegated, window, "the account's delegation changed");
}

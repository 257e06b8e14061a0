//! Operations on the simulated chain.

use super::History;
use super::op::Op;
use crate::ledger::{BASE_FEE, Estimates};

impl History<'_> {
    pub(super) fn apply_to_chain(&mut self, op: Op) {
        let mut ledger = self.parts.ledger.lock().unwrap();
        let line = match op {
            Op::Mine(most) => format!("a block of {}", ledger.mine(most)),
            Op::Reorg { depth, keep } => {
                let what =
                    if keep { "transactions return to the mempool" } else { "transactions are dropped" };
                format!("{} blocks are replaced, {what}", ledger.reorg(depth, keep))
            }
            Op::Evict => format!("the mempool drops {}", ledger.evict()),
            Op::Lag(blocks) => {
                ledger.lag = blocks;
                format!("the node lags {blocks} blocks")
            }
            Op::CountLag(blocks) => {
                ledger.count_lag = blocks;
                format!("the count at latest is {blocks} blocks behind")
            }
            Op::Forget(forgets) => {
                ledger.forgets = forgets;
                format!("there is {} index", if forgets { "no" } else { "an" })
            }
            Op::Unfunded(unfunded) => {
                ledger.is_unfunded = unfunded;
                format!("the account has {}", if unfunded { "nothing" } else { "enough" })
            }
            Op::BaseFee(times) => {
                ledger.base_fee = BASE_FEE * times;
                format!("the base fee is {times} times the usual one")
            }
            Op::Outside => format!("an external transaction consumes nonce {}", ledger.use_outside()),
            Op::OutsidePending => {
                format!("an external transaction is pending at nonce {}", ledger.queue_outside())
            }
            Op::Estimates(estimates) => {
                if ledger.estimates != Estimates::Reverted {
                    ledger.estimates = estimates;
                }
                format!("estimates: {estimates:?}")
            }
            Op::Backend(other) => {
                ledger.other = other;
                format!("the other backend: {other:?}")
            }
            Op::Outage(with) => {
                ledger.outage = with;
                format!("node rejects calls: {with:?}")
            }
            _ => return,
        };
        self.log.add(format!("   * {line}"));
    }
}

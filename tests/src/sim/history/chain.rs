//! What happens to the simulated chain.

use super::History;
use super::op::Op;
use crate::sim::ledger::{BASE_FEE, Estimates};

impl History<'_> {
    pub(super) fn befall_the_chain(&mut self, op: Op) {
        let mut ledger = self.parts.ledger.lock().unwrap();
        let told = match op {
            Op::Mine(most) => format!("a block of {}", ledger.mine(most)),
            Op::Reorg { depth, keep } => {
                let what = if keep { "back to the pool" } else { "and forgotten" };
                format!("{} blocks are replaced, {what}", ledger.reorg(depth, keep))
            }
            Op::Evict => format!("the pool forgets {}", ledger.evict()),
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
            Op::Broke(broke) => {
                ledger.is_broke = broke;
                format!("the account has {}", if broke { "nothing" } else { "enough" })
            }
            Op::BaseFee(times) => {
                ledger.base_fee = BASE_FEE * times;
                format!("the base fee is {times} times the usual one")
            }
            Op::Outside => format!("somebody else consumes nonce {}", ledger.use_outside()),
            Op::OutsidePending => {
                format!("somebody else's transaction waits at nonce {}", ledger.queue_outside())
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
            Op::Trouble(with) => {
                ledger.trouble = with;
                format!("trouble of the node: {with:?}")
            }
            _ => return,
        };
        self.log.add(format!("   * {told}"));
    }
}

//! Work by the clock: cron expressions from the configuration, one holder per duty in the whole fleet.

mod audit;
mod balances;
mod gauges;
mod prune;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use cron::Schedule;
use gapless::config::Config;
use gapless::domain::{ChainId, NodeId};
use gapless::observe::metrics as m;
use gapless::store::Store;
use tokio_util::sync::CancellationToken;

use crate::chains::Chain;
use crate::fleet::Fleet;

/// What a duty needs.
#[derive(Clone, Debug)]
struct Duty {
    name: &'static str,
    store: Store,
    node: NodeId,
    /// How long the holder keeps the duty between two signs of life.
    hold: Duration,
}

pub(crate) fn start(
    config: &Arc<Config>,
    store: &Store,
    node: &NodeId,
    fleet: &Arc<Fleet>,
    chains: HashMap<ChainId, Arc<Chain>>,
    stop: &CancellationToken,
) {
    let duty = |name| Duty { name, store: store.clone(), node: node.clone(), hold: config.lease.duration };
    let chains = Arc::new(chains);
    if let (Some(schedule), Some(retention)) = (schedule(&config.duties.prune), config.duties.retention) {
        let store = store.clone();
        tokio::spawn(duty("prune").run(schedule, stop.clone(), move || prune::run(store.clone(), retention)));
    }
    if let Some(schedule) = schedule(&config.duties.audit_nonces) {
        let (store, fleet, chains) = (store.clone(), fleet.clone(), chains.clone());
        let run = move || audit::run(store.clone(), fleet.clone(), chains.clone());
        tokio::spawn(duty("audit_nonces").run(schedule, stop.clone(), run));
    }
    if let Some(schedule) = schedule(&config.duties.check_balances) {
        let store = store.clone();
        let run = move || balances::run(store.clone(), chains.clone());
        tokio::spawn(duty("check_balances").run(schedule, stop.clone(), run));
    }
    tokio::spawn(gauges::run(store.clone(), stop.clone()));
}

/// The expression was checked when the configuration was read.
fn schedule(expression: &str) -> Option<Schedule> {
    expression.parse().ok()
}

impl Duty {
    /// At every scheduled time: whoever holds the duty runs it, once.
    async fn run<F, R>(self, schedule: Schedule, stop: CancellationToken, act: F)
    where
        F: Fn() -> R,
        R: Future<Output = anyhow::Result<()>>,
    {
        let mut last: DateTime<Utc> = Utc::now();
        loop {
            let Some(next) = schedule.after(&last).next() else { return };
            last = next;
            let wait = (next - Utc::now()).to_std().unwrap_or_default();
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            let result = match self.turn_is_ours(next).await {
                Ok(false) => continue,
                Ok(true) => act().await,
                Err(error) => Err(error.into()),
            };
            let outcome = if result.is_ok() { "ok" } else { "error" };
            metrics::counter!(m::DUTY_RUNS_TOTAL, "duty" => self.name, "result" => outcome).increment(1);
            if let Err(error) = result {
                tracing::warn!(
                    duty = self.name,
                    error = format!("{error:#}"),
                    "a duty failed; next time again"
                );
            }
        }
    }

    async fn turn_is_ours(&self, scheduled: DateTime<Utc>) -> Result<bool, gapless::store::StoreError> {
        Ok(self.store.hold_duty(self.name, &self.node, self.hold).await?
            && self.store.take_run(self.name, &self.node, scheduled).await?)
    }
}

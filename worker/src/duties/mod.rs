//! Scheduled duties: cron expressions from the configuration; each duty is run by one worker of the fleet at a time.

mod audit;
mod balances;
mod gauges;
mod prune;
mod queues;
mod wake;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use cron::Schedule;
use gapless_config::Config;
use gapless_domain::{ChainId, WorkerId};
use gapless_store::{Store, StoreError};
use gapless_telemetry::metrics as m;
use tokio_util::sync::CancellationToken;

use crate::chains::Chain;
use crate::fleet::Fleet;

/// A scheduled duty.
#[derive(Clone, Debug)]
struct Duty {
    /// Metric label.
    name: &'static str,
    /// Name of its lease: duties that need keys have one holder per set of chains and keys.
    lease: String,
    store: Store,
    worker_id: WorkerId,
    /// Duration of the duty's lease.
    lease_duration: Duration,
}

/// Retry pause while the database is unreachable.
const RETRY: Duration = Duration::from_secs(1);

pub(crate) fn start(
    config: &Arc<Config>,
    store: &Store,
    worker_id: &WorkerId,
    fleet: &Arc<Fleet>,
    chains: HashMap<ChainId, Arc<Chain>>,
    stop: &CancellationToken,
) {
    let duty = |name: &'static str, lease: String| Duty {
        name,
        lease,
        store: store.clone(),
        worker_id: worker_id.clone(),
        lease_duration: config.lease.duration,
    };
    let chain_ids = chains.keys().copied().collect();
    let chains = Arc::new(chains);
    if let (Some(schedule), Some(retention)) = (schedule(&config.duties.prune), config.duties.retention) {
        let store = store.clone();
        tokio::spawn(
            duty("prune", "prune".to_owned())
                .run(schedule, stop.clone(), move || prune::run(store.clone(), retention)),
        );
    }
    if let Some(schedule) = schedule(&config.duties.audit_nonces) {
        let lease = format!("audit_nonces:{}", fleet.serves());
        let (store, fleet, chains) = (store.clone(), fleet.clone(), chains.clone());
        let run = move || audit::run(store.clone(), fleet.clone(), chains.clone());
        tokio::spawn(duty("audit_nonces", lease).run(schedule, stop.clone(), run));
    }
    tokio::spawn(queues::run(fleet.clone(), stop.clone()));
    tokio::spawn(wake::run(store.clone(), worker_id.clone(), fleet.clone(), chains.clone(), stop.clone()));
    if let Some(schedule) = schedule(&config.duties.check_balances) {
        let store = store.clone();
        let run = move || balances::run(store.clone(), chains.clone());
        tokio::spawn(duty("check_balances", "check_balances".to_owned()).run(schedule, stop.clone(), run));
    }
    tokio::spawn(gauges::run(store.clone(), chain_ids, stop.clone()));
}

/// The expression was checked when the configuration was read.
fn schedule(expression: &str) -> Option<Schedule> {
    expression.parse().ok()
}

impl Duty {
    /// At every scheduled time the holder of the duty's lease runs it once.
    async fn run<F, R>(self, schedule: Schedule, stop: CancellationToken, act: F)
    where
        F: Fn() -> R,
        R: Future<Output = anyhow::Result<()>>,
    {
        loop {
            let (next, wait) = match self.next_time(&schedule).await {
                Ok(Some(next)) => next,
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(duty = self.name, error = %error, "could not read the database clock");
                    (None, RETRY)
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            let Some(next) = next else { continue };
            let result = match self.claim_run(next).await {
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
                    "duty failed; it runs again at its next scheduled time"
                );
            }
        }
    }

    /// The next scheduled time and the time until then, by the database clock. `None`: the schedule has no further
    /// time.
    async fn next_time(
        &self,
        schedule: &Schedule,
    ) -> Result<Option<(Option<DateTime<Utc>>, Duration)>, StoreError> {
        let now = self.store.now().await?;
        let next = schedule.after(&now).next();
        Ok(next.map(|next| (Some(next), (next - now).to_std().unwrap_or_default())))
    }

    async fn claim_run(&self, scheduled: DateTime<Utc>) -> Result<bool, StoreError> {
        Ok(self.store.hold_duty(&self.lease, &self.worker_id, self.lease_duration).await?
            && self.store.take_run(&self.lease, &self.worker_id, scheduled).await?)
    }
}

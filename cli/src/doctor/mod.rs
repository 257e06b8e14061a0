//! `gapless doctor`: checks a deployment from configuration to chain, and prints what is wrong and what to do.
//!
//! Read-only. Every part is examined with the code that the programs use for it. What does not answer in time is
//! reported as such, never as fine.

mod configuration;
mod database;
mod listeners;
mod nodes;
mod report;
mod signers;
mod submitters;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use gapless_config::ChainConfig;

use self::report::{Area, Check, Report, Subject};

/// Limit of one request to a node, a signer, a listener or the database.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Limit of one area, for a deployment whose every part is slow.
const AREA_LIMIT: Duration = Duration::from_secs(40);

pub async fn run(config: Option<&Path>, json: bool) -> Result<ExitCode> {
    let report = examine(config).await;
    report.print(json);
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One line for each problem, for other commands.
pub(crate) async fn problems(config: &Path) -> Vec<String> {
    examine(Some(config)).await.problems()
}

async fn examine(path: Option<&Path>) -> Report {
    let (mut checks, config) = configuration::check(path);
    let Some(config) = config else {
        let others = Area::ALL.into_iter().filter(|area| *area != Area::Configuration);
        checks.extend(
            others.map(|area| subject_of(area).not_checked("all", "there is no valid configuration")),
        );
        return Report { checks };
    };
    let (found, database) = limited(Area::Database, database::check(&config)).await;
    checks.extend(found);
    let (of_nodes, (of_signers, keys), of_listeners) = tokio::join!(
        limited(Area::Nodes, async { (nodes::check(&config, &database.genesis).await, ()) }),
        limited(Area::Signers, signers::check(&config, &database.submitters)),
        limited(Area::Listeners, async { (listeners::check(&config, database.has_api_keys).await, ()) }),
    );
    checks.extend(of_nodes.0.into_iter().chain(of_signers).chain(of_listeners.0));
    let balances = async { (submitters::check(&config, &database, &keys).await, ()) };
    checks.extend(limited(Area::Submitters, balances).await.0);
    Report { checks }
}

/// An area as the subject of a check.
fn subject_of(area: Area) -> Subject {
    Subject::new(area, area.as_str())
}

/// The result of an area within its time limit, or that it took longer.
async fn limited<T: Default>(area: Area, work: impl Future<Output = (Vec<Check>, T)>) -> (Vec<Check>, T) {
    match tokio::time::timeout(AREA_LIMIT, work).await {
        Ok(done) => done,
        Err(_) => {
            let message = format!("not finished after {AREA_LIMIT:?}");
            let slow = subject_of(area).problem("all", message, "find out which part of it does not answer");
            (vec![slow], T::default())
        }
    }
}

/// The chain with a request timeout that is short enough to wait for.
fn with_short_timeout(chain: &ChainConfig) -> ChainConfig {
    let mut chain = chain.clone();
    chain.rpc.timeout = chain.rpc.timeout.min(REQUEST_LIMIT);
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_area_that_hangs_is_a_problem() {
        let (checks, ()) = limited(Area::Nodes, std::future::pending()).await;
        assert!(!Report { checks }.is_sound());
    }
}

//! Looks at the rows all the while, as somebody who operates this would: what moves, and what says why it does not.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::checker::Sample;
use super::seats::Crew;
use super::{Arena, evidence};

const EVERY: Duration = Duration::from_secs(1);
/// A look that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Sampler(Mutex<Vec<Sample>>);

impl Sampler {
    pub(super) fn samples(&self) -> Vec<Sample> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// For ever. Workers of the harness's own promise nothing about what they show.
pub(super) async fn watch(arena: &Arena) {
    loop {
        tokio::time::sleep(EVERY).await;
        if !matches!(arena.options.crew, Crew::Product) {
            continue;
        }
        let look = tokio::time::timeout(PATIENCE, evidence::visible(arena.stack.db())).await;
        // The database is away: there is nothing to see.
        let Ok(Ok(rows)) = look else { continue };
        let at = arena.begun.elapsed().as_secs_f64();
        let samples = rows.into_iter().map(|row| Sample {
            at,
            submitter: row.submitter,
            open: row.open.unsigned_abs(),
            progress: row.progress,
            reasons: row.reasons,
        });
        arena.sampler.0.lock().unwrap_or_else(PoisonError::into_inner).extend(samples);
    }
}

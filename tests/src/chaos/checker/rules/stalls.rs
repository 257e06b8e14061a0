//! Submitters that have work, do not move, and do not say so.

use super::super::{Evidence, Sample};

/// So long may anybody stand still without a word.
const LONGEST_SILENCE_S: f64 = 10.0;
/// Nobody could look for so long, because the database was away: what was before does not count.
const LONGEST_GAP_S: f64 = 3.0;

pub(super) fn silent(evidence: &Evidence) -> Vec<String> {
    let mut found = Vec::new();
    for submitter in &evidence.submitters {
        // The first sample of the present silence, and whether it has been reported.
        let mut since: Option<(&Sample, bool)> = None;
        let mut last_at = f64::NEG_INFINITY;
        for sample in evidence.samples.iter().filter(|sample| sample.submitter == *submitter) {
            let is_silent = sample.open > 0 && sample.reasons.is_empty();
            let lasts = is_silent && sample.at - last_at <= LONGEST_GAP_S;
            since = match since {
                Some((first, told)) if lasts && first.progress == sample.progress => Some((first, told)),
                _ => is_silent.then_some((sample, false)),
            };
            if let Some((first, told @ false)) = &mut since
                && sample.at - first.at > LONGEST_SILENCE_S
            {
                *told = true;
                found.push(format!(
                    "{submitter}: {} open, nothing moved from {:.0} s to {:.0} s of the run, and no reason is given: {}",
                    sample.open, first.at, sample.at, sample.progress
                ));
            }
            last_at = sample.at;
        }
    }
    found
}

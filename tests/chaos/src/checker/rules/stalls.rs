//! Submitters with work and without progress that do not report it.

use super::super::{Evidence, Sample};

/// Longest time without progress before a state and an event must report it.
const LONGEST_SILENCE_S: f64 = 10.0;
/// Workers update these gauges every 10 s, and a sample is taken up to 2 s later.
const LONGEST_UNMEASURED_S: f64 = LONGEST_SILENCE_S + 12.0;
/// A longer gap between samples (database unreachable) restarts the measurement.
const LONGEST_GAP_S: f64 = 3.0;

/// A submitter without an owner cannot report anything, so each takeover extends the limit by a lease (2 s), its skew
/// and a claim. A takeover is not progress, and the extension is limited.
const TAKEOVER_S: f64 = 3.0;
const MOST_EXCUSED_S: f64 = 20.0;

/// A reason from the API, the metrics of which one must be active, and the events of which one must have been emitted.
const SHOWN_BY: [(&str, &[&str], &[&str]); 11] = [
    ("PROTECT", &["gapless_protected_submitters"], &["submitter.protected"]),
    ("SUSPECT", &["gapless_suspect_submitters"], &["submitter.suspect"]),
    ("STUCK", &["gapless_stuck_transactions"], &["tx.stuck"]),
    ("BLOCKED funds", &["gapless_lane_blocked_seconds funds"], &["submitter.blocked"]),
    ("BLOCKED fee", &["gapless_lane_blocked_seconds fee"], &["submitter.blocked"]),
    ("BLOCKED node", &["gapless_lane_blocked_seconds node"], &["submitter.blocked"]),
    ("BLOCKED signer", &["gapless_lane_blocked_seconds signer"], &["submitter.blocked"]),
    ("IN_FLIGHT waiting_node", NODE, &["submitter.blocked"]),
    ("SUBMITTED waiting_node", NODE, &["submitter.blocked"]),
    ("TRACKING waiting_node", NODE, &["submitter.blocked"]),
    // A shared key never enters PROTECT; its external use is reported once it is final.
    ("SUBMITTED nonce_used", &["gapless_suspect_submitters"], &["submitter.suspect"]),
];
const NODE: &[&str] = &["gapless_rpc_node_healthy", "gapless_lane_blocked_seconds node"];

/// One of the ways to report a stall.
struct Channel {
    finding: &'static str,
    longest_s: f64,
    /// `None`: unknown at this sample.
    shows: fn(&Sample) -> Option<bool>,
}

const CHANNELS: [Channel; 3] = [
    Channel { finding: "no state gives a reason", longest_s: LONGEST_SILENCE_S, shows: by_state },
    Channel { finding: "no metric shows it", longest_s: LONGEST_UNMEASURED_S, shows: by_metric },
    Channel { finding: "no event reports it", longest_s: LONGEST_SILENCE_S, shows: by_event },
];

fn by_state(sample: &Sample) -> Option<bool> {
    sample.reasons.as_ref().map(|reasons| !reasons.is_empty())
}

fn by_metric(sample: &Sample) -> Option<bool> {
    let (reasons, metrics) = (sample.reasons.as_ref()?, sample.metrics.as_ref()?);
    let shown = |wanted: &[&str]| metrics.iter().any(|metric| wanted.contains(&metric.as_str()));
    Some(SHOWN_BY.iter().any(|(reason, wanted, _)| has(reasons, reason) && shown(wanted)))
}

fn by_event(sample: &Sample) -> Option<bool> {
    let reasons = sample.reasons.as_ref()?;
    let emitted = |wanted: &[&str]| sample.events.iter().any(|event| wanted.contains(&event.as_str()));
    Some(SHOWN_BY.iter().any(|(reason, _, wanted)| has(reasons, reason) && emitted(wanted)))
}

fn has(reasons: &[String], wanted: &str) -> bool {
    reasons.iter().any(|reason| reason == wanted)
}

pub(super) fn silent(evidence: &Evidence) -> Vec<String> {
    let pairs = evidence.submitters.iter().flat_map(|one| CHANNELS.iter().map(move |channel| (one, channel)));
    pairs.flat_map(|(submitter, channel)| silences(evidence, submitter, channel)).collect()
}

fn excused(first: &Sample, now: &Sample) -> f64 {
    (now.token.saturating_sub(first.token) as f64 * TAKEOVER_S).min(MOST_EXCUSED_S)
}

fn silences(evidence: &Evidence, submitter: &str, channel: &Channel) -> Vec<String> {
    let mut found = Vec::new();
    // The first sample without progress and without a report, and whether this is already in `found`.
    let mut since: Option<(&Sample, bool)> = None;
    let mut last: Option<&Sample> = None;
    for sample in evidence.samples.iter().filter(|sample| sample.submitter == submitter) {
        let shows = (channel.shows)(sample);
        let lasts = last.is_some_and(|last| {
            sample.at - last.at <= LONGEST_GAP_S && last.progress == sample.progress && last.open > 0
        });
        since = match since.filter(|_| lasts && shows != Some(true)) {
            _ if sample.open == 0 => None,
            Some(known) => Some(known),
            None => Some((sample, false)),
        };
        if let Some((first, found_before @ false)) = &mut since
            && shows == Some(false)
            && sample.at - first.at > channel.longest_s + excused(first, sample)
        {
            *found_before = true;
            found.push(format!(
                "{submitter}: {} open, no progress from {:.0} s to {:.0} s of the run, and {}: {} {:?} {:?} {:?}",
                sample.open,
                first.at,
                sample.at,
                channel.finding,
                sample.progress,
                sample.reasons.as_deref().unwrap_or_default(),
                sample.metrics.as_deref().unwrap_or_default(),
                sample.events
            ));
        }
        last = Some(sample);
    }
    found
}

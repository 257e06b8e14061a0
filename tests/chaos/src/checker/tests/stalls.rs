//! Stalls that are not reported by a state, a metric or an event.

use super::*;

/// One sample per second.
fn samples(
    seconds: std::ops::RangeInclusive<u32>,
    progress: &str,
    (reasons, metrics, events): (&[&str], &[&str], &[&str]),
) -> Vec<Sample> {
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    let sample = |at: u32| Sample {
        at: at.into(),
        submitter: OURS.into(),
        open: 1,
        progress: progress.into(),
        token: 1,
        reasons: Some(texts(reasons)),
        metrics: Some(texts(metrics)),
        events: texts(events),
    };
    seconds.map(sample).collect()
}

const NOTHING: (&[&str], &[&str], &[&str]) = (&[], &[], &[]);
const BLOCKED: (&[&str], &[&str], &[&str]) =
    (&["BLOCKED funds"], &["gapless_lane_blocked_seconds funds"], &["submitter.blocked"]);

fn with(samples: Vec<Sample>) -> Evidence {
    Evidence { samples, ..sound() }
}

fn findings_of(samples: Vec<Sample>) -> Vec<String> {
    let findings = found(&with(samples));
    assert!(findings.iter().all(|(rule, _)| *rule == Rule::SilentStall), "{findings:?}");
    findings.into_iter().map(|(_, what)| what).collect()
}

#[test]
fn an_unreported_stall_is_found_once_per_channel() {
    let findings = findings_of(samples(0..=30, "SUBMITTED 0", NOTHING));
    assert_eq!(
        findings[0],
        "0xaa: 1 open, no progress from 0 s to 11 s of the run, and no state gives a reason: SUBMITTED 0 [] [] []"
    );
    assert!(findings[1].contains("from 0 s to 23 s of the run, and no metric shows it"), "{findings:?}");
    assert!(findings[2].contains("from 0 s to 11 s of the run, and no event reports it"), "{findings:?}");
    assert_eq!(findings.len(), 3);
    // A reason that has disappeared does not count for later samples.
    let findings = findings_of([samples(0..=5, "x", BLOCKED), samples(6..=17, "x", NOTHING)].concat());
    assert_eq!(findings.len(), 2, "state and event: {findings:?}");
}

#[test]
fn each_channel_must_report_a_stall() {
    let (reasons, metrics, events) = BLOCKED;
    let findings = findings_of(samples(0..=30, "x", (reasons, metrics, &[])));
    assert!(findings.len() == 1 && findings[0].contains("no event reports it"), "{findings:?}");
    let findings = findings_of(samples(0..=30, "x", (reasons, &[], events)));
    assert!(findings.len() == 1 && findings[0].contains("no metric shows it"), "{findings:?}");
    let findings = findings_of(samples(0..=30, "x", (&[], metrics, events)));
    assert!(findings[0].contains("no state gives a reason"), "{findings:?}");
    // An alarm for another reason does not count.
    let findings =
        findings_of(samples(0..=30, "x", (reasons, &["gapless_lane_blocked_seconds node"], &["tx.stuck"])));
    assert_eq!(findings.len(), 2, "{findings:?}");
    // A reason without a metric and an event.
    let findings = findings_of(samples(0..=30, "x", (&["QUEUED waiting_earlier"], metrics, events)));
    assert_eq!(findings.len(), 2, "{findings:?}");
}

#[test]
fn a_takeover_is_not_progress_and_extends_the_limit() {
    let with_owners = |length: u32, every: u32| {
        let mut samples = samples(0..=length, "IN_FLIGHT 3", NOTHING);
        samples.iter_mut().zip(0..).for_each(|(sample, at): (_, u32)| sample.token = u64::from(at / every));
        samples
    };
    let none: Vec<String> = Vec::new();
    // A takeover after 8 s adds 3 s.
    assert_eq!(findings_of(with_owners(13, 8)), none);
    assert!(findings_of(with_owners(14, 8))[0].contains("to 14 s"));
    // A takeover every second adds at most 20 s.
    assert_eq!(findings_of(with_owners(30, 1)), none);
    assert!(findings_of(with_owners(31, 1))[0].contains("to 31 s"));
}

#[test]
fn progress_a_report_no_work_or_no_data_is_not_a_stall() {
    let none: Vec<String> = Vec::new();
    assert_eq!(
        findings_of([samples(0..=9, "x", NOTHING), samples(10..=19, "y", NOTHING)].concat()),
        none,
        "progress"
    );
    assert_eq!(findings_of(samples(0..=60, "x", BLOCKED)), none, "reported");
    let mut idle = samples(0..=60, "x", NOTHING);
    idle.iter_mut().for_each(|sample| sample.open = 0);
    assert_eq!(findings_of(idle), none, "no work");
    let away = [samples(0..=8, "x", NOTHING), samples(13..=20, "x", NOTHING)].concat();
    assert_eq!(findings_of(away), none, "the database was unreachable");
    let mut unasked = samples(0..=60, "x", NOTHING);
    unasked.iter_mut().for_each(|sample| sample.reasons = None);
    assert_eq!(findings_of(unasked), none, "no API responded");
    // One response without a reason, after many missing ones, is enough.
    let mut late = samples(0..=30, "x", NOTHING);
    late[..30].iter_mut().for_each(|sample| sample.reasons = None);
    assert_eq!(findings_of(late).len(), 3);
}

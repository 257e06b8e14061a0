//! Standing still without a word, in each of the three ways to say one.

use super::*;

/// A look every second from the first to the last.
fn looks(
    seconds: std::ops::RangeInclusive<u32>,
    progress: &str,
    (reasons, metrics, events): (&[&str], &[&str], &[&str]),
) -> Vec<Sample> {
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    let look = |at: u32| Sample {
        at: at.into(),
        submitter: OURS.into(),
        open: 1,
        progress: progress.into(),
        token: 1,
        reasons: Some(texts(reasons)),
        metrics: Some(texts(metrics)),
        events: texts(events),
    };
    seconds.map(look).collect()
}

const NOTHING: (&[&str], &[&str], &[&str]) = (&[], &[], &[]);
const BLOCKED: (&[&str], &[&str], &[&str]) =
    (&["BLOCKED funds"], &["gapless_lane_blocked_seconds funds"], &["submitter.blocked"]);

fn with(samples: Vec<Sample>) -> Evidence {
    Evidence { samples, ..sound() }
}

fn complaints(samples: Vec<Sample>) -> Vec<String> {
    let said = found(&with(samples));
    assert!(said.iter().all(|(rule, _)| *rule == Rule::SilentStall), "{said:?}");
    said.into_iter().map(|(_, what)| what).collect()
}

#[test]
fn whoever_stands_still_without_a_word_is_found_once_in_each_way() {
    let said = complaints(looks(0..=30, "SUBMITTED 0", NOTHING));
    assert_eq!(
        said[0],
        "0xaa: 1 open, nothing moved from 0 s to 11 s of the run, and no state says why: SUBMITTED 0 [] [] []"
    );
    assert!(said[1].contains("from 0 s to 23 s of the run, and no metric shows it"), "{said:?}");
    assert!(said[2].contains("from 0 s to 11 s of the run, and no event told of it"), "{said:?}");
    assert_eq!(said.len(), 3);
    // A word that came and went again does not count for later.
    let said = complaints([looks(0..=5, "x", BLOCKED), looks(6..=17, "x", NOTHING)].concat());
    assert_eq!(said.len(), 2, "state and event: {said:?}");
}

#[test]
fn a_stall_that_only_one_way_shows_is_found_by_the_others() {
    let (reasons, metrics, events) = BLOCKED;
    let said = complaints(looks(0..=30, "x", (reasons, metrics, &[])));
    assert!(said.len() == 1 && said[0].contains("no event told of it"), "{said:?}");
    let said = complaints(looks(0..=30, "x", (reasons, &[], events)));
    assert!(said.len() == 1 && said[0].contains("no metric shows it"), "{said:?}");
    let said = complaints(looks(0..=30, "x", (&[], metrics, events)));
    assert!(said[0].contains("no state says why"), "{said:?}");
    // The alarm of somebody else, or for another reason, shows nothing.
    let said =
        complaints(looks(0..=30, "x", (reasons, &["gapless_lane_blocked_seconds node"], &["tx.stuck"])));
    assert_eq!(said.len(), 2, "{said:?}");
    // A reason that no metric and no event belongs to.
    let said = complaints(looks(0..=30, "x", (&["QUEUED waiting_earlier"], metrics, events)));
    assert_eq!(said.len(), 2, "{said:?}");
}

#[test]
fn another_owner_of_the_lease_is_no_movement_and_excuses_a_takeover() {
    let with_owners = |length: u32, every: u32| {
        let mut samples = looks(0..=length, "IN_FLIGHT 3", NOTHING);
        samples.iter_mut().zip(0..).for_each(|(sample, at): (_, u32)| sample.token = u64::from(at / every));
        samples
    };
    let none: Vec<String> = Vec::new();
    // A takeover after 8 s excuses 3 s, and no more.
    assert_eq!(complaints(with_owners(13, 8)), none);
    assert!(complaints(with_owners(14, 8))[0].contains("to 14 s"));
    // Owners that come and go every second excuse 20 s.
    assert_eq!(complaints(with_owners(30, 1)), none);
    assert!(complaints(with_owners(31, 1))[0].contains("to 31 s"));
}

#[test]
fn whoever_moves_or_shows_why_not_or_has_no_work_or_could_not_be_seen_is_in_order() {
    let none: Vec<String> = Vec::new();
    assert_eq!(
        complaints([looks(0..=9, "x", NOTHING), looks(10..=19, "y", NOTHING)].concat()),
        none,
        "it moves"
    );
    assert_eq!(complaints(looks(0..=60, "x", BLOCKED)), none, "it shows why");
    let mut idle = looks(0..=60, "x", NOTHING);
    idle.iter_mut().for_each(|sample| sample.open = 0);
    assert_eq!(complaints(idle), none, "it has nothing to do");
    let away = [looks(0..=8, "x", NOTHING), looks(13..=20, "x", NOTHING)].concat();
    assert_eq!(complaints(away), none, "the database was away");
    let mut unasked = looks(0..=60, "x", NOTHING);
    unasked.iter_mut().for_each(|sample| sample.reasons = None);
    assert_eq!(complaints(unasked), none, "nobody could be asked");
    // One answer that says nothing, after many that could not be had, is enough.
    let mut late = looks(0..=30, "x", NOTHING);
    late[..30].iter_mut().for_each(|sample| sample.reasons = None);
    assert_eq!(complaints(late).len(), 3);
}

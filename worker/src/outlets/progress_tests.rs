use gapless_domain::{Address, ChainId, SubmitterKey};
use gapless_store::events::LoggedEvent;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use uuid::Uuid;

const SECOND: Duration = Duration::from_secs(1);

fn submitter(number: u8) -> Sequence {
    Some(SubmitterKey { chain_id: ChainId(1), address: Address::repeat_byte(number) })
}

fn event(position: i64, sequence: Sequence) -> Arc<FeedEvent> {
    Arc::new(FeedEvent::from(LoggedEvent {
        position,
        id: Uuid::from_u128(position.unsigned_abs().into()),
        submitter: sequence,
        tx_id: None,
        request_id: None,
        kind: "submitter.released".to_owned(),
        data: serde_json::value::to_raw_value(&serde_json::json!({"reason": "x"})).unwrap(),
        created_at: chrono::DateTime::from_timestamp(1_700_000_000, 0).unwrap(),
    }))
}

fn delivered() -> Attempt {
    Attempt { result: AttemptResult::Delivered, status_code: Some(200), duration: SECOND }
}

fn failed() -> Attempt {
    let result = AttemptResult::Failed { error: "no".to_owned(), retry_after: None };
    Attempt { result, status_code: Some(500), duration: SECOND }
}

fn progress(waits: &[u64]) -> Progress {
    let schedule = RetrySchedule::new(waits.iter().map(|wait| SECOND * *wait as u32).collect()).unwrap();
    Progress::new(schedule, 32, 0, Vec::new(), Instant::now())
}

/// What is sent next.
fn sent(progress: &mut Progress, now: Instant) -> (Sequence, Arc<FeedEvent>) {
    match progress.next(now) {
        Some(Next::Send(sequence, Job::Event(event))) => (sequence, event),
        other => panic!("{other:?}"),
    }
}

fn finish(
    progress: &mut Progress,
    (sequence, event): (Sequence, Arc<FeedEvent>),
    attempt: Attempt,
    now: Instant,
) {
    progress.done(sequence, Job::Event(event), attempt, now);
}

#[test]
fn one_event_of_a_submitter_is_under_way_at_a_time_and_others_do_not_wait() {
    let (mut progress, now) = (progress(&[0]), Instant::now());
    for (position, number) in [(1, 1), (2, 1), (3, 2)] {
        progress.offer(event(position, submitter(number)), true, now);
    }
    let first = sent(&mut progress, now);
    let other = sent(&mut progress, now);
    assert_eq!((first.1.event.position, other.1.event.position), (1, 3));
    assert!(progress.next(now).is_none(), "2 waits for 1");
    finish(&mut progress, other, delivered(), now);
    let write = progress.take_write("e", now).unwrap();
    assert_eq!(write.cursor, None, "1 is still under way");
    assert_eq!(write.deliveries.len(), 1);
    finish(&mut progress, first, delivered(), now);
    assert_eq!(sent(&mut progress, now).1.event.position, 2);
    assert_eq!(progress.take_write("e", now).unwrap().cursor.unwrap().position, 1);
}

#[test]
fn a_failed_event_holds_its_submitter_back_and_not_the_cursor() {
    let (mut progress, now) = (progress(&[0, 10, 10]), Instant::now());
    for (position, number) in [(1, 1), (2, 1), (3, 2)] {
        progress.offer(event(position, submitter(number)), true, now);
    }
    let first = sent(&mut progress, now);
    finish(&mut progress, first, failed(), now);
    let other = sent(&mut progress, now);
    finish(&mut progress, other, delivered(), now);
    let write = progress.take_write("e", now).unwrap();
    assert_eq!(write.cursor.unwrap().position, 3);
    assert_eq!((write.behind[0].position, write.behind[0].attempts), (0, 1));
    assert_eq!(write.health.succeeded, Some(true));
    // What comes meanwhile is not kept in memory.
    progress.offer(event(4, submitter(1)), true, now);
    assert!(progress.next(now).is_none());
    let later = now + 12 * SECOND;
    assert!(matches!(progress.next(later), Some(Next::Fetch(who, 0, 1)) if who == submitter(1)));
    progress.fetched(
        submitter(1),
        vec![event(1, submitter(1)), event(2, submitter(1)), event(4, submitter(1))],
        4,
    );
    for position in [1, 2, 4] {
        let next = sent(&mut progress, later);
        assert_eq!(next.1.event.position, position);
        finish(&mut progress, next, delivered(), later);
    }
    let write = progress.take_write("e", later).unwrap();
    assert_eq!(write.caught_up, [submitter(1)]);
    assert_eq!(write.cursor.unwrap().position, 4);
    assert!(progress.queues.is_empty());
}

#[test]
fn after_the_last_attempt_the_next_event_continues() {
    let (mut progress, mut now) = (progress(&[0, 1]), Instant::now());
    progress.offer(event(1, submitter(1)), true, now);
    progress.offer(event(2, submitter(1)), true, now);
    let first = sent(&mut progress, now);
    finish(&mut progress, first, failed(), now);
    now += 2 * SECOND;
    assert!(matches!(progress.next(now), Some(Next::Fetch(_, 0, 1))));
    progress.fetched(submitter(1), vec![event(1, submitter(1)), event(2, submitter(1))], 2);
    let again = sent(&mut progress, now);
    let state = progress.done(again.0, Job::Event(again.1), failed(), now);
    assert_eq!(state, DeliveryState::Exhausted);
    assert_eq!(sent(&mut progress, now).1.event.position, 2);
    let write = progress.take_write("e", now).unwrap();
    assert_eq!(write.deliveries[0].state, DeliveryState::Exhausted);
    assert_eq!(write.deliveries[0].attempts, 2);
    assert_eq!(write.behind[0].attempts, 0, "the next event begins with its first attempt");
}

#[test]
fn attempts_are_counted_over_a_restart_also_if_the_common_cursor_is_at_the_same_place() {
    let schedule = RetrySchedule::new(vec![Duration::ZERO, SECOND]).unwrap();
    let now = Instant::now();
    let row = BehindRow { sequence: submitter(1), position: 1, attempts: 1, due_in: Duration::ZERO };
    let mut progress = Progress::new(schedule, 4, 1, vec![row], now);
    assert!(matches!(progress.next(now), Some(Next::Fetch(_, 1, 1))));
    progress.fetched(submitter(1), vec![event(2, submitter(1))], 2);
    progress.take_write("e", now);
    progress.offer(event(2, submitter(1)), true, now);
    let (who, next) = sent(&mut progress, now);
    assert_eq!(progress.done(who, Job::Event(next), failed(), now), DeliveryState::Exhausted);
}

#[test]
fn a_submitter_with_more_events_than_fit_is_read_from_the_log_later() {
    let (mut progress, now) = (progress(&[0]), Instant::now());
    let many = MAX_QUEUED as i64 + 10;
    for position in 1..=many {
        progress.offer(event(position, submitter(1)), true, now);
    }
    assert_eq!(progress.buffered, MAX_QUEUED);
    for position in 1..=MAX_QUEUED as i64 {
        let next = sent(&mut progress, now);
        assert_eq!(next.1.event.position, position);
        finish(&mut progress, next, delivered(), now);
    }
    assert!(matches!(progress.next(now), Some(Next::Fetch(_, after, _)) if after == MAX_QUEUED as i64));
    assert_eq!(progress.buffered, 0);
}

#[test]
fn a_replay_that_fails_does_not_hold_new_events_back() {
    let (mut progress, now) = (progress(&[0, 5]), Instant::now());
    let replay = Replay {
        no: 7,
        event_id: Uuid::from_u128(9),
        position: Some(9),
        sequence: submitter(1),
        attempts: 0,
        due_in: Duration::ZERO,
    };
    progress.skip_to(9);
    progress.add_replays(vec![replay.clone(), replay.clone()], now);
    assert_eq!(progress.loaded_replays(), 1);
    progress.offer(event(10, submitter(1)), true, now);
    let Some(Next::Send(who, Job::Replay(sent_replay))) = progress.next(now) else { panic!("no replay") };
    assert_eq!(progress.done(who, Job::Replay(sent_replay), failed(), now), DeliveryState::Retrying);
    assert_eq!(sent(&mut progress, now).1.event.position, 10);
    let write = progress.take_write("e", now).unwrap();
    assert!(matches!(write.replays[..], [ReplayWrite::Retry { attempts: 1, .. }]));
    assert_eq!(write.cursor.unwrap().position, 9);
}

/// Otherwise a later event could arrive before an earlier one.
#[test]
fn a_replay_of_what_was_not_delivered_yet_makes_it_due_in_its_turn() {
    let (mut progress, now) = (progress(&[0, 3_600, 3_600]), Instant::now());
    for position in [1, 2] {
        progress.offer(event(position, submitter(1)), true, now);
    }
    let first = sent(&mut progress, now);
    finish(&mut progress, first, failed(), now);
    assert!(progress.next(now).is_none());
    let replay = |no, position| Replay {
        no,
        event_id: Uuid::from_u128(position),
        position: Some(position as i64),
        sequence: submitter(1),
        attempts: 0,
        due_in: Duration::ZERO,
    };
    progress.add_replays(vec![replay(1, 2), replay(2, 1)], now);
    assert!(matches!(progress.next(now), Some(Next::Fetch(_, 0, 1))));
    progress.fetched(submitter(1), vec![event(1, submitter(1))], 1);
    let again = sent(&mut progress, now);
    assert_eq!(again.1.event.position, 1);
    finish(&mut progress, again, delivered(), now);
    let write = progress.take_write("e", now).unwrap();
    assert_eq!(write.replays, [ReplayWrite::Done { no: 1 }, ReplayWrite::Done { no: 2 }]);
}

#[test]
fn a_delivery_that_takes_long_does_not_hold_the_cursor_back() {
    let (mut progress, now) = (progress(&[0]), Instant::now());
    progress.offer(event(1, submitter(1)), true, now);
    progress.offer(event(2, submitter(2)), true, now);
    let slow = sent(&mut progress, now);
    let other = sent(&mut progress, now);
    finish(&mut progress, other, delivered(), now);
    let write = progress.take_write("e", now + 2 * SLOW).unwrap();
    assert_eq!(write.cursor.unwrap().position, 2);
    assert_eq!((write.behind[0].sequence, write.behind[0].position), (submitter(1), 0));
    finish(&mut progress, slow, delivered(), now);
    assert_eq!(progress.take_write("e", now).unwrap().caught_up, [submitter(1)]);
}

#[test]
fn retries_leave_half_of_the_slots_to_others() {
    let schedule = RetrySchedule::new(vec![Duration::ZERO, SECOND, SECOND, SECOND]).unwrap();
    let now = Instant::now();
    let row =
        |number| BehindRow { sequence: submitter(number), position: 0, attempts: 1, due_in: Duration::ZERO };
    let mut progress = Progress::new(schedule, 4, 10, (1..=4).map(row).collect(), now);
    let mut under_way = Vec::new();
    while let Some(next) = progress.next(now) {
        match next {
            Next::Fetch(sequence, _, 1) => progress.fetched(sequence, vec![event(1, sequence)], 1),
            Next::Send(sequence, job) => under_way.push((sequence, job)),
            Next::Fetch(..) => panic!("{next:?}"),
        }
    }
    assert_eq!(under_way.len(), 2);
    let (sequence, job) = under_way.pop().unwrap();
    progress.done(sequence, job, delivered(), now);
    let mut sends = 0;
    while let Some(next) = progress.next(now) {
        match next {
            Next::Fetch(sequence, after, _) => progress.fetched(sequence, Vec::new(), after.max(10)),
            Next::Send(..) => sends += 1,
        }
    }
    assert_eq!(sends, 1, "the next retry");
}

/// Random failures, crashes and overflows: every event is delivered at least once or given up, those of a submitter in
/// order, and the stored cursors never pass an event that was neither.
#[test]
fn nothing_is_left_out_or_out_of_order_whatever_fails() {
    for seed in 0..300 {
        let mut history = History::new(seed);
        history.run();
    }
}

/// The negative control: a cursor that ignores what is under way loses events in a crash.
#[test]
fn a_cursor_that_passes_what_is_under_way_is_found_out() {
    let lost = (0..100).any(|seed| {
        let mut history = History::new(seed);
        history.broken_cursor = true;
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| history.run())).is_err()
    });
    assert!(lost, "no seed noticed the broken cursor");
}

/// A log, what the database has of an outlet, and what its receiver got.
struct History {
    random: StdRng,
    log: Vec<(i64, Sequence)>,
    position: i64,
    behind: HashMap<Sequence, BehindRow>,
    /// By submitter, without repetitions.
    received: HashMap<Sequence, Vec<i64>>,
    given_up: BTreeSet<i64>,
    now: Instant,
    broken_cursor: bool,
}

impl History {
    fn new(seed: u64) -> History {
        let mut random = StdRng::seed_from_u64(seed);
        let count = random.random_range(1..300);
        // Often one submitter has most of the events.
        let submitters = random.random_range(1..6_u8);
        let log =
            (1..=count).map(|position| (position, submitter(random.random_range(0..submitters)))).collect();
        History {
            random,
            log,
            position: 0,
            behind: HashMap::new(),
            received: HashMap::new(),
            given_up: BTreeSet::new(),
            now: Instant::now(),
            broken_cursor: false,
        }
    }

    fn run(&mut self) {
        for _ in 0..self.random.random_range(0..4) {
            let steps = self.random.random_range(0..400);
            self.own(steps, 0.3);
        }
        // In the end the receiver works.
        self.own(usize::MAX, 0.0);
        for sequence in self.log.iter().map(|(_, sequence)| *sequence).collect::<BTreeSet<_>>() {
            let all = self.log.iter().filter(|(_, who)| *who == sequence).map(|(position, _)| *position);
            let expected: Vec<i64> = all.filter(|position| !self.given_up.contains(position)).collect();
            let received = self.received.get(&sequence).cloned().unwrap_or_default();
            let received: Vec<i64> =
                received.into_iter().filter(|position| !self.given_up.contains(position)).collect();
            assert_eq!(received, expected);
        }
    }

    /// One owner, until it crashes or everything is delivered.
    fn own(&mut self, steps: usize, failures: f64) {
        let schedule = RetrySchedule::new(vec![Duration::ZERO, SECOND, SECOND]).unwrap();
        let rows = self.behind.values().cloned().collect();
        let mut progress = Progress::new(schedule, 4, self.position, rows, self.now);
        let mut under_way: Vec<(Sequence, Job)> = Vec::new();
        for _ in 0..steps {
            match self.random.random_range(0..5) {
                0 | 1 => {
                    if let Some((position, sequence)) = self.log.get(progress.read_to() as usize).copied() {
                        progress.offer(event(position, sequence), true, self.now);
                    }
                }
                2 => match progress.next(self.now) {
                    Some(Next::Send(sequence, job)) => under_way.push((sequence, job)),
                    Some(Next::Fetch(sequence, after, count)) => {
                        let matching =
                            self.log.iter().filter(|(position, who)| *who == sequence && *position > after);
                        let page: Vec<_> = matching
                            .take(count.min(3) as usize)
                            .map(|(position, who)| event(*position, *who))
                            .collect();
                        let end = self.log.len() as i64;
                        let is_full = page.len() == count.min(3) as usize;
                        let read_to = if is_full { page[page.len() - 1].event.position } else { end };
                        progress.fetched(sequence, page, read_to);
                    }
                    None => self.now += SECOND / 2,
                },
                3 if !under_way.is_empty() => {
                    let chosen = self.random.random_range(0..under_way.len());
                    let (sequence, job) = under_way.swap_remove(chosen);
                    let Job::Event(sent) = &job else { panic!("no replays") };
                    let position = sent.event.position;
                    let attempt = if self.random.random_bool(failures) { failed() } else { delivered() };
                    if attempt.result == AttemptResult::Delivered {
                        let received = self.received.entry(sequence).or_default();
                        if !received.contains(&position) {
                            received.push(position);
                        }
                    }
                    if progress.done(sequence, job, attempt, self.now) == DeliveryState::Exhausted {
                        self.given_up.insert(position);
                    }
                }
                _ => self.store(&mut progress),
            }
            if steps == usize::MAX
                && progress.read_to() as usize >= self.log.len()
                && under_way.is_empty()
                && progress.next_due().is_none()
                && progress.queues.values().all(|queue| queue.events.is_empty() && queue.busy.is_none())
                && progress.queues.values().all(|queue| queue.behind.as_ref().is_none_or(|b| b.caught_up))
            {
                self.store(&mut progress);
                assert_eq!(self.position, self.log.len() as i64);
                return;
            }
        }
    }

    fn store(&mut self, progress: &mut Progress) {
        let Some(write) = progress.take_write("e", self.now) else { return };
        if let Some(cursor) = write.cursor {
            assert!(cursor.position >= self.position, "the cursor goes back");
            self.position = cursor.position;
        }
        if self.broken_cursor {
            self.position = progress.read_to();
        }
        for row in write.behind {
            let BehindWrite { sequence, position, attempts, due_in } = row;
            self.behind.insert(sequence, BehindRow { sequence, position, attempts, due_in });
        }
        for sequence in write.caught_up {
            self.behind.remove(&sequence);
        }
    }
}

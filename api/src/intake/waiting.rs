//! Queue of requests to insert, and how they are grouped. Data only; the flushers do the work.
//!
//! Submitters are split into parts by hash. Few waiting rows form one group, because larger groups cost less per row.
//! With many rows each part forms its own group, so that one is inserted while the other is parsed and answered. A
//! part is in at most one group at a time, so a submitter's requests are stored in order of arrival.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use gapless_domain::SubmitterKey;
use gapless_store::NewIntent;
use tokio::sync::oneshot;

use super::Answers;

/// Two concurrent inserts keep disk and CPU busy; more contend for the WAL.
pub(super) const PARTS: usize = 2;
/// From this many rows on, a part gets its own insert: enough rows share the fixed cost of a statement.
const MANY_ROWS: usize = 100;
/// Largest group: beyond this nothing is gained and locks are held longer.
const GROUP_ROWS: usize = 500;
/// Limit of rows that wait or are being inserted: about two seconds of work. Beyond that, requests get 503.
const MAX_ROWS: usize = 20_000;

pub(super) fn part_of(submitter: &SubmitterKey) -> usize {
    let mut hasher = DefaultHasher::new();
    submitter.hash(&mut hasher);
    (hasher.finish() % PARTS as u64) as usize
}

/// Rows submitted together, in order.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) rows: Vec<NewIntent>,
    pub(super) answer: oneshot::Sender<Answers>,
}

#[derive(Debug)]
pub(super) struct Group {
    parts: [bool; PARTS],
    pub(super) rows: Vec<NewIntent>,
    /// Row count and channel of each unit, in order.
    pub(super) answers: Vec<(usize, oneshot::Sender<Answers>)>,
}

#[derive(Debug, Default)]
struct Part {
    units: VecDeque<Unit>,
    rows: usize,
    /// A group with rows of this part is being inserted.
    busy: bool,
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    parts: [Part; PARTS],
    /// Rows waiting or being inserted.
    rows: usize,
    /// A flusher was woken and has not taken a group yet.
    woken: bool,
}

impl Waiting {
    /// Returns false and adds nothing if `MAX_ROWS` would be exceeded.
    pub(super) fn add(&mut self, part: usize, unit: Unit) -> bool {
        if self.rows + unit.rows.len() > MAX_ROWS {
            return false;
        }
        self.rows += unit.rows.len();
        let part = &mut self.parts[part];
        part.rows += unit.rows.len();
        part.units.push_back(unit);
        true
    }

    /// Whether a flusher must be woken: there is work, and none was woken for it.
    pub(super) fn wake_flusher(&mut self) -> bool {
        let wanted = !self.woken && self.parts.iter().any(Part::may_start);
        self.woken |= wanted;
        wanted
    }

    /// The next group. Its parts stay busy until `finish`.
    pub(super) fn take(&mut self) -> Option<Group> {
        self.woken = false;
        let mut group = Group { parts: [false; PARTS], rows: Vec::new(), answers: Vec::new() };
        let alone = self.parts.iter().position(|part| part.may_start() && part.rows >= MANY_ROWS);
        for (index, part) in self.parts.iter_mut().enumerate() {
            if part.may_start() && alone.is_none_or(|alone| alone == index) {
                part.busy = true;
                group.parts[index] = true;
                part.move_into(&mut group);
            }
        }
        (!group.rows.is_empty()).then_some(group)
    }

    pub(super) fn finish(&mut self, group: &Group) {
        self.rows -= group.rows.len();
        for (part, _) in self.parts.iter_mut().zip(group.parts).filter(|(_, taken)| *taken) {
            part.busy = false;
        }
    }
}

impl Part {
    fn may_start(&self) -> bool {
        !self.busy && self.rows > 0
    }

    fn move_into(&mut self, group: &mut Group) {
        while group.rows.len() < GROUP_ROWS
            && let Some(unit) = self.units.pop_front()
        {
            self.rows -= unit.rows.len();
            group.answers.push((unit.rows.len(), unit.answer));
            group.rows.extend(unit.rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use gapless_domain::{Address, ChainId, Payload};

    use super::*;

    fn unit(submitter: u64, request_ids: &[usize]) -> (usize, Unit) {
        let key = SubmitterKey { chain_id: ChainId(1), address: Address::from_low_u64_be(submitter) };
        let row =
            |id: &usize| NewIntent::new(key, id.to_string(), Payload::transfer(key.address, 1.into()), None);
        (part_of(&key), Unit { rows: request_ids.iter().map(row).collect(), answer: oneshot::channel().0 })
    }

    /// One submitter per part.
    fn submitter_per_part() -> [u64; PARTS] {
        std::array::from_fn(|part| (0..).find(|submitter| unit(*submitter, &[]).0 == part).unwrap())
    }

    fn add(waiting: &mut Waiting, submitter: u64, request_ids: impl IntoIterator<Item = usize>) {
        for id in request_ids {
            let (part, unit) = unit(submitter, &[id]);
            assert!(waiting.add(part, unit));
        }
    }

    fn ids(group: &Group) -> Vec<usize> {
        group.rows.iter().map(|row| row.request_id.parse().unwrap()).collect()
    }

    #[test]
    fn waiting_rows_form_one_group_and_later_rows_the_next() {
        let ([one, two], mut waiting) = (submitter_per_part(), Waiting::default());
        assert!(waiting.take().is_none());
        add(&mut waiting, one, [1]);
        assert!(waiting.wake_flusher());
        assert!(!waiting.wake_flusher(), "one was already woken");
        add(&mut waiting, two, [2]);
        let first = waiting.take().unwrap();
        assert_eq!(ids(&first), [1, 2]);
        add(&mut waiting, one, [3]);
        add(&mut waiting, two, [4, 5]);
        assert!(!waiting.wake_flusher(), "everything is busy");
        assert!(waiting.take().is_none());
        waiting.finish(&first);
        assert!(waiting.wake_flusher());
        assert_eq!(ids(&waiting.take().unwrap()), [3, 4, 5]);
    }

    #[test]
    fn with_many_rows_two_groups_run_concurrently_and_none_is_starved() {
        let ([one, two], mut waiting) = (submitter_per_part(), Waiting::default());
        add(&mut waiting, one, 0..MANY_ROWS);
        add(&mut waiting, two, [7, 8]);
        let many = waiting.take().unwrap();
        assert_eq!(ids(&many), (0..MANY_ROWS).collect::<Vec<_>>());
        assert!(waiting.wake_flusher(), "the other part does not wait");
        let few = waiting.take().unwrap();
        assert_eq!(ids(&few), [7, 8]);
        add(&mut waiting, one, [9]);
        assert!(waiting.take().is_none(), "rows of one submitter are never in two groups at once");
        waiting.finish(&many);
        assert_eq!(ids(&waiting.take().unwrap()), [9]);
    }

    #[test]
    fn group_size_and_waiting_rows_are_limited() {
        let ([one, _], mut waiting) = (submitter_per_part(), Waiting::default());
        add(&mut waiting, one, 0..MAX_ROWS);
        let refused = |waiting: &mut Waiting| !waiting.add(unit(one, &[1]).0, unit(one, &[1]).1);
        assert!(refused(&mut waiting));
        let group = waiting.take().unwrap();
        assert_eq!(ids(&group), (0..GROUP_ROWS).collect::<Vec<_>>());
        assert!(refused(&mut waiting), "rows being inserted count as well");
        waiting.finish(&group);
        assert!(!refused(&mut waiting));
    }
}

//! What lanes wait for: hashes to be included, and heights to be reached by the head or by finality.

use std::collections::{BTreeMap, HashMap, HashSet};

use gapless_domain::{H256, Receipt};
use parking_lot::{Mutex, MutexGuard};

use super::mailbox::{LaneEvent, Mailbox};

/// Lanes by the height they wait for. Keyed by mailbox, so that repeated requests have no effect.
#[derive(Debug, Default)]
struct Heights(BTreeMap<u64, HashMap<u64, Mailbox>>);

impl Heights {
    fn add(&mut self, height: u64, mailbox: &Mailbox) {
        self.0.entry(height).or_default().insert(mailbox.id(), mailbox.clone());
    }

    /// Wakes all lanes that wait for this height or a lower one.
    fn reached(&mut self, height: u64) {
        let later = height.checked_add(1).map(|above| self.0.split_off(&above)).unwrap_or_default();
        for (_, mailbox) in std::mem::replace(&mut self.0, later).into_values().flatten() {
            mailbox.post(LaneEvent::HeightReached);
        }
    }

    fn leave(&mut self, mailbox: &Mailbox) {
        self.0.retain(|_, waiting| {
            waiting.remove(&mailbox.id());
            !waiting.is_empty()
        });
    }
}

#[derive(Debug, Default)]
struct Entries {
    hashes: HashMap<H256, Mailbox>,
    /// Heights that must become final.
    finals: Heights,
    /// Heights that the head must reach.
    heads: Heights,
    /// Hashes seen in a canonical block whose receipts could not be read yet.
    missing: HashSet<H256>,
}

#[derive(Debug, Default)]
pub(crate) struct Registry {
    entries: Mutex<Entries>,
}

impl Registry {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        // Nothing panics while holding the lock; if it did, the maps would still be consistent.
        self.entries.lock()
    }

    pub(crate) fn watch(&self, hash: H256, mailbox: &Mailbox) {
        self.entries().hashes.insert(hash, mailbox.clone());
    }

    /// Removes hashes, unless a newer lane of the same submitter watches them now.
    pub(crate) fn forget(&self, hashes: &[H256], mailbox: &Mailbox) {
        let mut entries = self.entries();
        for hash in hashes {
            if entries.hashes.get(hash).is_some_and(|owner| owner.id() == mailbox.id()) {
                entries.hashes.remove(hash);
            }
        }
    }

    pub(crate) fn wake_when_final(&self, height: u64, mailbox: &Mailbox) {
        self.entries().finals.add(height, mailbox);
    }

    pub(crate) fn wake_at_head(&self, height: u64, mailbox: &Mailbox) {
        self.entries().heads.add(height, mailbox);
    }

    /// Removes the heights a lane waits for. Its hashes are removed by `forget`.
    pub(crate) fn leave(&self, mailbox: &Mailbox) {
        let mut entries = self.entries();
        entries.finals.leave(mailbox);
        entries.heads.leave(mailbox);
    }

    /// Marks hashes as seen in a block; their receipts are missing until `included`.
    pub(crate) fn mark_missing(&self, hashes: &[H256]) {
        self.entries().missing.extend(hashes);
    }

    /// Watched hashes whose receipts are missing.
    pub(crate) fn missing_receipts(&self) -> Vec<H256> {
        let mut entries = self.entries();
        let Entries { missing, hashes, .. } = &mut *entries;
        missing.retain(|hash| hashes.contains_key(hash));
        missing.iter().copied().collect()
    }

    /// Whether one of these was seen in a canonical block while its receipt is missing.
    pub(crate) fn misses_any_receipt(&self, hashes: &[H256]) -> bool {
        let entries = self.entries();
        hashes.iter().any(|hash| entries.missing.contains(hash))
    }

    pub(crate) fn is_idle(&self) -> bool {
        let entries = self.entries();
        entries.hashes.is_empty() && entries.finals.0.is_empty() && entries.heads.0.is_empty()
    }

    pub(crate) fn watched(&self) -> Vec<H256> {
        self.entries().hashes.keys().copied().collect()
    }

    pub(crate) fn those_watched(&self, hashes: impl Iterator<Item = H256>) -> HashSet<H256> {
        let entries = self.entries();
        hashes.filter(|hash| entries.hashes.contains_key(hash)).collect()
    }

    pub(crate) fn among(&self, hashes: &[H256]) -> Vec<H256> {
        let entries = self.entries();
        hashes.iter().filter(|hash| entries.hashes.contains_key(hash)).copied().collect()
    }

    pub(crate) fn included(&self, receipt: Receipt) {
        let mut entries = self.entries();
        entries.missing.remove(&receipt.tx_hash);
        if let Some(mailbox) = entries.hashes.get(&receipt.tx_hash) {
            mailbox.post(LaneEvent::Included(receipt));
        }
    }

    /// Wakes all lanes that watch a hash.
    pub(crate) fn wake_all(&self) {
        let entries = self.entries();
        let lanes: HashMap<u64, &Mailbox> =
            entries.hashes.values().map(|mailbox| (mailbox.id(), mailbox)).collect();
        lanes.into_values().for_each(|mailbox| mailbox.post(LaneEvent::HeightReached));
    }

    pub(crate) fn head_is(&self, height: u64) {
        self.entries().heads.reached(height);
    }

    pub(crate) fn final_is(&self, height: u64) {
        self.entries().finals.reached(height);
    }

    pub(crate) fn reorged(&self, from: u64) {
        let mut entries = self.entries();
        // Hashes of replaced blocks may be mined no longer; new blocks mark theirs again.
        entries.missing.clear();
        let lanes: HashMap<u64, &Mailbox> =
            entries.hashes.values().map(|mailbox| (mailbox.id(), mailbox)).collect();
        for mailbox in lanes.into_values() {
            mailbox.post(LaneEvent::Reorged { from });
        }
    }
}

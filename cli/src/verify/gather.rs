//! Reads the facts in an order that makes them comparable while workers run: first the chain's transaction counts, then
//! the database, then the receipts. Attempts are committed before they are sent, so the snapshot contains everything
//! counted; and everything mined in the snapshot is in the later receipts.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use gapless_domain::{ChainId, SubmitterKey};
use gapless_store::{AttemptKind, AuditedAttempt, AuditedSubmitter, Store};

use super::facts::{
    AttemptFacts, CountFacts, CursorFacts, InBlock, IntentFacts, Mined, ReservationFacts, SubmitterFacts,
};
use super::node::Node;

/// Longer chains are scanned only with `--scan`.
const SHORT_CHAIN: u64 = 100_000;

/// Whether to scan blocks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scan {
    Never,
    IfShort { from: u64 },
    Always { from: u64 },
}

impl Scan {
    /// The first block to scan, if any.
    fn begin(self, head: u64) -> Option<u64> {
        match self {
            Scan::Never => None,
            Scan::IfShort { from } => (head.saturating_sub(from) < SHORT_CHAIN).then_some(from),
            Scan::Always { from } => Some(from),
        }
    }
}

/// The facts of one chain, and the first scanned block.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) chain_id: u64,
    pub(super) head: u64,
    pub(super) scanned_from: Option<u64>,
    pub(super) submitters: Vec<SubmitterFacts>,
}

pub(super) async fn gather(store: &Store, node: &Node, chain_id: ChainId, scan: Scan) -> Result<Gathered> {
    let keys = store.audit_submitters(chain_id).await?;
    let addresses: Vec<String> = keys.iter().map(SubmitterKey::address_text).collect();
    let head = node.head().await?;
    let counts: HashMap<&str, u64> =
        addresses.iter().map(String::as_str).zip(node.counts(&addresses).await?).collect();
    let scanned_from = scan.begin(head);
    let mut in_blocks = match scanned_from {
        Some(from) => node.in_blocks(&HashSet::from_iter(addresses.iter().cloned()), from, head).await?,
        None => HashMap::new(),
    };
    let snapshot = store.audit_snapshot(chain_id).await?;
    let hashes: Vec<String> = snapshot.values().flat_map(|rows| &rows.attempts).map(hash_text).collect();
    let mut mined = node.mined(&hashes).await?;

    let mut rows: Vec<(SubmitterKey, AuditedSubmitter)> = snapshot.into_iter().collect();
    rows.sort_by_key(|(key, _)| *key);
    let facts = |(key, rows): (SubmitterKey, AuditedSubmitter)| {
        let address = key.address_text();
        // A submitter announced during the audit: it had no transactions when the counts were read.
        let chain_count = counts.get(address.as_str()).copied().unwrap_or(0);
        let blocks = scanned_from.map(|_| in_blocks.remove(&address).unwrap_or_default());
        submitter_facts(key, rows, chain_count, blocks, &mut mined)
    };
    let submitters = rows.into_iter().map(facts).collect();
    Ok(Gathered { chain_id: chain_id.0, head, scanned_from, submitters })
}

fn submitter_facts(
    key: SubmitterKey,
    rows: AuditedSubmitter,
    chain_count: u64,
    in_blocks: Option<Vec<InBlock>>,
    mined: &mut HashMap<String, Mined>,
) -> SubmitterFacts {
    let attempts: Vec<AttemptFacts> = rows.attempts.iter().map(attempt_facts).collect();
    SubmitterFacts {
        address: key.address_text(),
        cursor: rows.cursor.map(|cursor| CursorFacts {
            start: cursor.start.0,
            next: cursor.next.0,
            open_from: cursor.open_from.0,
            protect: cursor.protect,
        }),
        shared: rows.shared,
        external: rows.external.iter().map(|range| (range.first.0, range.last.0)).collect(),
        intents: rows
            .intents
            .iter()
            .map(|intent| IntentFacts {
                tx_id: intent.tx_id.to_string(),
                state: intent.state,
                nonce: intent.nonce.map(|nonce| nonce.0),
            })
            .collect(),
        reservations: rows
            .reservations
            .iter()
            .map(|reservation| ReservationFacts {
                tx_id: reservation.tx_id.to_string(),
                nonce: reservation.nonce.0,
                state: reservation.state,
            })
            .collect(),
        counts: rows
            .counts
            .iter()
            .map(|count| CountFacts {
                tx_id: count.tx_id.to_string(),
                day: count.day.to_string(),
                value: count.value,
                limit: count.limit,
                day_total: count.day_total,
                fencing_token: count.fencing_token.0,
            })
            .collect(),
        mined: attempts.iter().filter_map(|attempt| mined.remove_entry(&attempt.tx_hash)).collect(),
        attempts,
        chain_count,
        in_blocks,
    }
}

fn attempt_facts(attempt: &AuditedAttempt) -> AttemptFacts {
    AttemptFacts {
        tx_id: attempt.tx_id.to_string(),
        ordinal: attempt.ordinal,
        nonce: attempt.nonce.0,
        placeholder: attempt.kind == AttemptKind::Placeholder,
        tx_hash: hash_text(attempt),
        fencing_token: attempt.fencing_token.0,
        displaced: attempt.displaced,
    }
}

fn hash_text(attempt: &AuditedAttempt) -> String {
    format!("{:#x}", attempt.tx_hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_chains_are_scanned_only_on_request() {
        assert_eq!(Scan::IfShort { from: 0 }.begin(99_999), Some(0));
        assert_eq!(Scan::IfShort { from: 0 }.begin(100_000), None);
        assert_eq!(Scan::IfShort { from: 50_000 }.begin(100_000), Some(50_000));
        assert_eq!(Scan::Always { from: 7 }.begin(u64::MAX), Some(7));
        assert_eq!(Scan::Never.begin(1), None);
    }
}

//! Delivery of events, as the delivering worker sees it: which outlets it owns, what is to be delivered, and what became
//! of it. All writes of an owner are fenced with the row of its lease, as those of lanes are (docs/adr/0002).

mod lease;
mod load;
mod write;

pub use lease::{OutletLease, OutletState, OutletTag};
pub use load::{BehindRow, LoadedOutlet, Replay, WebhookSettings};
pub use write::{BehindWrite, DeliveryWrite, HealthWrite, OutletReset, OutletWrite, ReplayWrite, Written};

use gapless_domain::SubmitterKey;

use crate::error::StoreError;
use crate::row::{self, StoredAddress};

/// The events of one submitter, which are delivered in order. `None`: the events without a submitter.
pub type Sequence = Option<SubmitterKey>;

/// The columns of a sequence in tables where they must not be null.
fn sequence_columns(sequence: Sequence) -> (i64, Vec<u8>) {
    match sequence {
        Some(key) => (key.chain_id.as_i64(), key.address.as_bytes().to_vec()),
        None => (0, Vec::new()),
    }
}

fn read_sequence(table: &'static str, chain_id: i64, submitter: &[u8]) -> Result<Sequence, StoreError> {
    if submitter.is_empty() {
        return Ok(None);
    }
    let cell = row::Cell { table, column: "submitter", id: &chain_id };
    let address = <[u8; 20]>::try_from(submitter).map_err(|_| cell.bad("is not 20 bytes long"))?;
    row::key(table, chain_id, StoredAddress::from(gapless_domain::Address::from(address))).map(Some)
}

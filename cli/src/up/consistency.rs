//! Checks that the local chain and the database match. The worker halts on a chain that was reset; for a local
//! development chain the fix is to delete the data and start again.

use std::fmt;

use anyhow::{Context, Result};
use gapless_config::Secret;
use gapless_domain::{ChainId, SubmitterKey};
use gapless_localnet::AnvilRpc;
use gapless_store::{Store, Timeouts};
use serde_json::{Value, json};

use super::settings::CHAIN_ID;

/// A difference between chain and database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mismatch {
    /// The database belongs to another chain; this one was reset.
    Genesis { chain: String, database: String },
    /// Transactions that are final in the database are not on the chain.
    Lost { submitter: String, chain: u64, database: u64 },
    /// The database has no record of this chain, but the chain has transactions of a demo submitter.
    Unknown { submitter: String, chain: u64 },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Genesis { chain, database } => {
                write!(f, "block 0 of the chain is {chain}, the database expects {database}")
            }
            Mismatch::Lost { submitter, chain, database } => write!(
                f,
                "the chain has {chain} transactions of {submitter}, the database has {database} final ones"
            ),
            Mismatch::Unknown { submitter, chain } => {
                write!(f, "the chain has {chain} transactions of {submitter}, the database has none")
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct ConsistencyCheck {
    pub(super) database: Secret,
    pub(super) anvil: AnvilRpc,
    pub(super) submitters: Vec<String>,
}

impl ConsistencyCheck {
    /// `None`: they match.
    pub(super) async fn mismatch(&self) -> Result<Option<Mismatch>> {
        let store = Store::new(&self.database, "gapless-up", 1, Timeouts::default())?;
        let found = self.compare(&store).await;
        store.close().await;
        found.context("cannot compare chain and database")
    }

    async fn compare(&self, store: &Store) -> Result<Option<Mismatch>> {
        let chain_id = ChainId(CHAIN_ID);
        let Some(known) = store.known_genesis(chain_id).await? else {
            return self.unknown().await;
        };
        let block = self.anvil.call("eth_getBlockByNumber", json!(["0x0", false])).await?;
        let genesis = block["hash"].as_str().context("anvil returned no block 0")?.to_owned();
        let known = format!("{known:#x}");
        if genesis != known {
            return Ok(Some(Mismatch::Genesis { chain: genesis, database: known }));
        }
        let keys = store.submitters_of(chain_id).await?;
        // Read before the chain, so that everything final here is already on chain.
        let lanes = store.load_lanes(&keys).await?;
        for (key, rows) in keys.iter().zip(lanes) {
            let submitter = SubmitterKey::address_text(key);
            // No intent below `open_from` is open, so each of those nonces was consumed.
            let database = rows.cursor.map_or(0, |cursor| cursor.open_from.0);
            let chain = self.count(&submitter).await?;
            if chain < database {
                return Ok(Some(Mismatch::Lost { submitter, chain, database }));
            }
        }
        Ok(None)
    }

    /// Without a record of this chain in the database, the chain must have no transactions of the submitters.
    async fn unknown(&self) -> Result<Option<Mismatch>> {
        for submitter in &self.submitters {
            let chain = self.count(submitter).await?;
            if chain > 0 {
                return Ok(Some(Mismatch::Unknown { submitter: submitter.clone(), chain }));
            }
        }
        Ok(None)
    }

    async fn count(&self, address: &str) -> Result<u64> {
        let count: Value = self.anvil.call("eth_getTransactionCount", json!([address, "latest"])).await?;
        let hex = count.as_str().and_then(|hex| hex.strip_prefix("0x"));
        let hex = hex.context("anvil returned no transaction count")?;
        u64::from_str_radix(hex, 16).context("anvil returned no transaction count")
    }
}

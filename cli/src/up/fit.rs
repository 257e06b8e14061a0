//! Whether chain and database belong together. The worker halts a chain that was reset, because it cannot know which of
//! the two is right; on this machine nobody else has a say, and starting over is the way out.

use std::fmt;

use anyhow::{Context, Result};
use gapless::config::Secret;
use gapless::domain::{ChainId, SubmitterKey};
use gapless::store::{Store, Timeouts};
use serde_json::{Value, json};

use super::settings::CHAIN_ID;
use crate::localnet::AnvilRpc;

/// What one of the two knows and the other does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// The database belongs to another chain: this one began anew.
    Genesis { chain: String, database: String },
    /// Transactions that the database knows as final are not in the chain.
    Lost { submitter: String, chain: u64, database: u64 },
    /// The database never saw this chain, and the chain has our transactions.
    Unknown { submitter: String, chain: u64 },
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::Genesis { chain, database } => {
                write!(f, "block 0 of the chain is {chain}, the database knows {database}")
            }
            Misfit::Lost { submitter, chain, database } => write!(
                f,
                "the chain has {chain} transactions of {submitter}, the database {database} that are final"
            ),
            Misfit::Unknown { submitter, chain } => {
                write!(f, "the chain has {chain} transactions of {submitter}, the database has never seen it")
            }
        }
    }
}

/// Asks both of them.
#[derive(Debug)]
pub(super) struct Fit {
    pub(super) database: Secret,
    pub(super) anvil: AnvilRpc,
    pub(super) submitters: Vec<String>,
}

impl Fit {
    /// `None`: they fit.
    pub(super) async fn misfit(&self) -> Result<Option<Misfit>> {
        let store = Store::new(&self.database, "gapless-up", 1, Timeouts::default())?;
        let found = self.compare(&store).await;
        store.close().await;
        found.context("cannot compare chain and database")
    }

    async fn compare(&self, store: &Store) -> Result<Option<Misfit>> {
        let chain_id = ChainId(CHAIN_ID);
        let Some(known) = store.known_genesis(chain_id).await? else {
            return self.unknown().await;
        };
        let block = self.anvil.call("eth_getBlockByNumber", json!(["0x0", false])).await?;
        let genesis = block["hash"].as_str().context("anvil shows no block 0")?.to_owned();
        let known = format!("{known:#x}");
        if genesis != known {
            return Ok(Some(Misfit::Genesis { chain: genesis, database: known }));
        }
        let keys = store.submitters_of(chain_id).await?;
        // Read before the chain is asked: what is final in the database is in the chain by then.
        let lanes = store.load_lanes(&keys).await?;
        for (key, rows) in keys.iter().zip(lanes) {
            let submitter = SubmitterKey::address_text(key);
            // No intent below `open_from` is open, so each of those nonces was consumed for good.
            let database = rows.cursor.map_or(0, |cursor| cursor.open_from.0);
            let chain = self.count(&submitter).await?;
            if chain < database {
                return Ok(Some(Misfit::Lost { submitter, chain, database }));
            }
        }
        Ok(None)
    }

    /// A database that never saw this chain goes with a chain that never saw our submitters.
    async fn unknown(&self) -> Result<Option<Misfit>> {
        for submitter in &self.submitters {
            let chain = self.count(submitter).await?;
            if chain > 0 {
                return Ok(Some(Misfit::Unknown { submitter: submitter.clone(), chain }));
            }
        }
        Ok(None)
    }

    async fn count(&self, address: &str) -> Result<u64> {
        let count: Value = self.anvil.call("eth_getTransactionCount", json!([address, "latest"])).await?;
        let hex = count.as_str().and_then(|hex| hex.strip_prefix("0x"));
        let hex = hex.context("anvil shows no transaction count")?;
        u64::from_str_radix(hex, 16).context("anvil shows no transaction count")
    }
}

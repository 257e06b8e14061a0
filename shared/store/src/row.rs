//! Conversion between column values and domain values. An invalid value is an error that names table, column and row.

use ethers_core::types::{Address, H256};

use super::error::StoreError;
use gapless_domain::{ChainId, FencingToken, Nonce, SubmitterKey};

/// Table, column and row of a value, for error messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a> {
    pub(crate) table: &'static str,
    pub(crate) column: &'static str,
    pub(crate) id: &'a str,
}

impl Cell<'_> {
    pub(crate) fn bad(&self, problem: impl ToString) -> StoreError {
        StoreError::Inconsistency {
            table: self.table,
            column: self.column,
            id: self.id.to_owned(),
            problem: problem.to_string(),
        }
    }

    pub(crate) fn parse<T: std::str::FromStr>(&self, text: &str) -> Result<T, StoreError>
    where
        T::Err: std::fmt::Display,
    {
        text.parse().map_err(|error: T::Err| self.bad(error))
    }

    pub(crate) fn json<T: serde::de::DeserializeOwned>(
        &self,
        value: serde_json::Value,
    ) -> Result<T, StoreError> {
        serde_json::from_value(value).map_err(|error| self.bad(error))
    }

    pub(crate) fn unsigned(&self, number: i64) -> Result<u64, StoreError> {
        u64::try_from(number).map_err(|error| self.bad(error))
    }
}

pub(crate) fn key(table: &'static str, chain_id: i64, submitter: &str) -> Result<SubmitterKey, StoreError> {
    let chain = Cell { table, column: "chain_id", id: submitter }.unsigned(chain_id)?;
    let address: Address = Cell { table, column: "submitter", id: submitter }.parse(submitter)?;
    Ok(SubmitterKey { chain_id: ChainId(chain), address })
}

pub(crate) fn hash(cell: Cell<'_>, text: &str) -> Result<H256, StoreError> {
    cell.parse(text)
}

pub(crate) fn nonce(cell: Cell<'_>, number: i64) -> Result<Nonce, StoreError> {
    cell.unsigned(number).map(Nonce)
}

pub(crate) fn token(cell: Cell<'_>, number: i64) -> Result<FencingToken, StoreError> {
    cell.unsigned(number).map(FencingToken)
}

pub(crate) fn hash_text(hash: H256) -> String {
    format!("0x{}", hex::encode(hash))
}

//! Conversion between column values and domain values. Addresses and hashes are BYTEA columns (docs/adr/0040). An invalid
//! value is an error that names table, column and row.

use std::fmt;

use ethers_core::types::{Address, H256};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};

use super::error::StoreError;
use gapless_domain::{ChainId, FencingToken, Nonce, SubState, SubmitterKey};

/// Defines a struct that is read from the columns with the names of its fields; fields after `+` are structs of the same
/// kind. Not sqlx's derive macro: it needs sqlx-macros, for which sqlx and what it depends on are compiled twice.
macro_rules! row_struct {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident { $($(#[$doc:meta])* $column_vis:vis $column:ident: $type:ty,)* }
        $(+ { $($part:ident: $part_type:ty),* })?
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$doc])* $column_vis $column: $type,)*
            $($($part: $part_type,)*)?
        }

        impl sqlx::FromRow<'_, sqlx::postgres::PgRow> for $name {
            fn from_row(row: &sqlx::postgres::PgRow) -> sqlx::Result<Self> {
                Ok($name {
                    $($column: sqlx::Row::try_get(row, stringify!($column))?,)*
                    $($($part: sqlx::FromRow::from_row(row)?,)*)?
                })
            }
        }
    };
}
pub(crate) use row_struct;

/// The value of an address column. Shown as 0x text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredAddress([u8; 20]);

/// The value of a hash column. Shown as 0x text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredHash([u8; 32]);

/// A type that is stored like the type of its only field.
macro_rules! stored_as {
    ($name:ident, $inner:ty) => {
        impl Type<Postgres> for $name {
            fn type_info() -> PgTypeInfo {
                <$inner as Type<Postgres>>::type_info()
            }

            fn compatible(info: &PgTypeInfo) -> bool {
                <$inner as Type<Postgres>>::compatible(info)
            }
        }

        impl PgHasArrayType for $name {
            fn array_type_info() -> PgTypeInfo {
                <$inner as PgHasArrayType>::array_type_info()
            }
        }

        impl Encode<'_, Postgres> for $name {
            fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
                <$inner as Encode<Postgres>>::encode_by_ref(&self.0, buffer)
            }
        }

        impl<'r> Decode<'r, Postgres> for $name {
            fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
                <$inner as Decode<Postgres>>::decode(value).map($name)
            }
        }
    };
}
stored_as!(StoredAddress, [u8; 20]);
stored_as!(StoredHash, [u8; 32]);

impl From<Address> for StoredAddress {
    fn from(address: Address) -> Self {
        StoredAddress(address.0)
    }
}

impl From<StoredAddress> for Address {
    fn from(stored: StoredAddress) -> Self {
        Address::from(stored.0)
    }
}

impl From<H256> for StoredHash {
    fn from(hash: H256) -> Self {
        StoredHash(hash.0)
    }
}

impl From<StoredHash> for H256 {
    fn from(stored: StoredHash) -> Self {
        H256::from(stored.0)
    }
}

impl fmt::Display for StoredAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex_text(&self.0))
    }
}

impl fmt::Display for StoredHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex_text(&self.0))
    }
}

pub(crate) fn hex_text(bytes: &[u8]) -> String {
    format!("0x{}", hex::encode(bytes))
}

/// Table, column and row of a value, for error messages.
#[derive(Clone, Copy)]
pub(crate) struct Cell<'a> {
    pub(crate) table: &'static str,
    pub(crate) column: &'static str,
    pub(crate) id: &'a dyn fmt::Display,
}

impl Cell<'_> {
    pub(crate) fn bad(&self, problem: impl ToString) -> StoreError {
        StoreError::Inconsistency {
            table: self.table,
            column: self.column,
            id: self.id.to_string(),
            problem: problem.to_string(),
        }
    }

    pub(crate) fn parse<T: std::str::FromStr>(&self, text: &str) -> Result<T, StoreError>
    where
        T::Err: fmt::Display,
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

/// The address column of a key.
pub(crate) fn address(key: SubmitterKey) -> StoredAddress {
    key.address.into()
}

pub(crate) fn key(
    table: &'static str,
    chain_id: i64,
    submitter: StoredAddress,
) -> Result<SubmitterKey, StoreError> {
    let chain = Cell { table, column: "chain_id", id: &submitter }.unsigned(chain_id)?;
    Ok(SubmitterKey { chain_id: ChainId(chain), address: submitter.into() })
}

pub(crate) fn nonce(cell: Cell<'_>, number: i64) -> Result<Nonce, StoreError> {
    cell.unsigned(number).map(Nonce)
}

pub(crate) fn token(cell: Cell<'_>, number: i64) -> Result<FencingToken, StoreError> {
    cell.unsigned(number).map(FencingToken)
}

/// A stored sub-state. One of a newer version counts as none.
pub(super) fn sub_state(stored: Option<&str>) -> Option<SubState> {
    stored.and_then(SubState::read)
}

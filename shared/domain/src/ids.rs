//! Identifiers. Each has its own type, so that they cannot be confused.

use std::fmt;
use std::str::FromStr;

use ethers_core::types::Address;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// Time-ordered (version 7), so that rows created together are adjacent in the index.
            #[allow(clippy::new_without_default)] // a random `Default` would be unexpected
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                s.parse().map(Self)
            }
        }
    };
}

uuid_id!(
    /// Identifies an intent. The only identifier a client needs.
    TxId
);
uuid_id!(
    /// Identifies one signed transaction of an intent.
    AttemptId
);
uuid_id!(
    /// Identifies a webhook.
    WebhookId
);

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// As PostgreSQL's BIGINT. Chain ids and sequences stay far below 2^63; a larger number is a bug.
            pub fn as_i64(self) -> i64 {
                i64::try_from(self.0).expect("an identifier below 2^63")
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_id!(
    /// EIP-155 chain id.
    ChainId
);
number_id!(
    /// Position in a submitter's sequence on chain. Never shown to clients.
    Nonce
);
number_id!(
    /// Identifies one ownership period of a submitter; incremented by each acquisition.
    FencingToken
);

impl Nonce {
    pub fn next(self) -> Nonce {
        Nonce(self.0 + 1)
    }
}

/// Identifies a worker process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(pub String);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A submitter: one address on one chain, which owns one nonce sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SubmitterKey {
    pub chain_id: ChainId,
    pub address: Address,
}

impl SubmitterKey {
    /// The address as stored and logged: lower-case, so that checksummed and plain forms compare equal.
    pub fn address_text(&self) -> String {
        // Used for every event, row and log line; faster than the type's `LowerHex`, which writes byte by byte.
        const_hex::encode_prefixed(self.address)
    }
}

impl fmt::Display for SubmitterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.chain_id, self.address)
    }
}

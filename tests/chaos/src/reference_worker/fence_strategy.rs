//! Four fence strategies. Only the first is correct.

use std::str::FromStr;

use sqlx::{Postgres, Transaction};
use uuid::Uuid;

/// How a write verifies that its worker still owns the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceStrategy {
    /// As in the product: lock and compare the lease row, then write.
    LockThenWrite,
    /// Each statement checks the lease with EXISTS, without locking it.
    Exists,
    /// Locks and compares correctly, but sends before the commit.
    SendFirst,
    /// A claimed lease is never checked again.
    Unchecked,
}

impl FenceStrategy {
    pub const ALL: [FenceStrategy; 4] = [
        FenceStrategy::LockThenWrite,
        FenceStrategy::Exists,
        FenceStrategy::SendFirst,
        FenceStrategy::Unchecked,
    ];

    pub fn name(self) -> &'static str {
        match self {
            FenceStrategy::LockThenWrite => "lock-then-write",
            FenceStrategy::Exists => "exists",
            FenceStrategy::SendFirst => "send-first",
            FenceStrategy::Unchecked => "unchecked",
        }
    }

    pub(super) fn sends_first(self) -> bool {
        self == FenceStrategy::SendFirst
    }

    /// Additional SQL condition of every write.
    pub(super) fn condition(self) -> &'static str {
        match self {
            // $1 and $2 are the submitter and the lease in every statement.
            FenceStrategy::Exists => {
                "EXISTS (SELECT FROM submitter_lease l
                         WHERE l.submitter = $1 AND l.lease_id = $2 AND l.expires_at > clock_timestamp())"
            }
            // The same parameters, always true.
            _ => "$1::BYTEA IS NOT NULL AND $2::UUID IS NOT NULL",
        }
    }

    /// The first statement of a write. False: the lease is lost.
    pub(super) async fn pass(
        self,
        tx: &mut Transaction<'_, Postgres>,
        submitter: &[u8],
        lease_id: Uuid,
    ) -> sqlx::Result<bool> {
        match self {
            FenceStrategy::LockThenWrite | FenceStrategy::SendFirst => {
                let locked = sqlx::query(
                    "SELECT FROM submitter_lease WHERE submitter = $1 AND lease_id = $2 FOR NO KEY UPDATE",
                );
                Ok(locked.bind(submitter).bind(lease_id).fetch_optional(&mut **tx).await?.is_some())
            }
            FenceStrategy::Exists | FenceStrategy::Unchecked => Ok(true),
        }
    }
}

impl FromStr for FenceStrategy {
    type Err = String;

    fn from_str(name: &str) -> Result<FenceStrategy, String> {
        FenceStrategy::ALL
            .into_iter()
            .find(|strategy| strategy.name() == name)
            .ok_or_else(|| format!("unknown fence strategy `{name}`"))
    }
}

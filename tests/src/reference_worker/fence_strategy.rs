//! The four ways to guard a write. Only the first is right.

use std::str::FromStr;

use sqlx::{Postgres, Transaction};
use uuid::Uuid;

/// How a write makes sure that its owner still is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceStrategy {
    /// The product's: the lease row is locked and compared, then written behind.
    LockThenWrite,
    /// Each statement asks whether the lease is there, and nothing keeps it there.
    Exists,
    /// Locked and compared as it should be, but the bytes leave before the commit.
    SendFirst,
    /// Once claimed, a lease is believed in for ever.
    Unchecked,
}

impl FenceStrategy {
    pub const ALL: [FenceStrategy; 4] = [
        FenceStrategy::LockThenWrite,
        FenceStrategy::Exists,
        FenceStrategy::SendFirst,
        FenceStrategy::Unchecked,
    ];

    pub fn word(self) -> &'static str {
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

    /// What every statement of a write asks besides.
    pub(super) fn condition(self) -> &'static str {
        match self {
            // $1 and $2 are the submitter and the lease in every statement.
            FenceStrategy::Exists => {
                "EXISTS (SELECT FROM submitter_lease l
                         WHERE l.submitter = $1 AND l.lease_id = $2 AND l.expires_at > clock_timestamp())"
            }
            // The same arguments, and no question.
            _ => "$1::TEXT IS NOT NULL AND $2::UUID IS NOT NULL",
        }
    }

    /// The first statement of a write. False: the lease is somebody else's.
    pub(super) async fn pass(
        self,
        tx: &mut Transaction<'_, Postgres>,
        submitter: &str,
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

    fn from_str(word: &str) -> Result<FenceStrategy, String> {
        FenceStrategy::ALL
            .into_iter()
            .find(|strategy| strategy.word() == word)
            .ok_or_else(|| format!("`{word}` is no way"))
    }
}

//! Operator requests. Each is a row of `audit_log`. Pause and resume take effect in the same statement; release and
//! adopt wait for the lane, because only the lease owner may change a cursor.

use chrono::{DateTime, Utc};

use super::error::StoreError;
use super::pending::OperatorAction;
use super::pool::Store;
use super::row::{self, StoredHash};
use gapless_domain::{H256, SubmitterKey};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitterStatus {
    Active,
    /// Open transactions are tracked until they are final; no new nonce is assigned.
    Paused,
}

impl SubmitterStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            SubmitterStatus::Active => "ACTIVE",
            SubmitterStatus::Paused => "PAUSED",
        }
    }
}

impl std::str::FromStr for SubmitterStatus {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "ACTIVE" => Ok(SubmitterStatus::Active),
            "PAUSED" => Ok(SubmitterStatus::Paused),
            other => Err(format!("unknown submitter status `{other}`")),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorOutcome {
    /// The id of the row in `audit_log`.
    Recorded(AuditId),
    UnknownSubmitter,
    /// There is nothing to release or adopt.
    NotProtected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditId(pub i64);

/// The current state of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    pub requested_at: DateTime<Utc>,
    /// `None` while it waits for the lane.
    pub applied_at: Option<DateTime<Utc>>,
    pub outcome: Option<String>,
    /// The lane checked it and changed nothing.
    pub refused: bool,
}

/// The transaction that consumed a nonce and its block, as given by an operator. The worker verifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenBy {
    pub tx_hash: H256,
    pub block: u64,
}

/// The actor and the reason of a request.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub actor: &'a str,
    pub reason: &'a str,
}

impl Store {
    /// Pauses or resumes a submitter. Idempotent; every repetition is recorded.
    pub async fn set_status(
        &self,
        key: SubmitterKey,
        status: SubmitterStatus,
        request: Request<'_>,
    ) -> Result<OperatorOutcome, StoreError> {
        // Two literal statements instead of one with a CASE, so that the audit row always matches the update.
        let statement = match status {
            SubmitterStatus::Paused => {
                "-- pause
                WITH changed AS (
                    UPDATE submitter
                    SET status = 'PAUSED', status_reason = $3, updated_at = clock_timestamp()
                    WHERE chain_id = $1 AND submitter = $2
                    RETURNING chain_id, submitter)
                INSERT INTO audit_log (chain_id, submitter, action, reason, actor, applied_at, outcome)
                SELECT chain_id, submitter, 'pause', $3, $4, clock_timestamp(), 'paused'
                FROM changed
                RETURNING audit_id"
            }
            SubmitterStatus::Active => {
                "-- resume
                WITH changed AS (
                    UPDATE submitter
                    SET status = 'ACTIVE', status_reason = NULL, updated_at = clock_timestamp()
                    WHERE chain_id = $1 AND submitter = $2
                    RETURNING chain_id, submitter)
                INSERT INTO audit_log (chain_id, submitter, action, reason, actor, applied_at, outcome)
                SELECT chain_id, submitter, 'resume', $3, $4, clock_timestamp(), 'resumed'
                FROM changed
                RETURNING audit_id"
            }
        };
        let recorded = self.record("set_status", statement, key, request, None).await?;
        Ok(recorded.map_or(OperatorOutcome::UnknownSubmitter, OperatorOutcome::Recorded))
    }

    /// Records a request for the lane. Release needs a submitter in PROTECT; adopt also works if it is SUSPECT or was
    /// never used.
    pub async fn request_action(
        &self,
        key: SubmitterKey,
        action: OperatorAction,
        request: Request<'_>,
        taken_by: Option<TakenBy>,
    ) -> Result<OperatorOutcome, StoreError> {
        let statement = match action {
            OperatorAction::Release => {
                "-- request_release
                INSERT INTO audit_log (chain_id, submitter, action, reason, actor)
                SELECT s.chain_id, s.submitter, 'release', $3, $4
                FROM submitter s
                JOIN submitter_nonce_cursor c ON c.chain_id = s.chain_id AND c.submitter = s.submitter
                WHERE s.chain_id = $1 AND s.submitter = $2 AND c.in_flight_state = 'PROTECT'
                RETURNING audit_id"
            }
            OperatorAction::Adopt => {
                "-- request_adopt
                INSERT INTO audit_log (chain_id, submitter, action, reason, actor, taken_by, taken_block)
                SELECT s.chain_id, s.submitter, 'adopt', $3, $4, $5, $6
                FROM submitter s
                LEFT JOIN submitter_nonce_cursor c ON c.chain_id = s.chain_id AND c.submitter = s.submitter
                WHERE s.chain_id = $1 AND s.submitter = $2
                    AND (c.submitter IS NULL OR c.in_flight_state = 'PROTECT' OR c.suspect_reason IS NOT NULL)
                RETURNING audit_id"
            }
        };
        let taken_by = (action == OperatorAction::Adopt).then_some(taken_by);
        match self.record("request_action", statement, key, request, taken_by).await? {
            Some(id) => Ok(OperatorOutcome::Recorded(id)),
            None if self.submitter_exists(key).await? => Ok(OperatorOutcome::NotProtected),
            None => Ok(OperatorOutcome::UnknownSubmitter),
        }
    }

    async fn record(
        &self,
        operation: &'static str,
        statement: &'static str,
        key: SubmitterKey,
        request: Request<'_>,
        // `None` for statements without these parameters.
        taken_by: Option<Option<TakenBy>>,
    ) -> Result<Option<AuditId>, StoreError> {
        let mut query = sqlx::query_scalar(statement)
            .bind(key.chain_id.as_i64())
            .bind(row::address(key))
            .bind(request.reason)
            .bind(request.actor);
        if let Some(taken_by) = taken_by {
            query = query
                .bind(taken_by.map(|taken| StoredHash::from(taken.tx_hash)))
                .bind(taken_by.map(|taken| i64::try_from(taken.block).unwrap_or(i64::MAX)));
        }
        let id: Option<i64> = query.fetch_optional(&self.pool).await.map_err(StoreError::db(operation))?;
        Ok(id.map(AuditId))
    }

    async fn submitter_exists(&self, key: SubmitterKey) -> Result<bool, StoreError> {
        sqlx::query_scalar(
            "-- submitter_exists
            SELECT EXISTS (SELECT 1 FROM submitter WHERE chain_id = $1 AND submitter = $2)",
        )
        .bind(key.chain_id.as_i64())
        .bind(row::address(key))
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("submitter_exists"))
    }

    pub async fn audit_entry(&self, id: AuditId) -> Result<AuditEntry, StoreError> {
        let (requested_at, applied_at, outcome, refused) = sqlx::query_as(
            "-- audit_entry
            SELECT requested_at, applied_at, outcome, refused
            FROM audit_log
            WHERE audit_id = $1",
        )
        .bind(id.0)
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("audit_entry"))?;
        Ok(AuditEntry { requested_at, applied_at, outcome, refused })
    }
}

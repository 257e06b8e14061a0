//! Whether events are recorded: one row for the whole deployment. Every statement that writes events reads it in the
//! same transaction, so that no program can miss a change of it.

use chrono::{DateTime, Utc};
use semver::Version;

use crate::error::{StoreError, ensure_rows};
use crate::pool::Store;
use crate::row;

/// Programs before this version do not read the row.
const OLDEST_PROGRAM: Version = Version::new(0, 2, 0);

row::row_struct! {
    /// Whether events are recorded, and who decided it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Recording {
        pub enabled: bool,
        /// An operator decided: configurations no longer change it.
        pub by_operator: bool,
        pub changed_by: String,
        pub changed_at: DateTime<Utc>,
    }
}

impl Store {
    pub async fn event_recording(&self) -> Result<Recording, StoreError> {
        sqlx::query_as(
            "-- event_recording
            SELECT enabled, by_operator, changed_by, changed_at FROM event_recording",
        )
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("event_recording"))
    }

    /// An operator enables or disables recording. Enabling is refused while programs are connected that would not
    /// record.
    pub async fn set_event_recording(&self, enabled: bool, by: &str) -> Result<(), StoreError> {
        if enabled {
            self.refuse_programs_that_record_nothing().await?;
        }
        self.store_recording(enabled, by).await?;
        // A program may have connected meanwhile.
        if enabled && let Err(error) = self.refuse_programs_that_record_nothing().await {
            self.store_recording(false, by).await?;
            return Err(error);
        }
        Ok(())
    }

    async fn store_recording(&self, enabled: bool, by: &str) -> Result<(), StoreError> {
        let done = sqlx::query(
            "-- set_event_recording
            UPDATE event_recording
            SET enabled = $1, by_operator = TRUE, changed_by = $2, changed_at = clock_timestamp()",
        )
        .bind(enabled)
        .bind(by)
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("set_event_recording"))?;
        ensure_rows("set_event_recording", 1, done.rows_affected() as usize)
    }

    /// Enables recording because a program's configuration asks for it, unless an operator has decided. Returns what
    /// is stored now.
    pub async fn ask_for_event_recording(&self, by: &str) -> Result<Recording, StoreError> {
        let stored = self.event_recording().await?;
        if stored.enabled || stored.by_operator {
            return Ok(stored);
        }
        self.refuse_programs_that_record_nothing().await?;
        sqlx::query(
            "-- ask_for_event_recording
            UPDATE event_recording
            SET enabled = TRUE, changed_by = $1, changed_at = clock_timestamp()
            WHERE NOT enabled AND NOT by_operator",
        )
        .bind(by)
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("ask_for_event_recording"))?;
        // A program may have connected meanwhile.
        if let Err(error) = self.refuse_programs_that_record_nothing().await {
            sqlx::query(
                "-- ask_for_event_recording: back
                UPDATE event_recording SET enabled = FALSE WHERE NOT by_operator",
            )
            .execute(&self.pool)
            .await
            .map_err(StoreError::db("ask_for_event_recording"))?;
            return Err(error);
        }
        self.event_recording().await
    }

    async fn refuse_programs_that_record_nothing(&self) -> Result<(), StoreError> {
        let mut connected = self.connected_programs().await?;
        connected.retain(|program| program.is_older_than(&OLDEST_PROGRAM));
        match connected.is_empty() {
            true => Ok(()),
            false => Err(StoreError::ProgramsRecordNothing { oldest: OLDEST_PROGRAM, connected }),
        }
    }
}

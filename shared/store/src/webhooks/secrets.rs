//! Encrypted signing secrets. The store does not have the keys.

use gapless_domain::WebhookId;
use uuid::Uuid;

use crate::error::StoreError;
use crate::pool::Store;
use crate::row;

/// An encrypted secret, and the key that opens it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedSecret {
    pub key_id: String,
    pub sealed: Vec<u8>,
}

impl SealedSecret {
    /// `None` unless both columns have a value.
    pub(crate) fn read(key_id: Option<String>, sealed: Option<Vec<u8>>) -> Option<SealedSecret> {
        let (key_id, sealed) = key_id.zip(sealed)?;
        Some(SealedSecret { key_id, sealed })
    }
}

/// The secrets of one webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSecrets {
    pub id: WebhookId,
    pub current: SealedSecret,
    /// The one before the last rotation.
    pub previous: Option<SealedSecret>,
}

row::row_struct! {
    struct Row {
        webhook_id: Uuid,
        secret_key_id: String,
        secret: Vec<u8>,
        previous_secret_key_id: Option<String>,
        previous_secret: Option<Vec<u8>>,
    }
}

impl Store {
    /// Those of all webhooks, to encrypt them again with another key.
    pub async fn webhook_secrets(&self) -> Result<Vec<StoredSecrets>, StoreError> {
        let rows: Vec<Row> = sqlx::query_as(
            "-- webhook_secrets
            SELECT webhook_id, secret_key_id, secret, previous_secret_key_id, previous_secret
            FROM webhook
            ORDER BY webhook_id",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("webhook_secrets"))?;
        let secrets = rows.into_iter().map(|row| StoredSecrets {
            id: WebhookId(row.webhook_id),
            current: SealedSecret { key_id: row.secret_key_id, sealed: row.secret },
            previous: SealedSecret::read(row.previous_secret_key_id, row.previous_secret),
        });
        Ok(secrets.collect())
    }

    /// Replaces both secrets if they are still the old ones. False: they changed meanwhile, or the webhook was deleted.
    pub async fn replace_webhook_secrets(
        &self,
        old: &StoredSecrets,
        new: &StoredSecrets,
    ) -> Result<bool, StoreError> {
        let previous = new.previous.as_ref();
        let done = sqlx::query(
            "-- replace_webhook_secrets
            UPDATE webhook
            SET secret_key_id = $4, secret = $5, previous_secret_key_id = $6, previous_secret = $7,
                previous_secret_until = CASE WHEN $7::BYTEA IS NULL THEN NULL ELSE previous_secret_until END,
                revision = revision + 1
            WHERE webhook_id = $1 AND secret = $2 AND previous_secret IS NOT DISTINCT FROM $3",
        )
        .bind(old.id.0)
        .bind(&old.current.sealed)
        .bind(old.previous.as_ref().map(|secret| &secret.sealed))
        .bind(&new.current.key_id)
        .bind(&new.current.sealed)
        .bind(previous.map(|secret| &secret.key_id))
        .bind(previous.map(|secret| &secret.sealed))
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("replace_webhook_secrets"))?;
        Ok(done.rows_affected() == 1)
    }
}

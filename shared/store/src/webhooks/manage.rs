//! Creating, changing and deleting webhooks.

use std::time::Duration;

use gapless_domain::{ApiKeyId, WebhookId};

use super::locked::lock;
use super::secrets::SealedSecret;
use super::view::{WebhookFilter, WebhookView};
use crate::error::StoreError;
use crate::fence::Tx;
use crate::pool::Store;
use crate::row;
use crate::timeout_pool::PooledConnection;

const UPDATE: &str = "update_webhook";
const DELETE: &str = "delete_webhook";

#[derive(Clone, Debug)]
pub struct NewWebhook {
    pub id: WebhookId,
    /// The API key that creates it; `None`: the API works without keys.
    pub owner: Option<ApiKeyId>,
    pub url: String,
    pub description: String,
    pub filter: WebhookFilter,
    pub secret: SealedSecret,
}

/// What is `None` stays as it is.
#[derive(Clone, Debug, Default)]
pub struct WebhookChange {
    pub url: Option<String>,
    pub description: Option<String>,
    /// Replaces the whole filter.
    pub filter: Option<WebhookFilter>,
    pub enabled: Option<bool>,
}

impl Store {
    /// Stores a webhook that gets the events from now on. `None`: there are `max` already.
    pub async fn create_webhook(
        &self,
        new: &NewWebhook,
        max: u32,
    ) -> Result<Option<WebhookView>, StoreError> {
        let start = self.event_head().await?.end();
        let filter = &new.filter;
        let done = sqlx::query(
            "-- create_webhook
            WITH created AS (
                INSERT INTO webhook (webhook_id, key_id, url, description, chain_id, submitter, tx_id, kinds, secret_key_id, secret)
                SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10
                WHERE (SELECT count(*) FROM webhook) < $11
                RETURNING webhook_id
            )
            INSERT INTO outlet (outlet_id, kind, epoch, position)
            SELECT webhook_id, 'WEBHOOK', $12, $13
            FROM created",
        )
        .bind(new.id.0)
        .bind(new.owner.as_ref().map(ApiKeyId::as_str))
        .bind(&new.url)
        .bind(&new.description)
        .bind(filter.submitter.map(|key| key.chain_id).or(filter.chain_id).map(|chain| chain.as_i64()))
        .bind(filter.submitter.map(row::address))
        .bind(filter.tx_id.map(|tx_id| tx_id.0))
        .bind(&filter.kinds)
        .bind(&new.secret.key_id)
        .bind(&new.secret.sealed)
        .bind(i64::from(max))
        .bind(start.epoch)
        .bind(start.position)
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("create_webhook"))?;
        if done.rows_affected() == 0 {
            return Ok(None);
        }
        self.webhook(None, new.id).await
    }

    /// `None`: there is none with this id and owner.
    pub async fn update_webhook(
        &self,
        owner: Option<&ApiKeyId>,
        id: WebhookId,
        change: &WebhookChange,
    ) -> Result<Option<WebhookView>, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(StoreError::db(UPDATE))?;
        let updated = self.pool.wait_for(UPDATE, update(&mut connection, owner, id, change)).await;
        connection.release(&updated);
        match updated? {
            true => self.webhook(owner, id).await,
            false => Ok(None),
        }
    }

    /// Deletes it with what is still to be delivered. The list of its deliveries is deleted with age. False: there is
    /// none with this id and owner.
    pub async fn delete_webhook(&self, owner: Option<&ApiKeyId>, id: WebhookId) -> Result<bool, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(StoreError::db(DELETE))?;
        let deleted = self.pool.wait_for(DELETE, delete(&mut connection, owner, id)).await;
        connection.release(&deleted);
        deleted
    }

    /// Replaces the secret. The old one signs too for `overlap`. `None`: there is none with this id and owner.
    pub async fn rotate_webhook_secret(
        &self,
        owner: Option<&ApiKeyId>,
        id: WebhookId,
        secret: &SealedSecret,
        overlap: Duration,
    ) -> Result<Option<WebhookView>, StoreError> {
        let done = sqlx::query(
            "-- rotate_webhook_secret
            UPDATE webhook
            SET previous_secret_key_id = secret_key_id, previous_secret = secret,
                previous_secret_until = clock_timestamp() + make_interval(secs => $5),
                secret_key_id = $3, secret = $4, revision = revision + 1
            WHERE webhook_id = $1 AND ($2::TEXT IS NULL OR key_id = $2)",
        )
        .bind(id.0)
        .bind(owner.map(ApiKeyId::as_str))
        .bind(&secret.key_id)
        .bind(&secret.sealed)
        .bind(overlap.as_secs_f64())
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("rotate_webhook_secret"))?;
        match done.rows_affected() {
            0 => Ok(None),
            _ => self.webhook(owner, id).await,
        }
    }
}

async fn update(
    connection: &mut PooledConnection,
    owner: Option<&ApiKeyId>,
    id: WebhookId,
    change: &WebhookChange,
) -> Result<bool, StoreError> {
    let mut tx = connection.begin().await.map_err(StoreError::db(UPDATE))?;
    if !lock(&mut tx, UPDATE, owner, id).await? {
        return Ok(false);
    }
    let filter = change.filter.clone().unwrap_or_default();
    sqlx::query(
        "-- update_webhook
        UPDATE webhook
        SET url = coalesce($2, url),
            description = coalesce($3, description),
            chain_id = CASE WHEN $4 THEN $5 ELSE chain_id END,
            submitter = CASE WHEN $4 THEN $6 ELSE submitter END,
            tx_id = CASE WHEN $4 THEN $7 ELSE tx_id END,
            kinds = CASE WHEN $4 THEN $8 ELSE kinds END,
            disabled_reason = CASE $9 WHEN TRUE THEN NULL WHEN FALSE THEN coalesce(disabled_reason, 'requested') ELSE disabled_reason END,
            disabled_at = CASE $9 WHEN TRUE THEN NULL WHEN FALSE THEN coalesce(disabled_at, clock_timestamp()) ELSE disabled_at END,
            revision = revision + 1
        WHERE webhook_id = $1",
    )
    .bind(id.0)
    .bind(&change.url)
    .bind(&change.description)
    .bind(change.filter.is_some())
    .bind(filter.submitter.map(|key| key.chain_id).or(filter.chain_id).map(|chain| chain.as_i64()))
    .bind(filter.submitter.map(row::address))
    .bind(filter.tx_id.map(|tx_id| tx_id.0))
    .bind(&filter.kinds)
    .bind(change.enabled)
    .execute(&mut *tx)
    .await
    .map_err(StoreError::db(UPDATE))?;
    if change.url.is_some() || change.enabled == Some(true) {
        start_again(&mut tx, id).await?;
    }
    tx.commit().await.map_err(StoreError::db(UPDATE))?;
    Ok(true)
}

/// What waits for a later attempt is due, and the webhook has the whole time until it is disabled as failing.
async fn start_again(tx: &mut Tx<'_>, id: WebhookId) -> Result<(), StoreError> {
    for statement in [
        "-- update_webhook: health
        UPDATE outlet SET failing_since = NULL WHERE outlet_id = $1",
        "-- update_webhook: due
        UPDATE outlet_submitter SET next_attempt_at = clock_timestamp() WHERE outlet_id = $1",
        "-- update_webhook: replays due
        UPDATE webhook_replay SET next_attempt_at = clock_timestamp() WHERE webhook_id = $1",
    ] {
        sqlx::query(statement).bind(id.0).execute(&mut **tx).await.map_err(StoreError::db(UPDATE))?;
    }
    Ok(())
}

async fn delete(
    connection: &mut PooledConnection,
    owner: Option<&ApiKeyId>,
    id: WebhookId,
) -> Result<bool, StoreError> {
    let mut tx = connection.begin().await.map_err(StoreError::db(DELETE))?;
    if !lock(&mut tx, DELETE, owner, id).await? {
        return Ok(false);
    }
    for statement in [
        "-- delete_webhook: outlet
        DELETE FROM outlet WHERE outlet_id = $1",
        "-- delete_webhook: submitters
        DELETE FROM outlet_submitter WHERE outlet_id = $1",
        "-- delete_webhook: replays
        DELETE FROM webhook_replay WHERE webhook_id = $1",
        "-- delete_webhook
        DELETE FROM webhook WHERE webhook_id = $1",
    ] {
        sqlx::query(statement).bind(id.0).execute(&mut *tx).await.map_err(StoreError::db(DELETE))?;
    }
    tx.commit().await.map_err(StoreError::db(DELETE))?;
    Ok(true)
}

//! Changes of a webhook, one at a time with the writes of its worker.

use gapless_domain::{ApiKeyId, WebhookId};

use crate::error::StoreError;
use crate::fence::Tx;

/// The first statement of a change: locks the row that the worker locks first too, so that they do not wait for each
/// other in a circle, and so that requests of one webhook become visible in the order of their numbers. False: there is
/// no webhook with this id and owner.
pub(super) async fn lock(
    tx: &mut Tx<'_>,
    operation: &'static str,
    owner: Option<&ApiKeyId>,
    id: WebhookId,
) -> Result<bool, StoreError> {
    let found: Option<i32> = sqlx::query_scalar(
        "-- lock_webhook
        SELECT 1
        FROM outlet o
        WHERE o.outlet_id = $1
          AND EXISTS (
              SELECT 1
              FROM webhook w
              WHERE w.webhook_id = o.outlet_id AND ($2::TEXT IS NULL OR w.key_id = $2))
        FOR NO KEY UPDATE OF o",
    )
    .bind(id.0)
    .bind(owner.map(ApiKeyId::as_str))
    .fetch_optional(&mut **tx)
    .await
    .map_err(StoreError::db(operation))?;
    Ok(found.is_some())
}

//! `/api/v1/webhooks` and `/api/v1/webhooks/{webhookId}`: webhooks themselves. Their deliveries are in `deliveries`.

use gapless_domain::{TxId, WebhookId};
use gapless_events::EVENT_TYPES;
use gapless_store::webhooks::{self as store, NewWebhook, WebhookChange, WebhookView};
use gapless_webhook::SigningSecret;
use poem::web::Data;
use poem_openapi::param::{Path, Query};
use poem_openapi::payload::Json;
use poem_openapi::{ApiResponse, OpenApi};

use super::Tag;
use super::list::page_size;
use crate::app::{App, SharedApp};
use crate::auth::{Caller, Read, Write};
use crate::error::{ApiError, Failure, OnRead, OnWebhookChange};
use crate::wire::{
    Body, ChangeWebhook, CreateWebhook, NewSecret, SecretText, Webhook, WebhookFilter, WebhookPage,
    WebhookWithSecret,
};

const MAX_DESCRIPTION: usize = 200;

#[derive(ApiResponse)]
pub(crate) enum CreatedWebhook {
    /// Created. Store the secret: it is not shown again.
    #[oai(status = 201)]
    Created(
        Json<WebhookWithSecret>,
        /// URL of the webhook.
        #[oai(header = "Location")]
        String,
    ),
}

#[derive(ApiResponse)]
pub(crate) enum DeletedWebhook {
    /// Deleted, with its list of deliveries.
    #[oai(status = 204)]
    Deleted,
}

#[derive(Debug)]
pub(crate) struct Webhooks;

#[OpenApi(tag = "Tag::Webhooks")]
impl Webhooks {
    /// Create a webhook
    ///
    /// Events that happen from now on are delivered to its URL with POST, as CloudEvents in JSON, signed as in the Standard
    /// Webhooks specification. It gets the events of the submitters that the key may use, and is disabled when the key is
    /// revoked. The response has the signing secret, which is not shown again.
    #[oai(path = "/api/v1/webhooks", method = "post", operation_id = "createWebhook")]
    async fn create(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Write>,
        body: Body<CreateWebhook>,
    ) -> Result<CreatedWebhook, Failure<OnWebhookChange>> {
        let CreateWebhook { url, description, filter, secret } = body.0;
        let id = WebhookId::new();
        let target = app.webhooks.target(&url)?;
        let description = description.unwrap_or_default();
        check_description(&description)?;
        let filter = checked_filter(&app, &caller, filter.unwrap_or_default())?;
        let secret = app.webhooks.secret(secret.as_ref().map(|given| given.0.as_str()))?;
        let new = NewWebhook {
            id,
            owner: caller.key_id().cloned(),
            url: target.expose().to_owned(),
            description,
            filter,
            secret: app.webhooks.seal(id, &secret)?,
        };
        let max = app.webhooks.max;
        let view = app.store.create_webhook(&new, max).await?;
        let view = view.ok_or(ApiError::TooManyWebhooks { limit: max })?;
        tracing::info!(webhook.id = %id, %target, actor = caller.actor(), "webhook created");
        Ok(CreatedWebhook::Created(with_secret(view, &secret), format!("/api/v1/webhooks/{id}")))
    }

    /// List webhooks
    ///
    /// Those that the key created; with the scope `admin` and no limit to submitters, all. Oldest first.
    #[oai(path = "/api/v1/webhooks", method = "get", operation_id = "listWebhooks")]
    async fn list(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Read>,
        /// Page size, 1 to 200. Default: 50.
        limit: Query<Option<u32>>,
        /// `nextCursor` of the previous page.
        cursor: Query<Option<String>>,
    ) -> Result<Json<WebhookPage>, Failure<OnRead>> {
        let limit = page_size(limit.0)?;
        let after: Option<WebhookId> = cursor
            .0
            .map(|text| text.parse())
            .transpose()
            .map_err(|_| ApiError::invalid("cursor", "must be the nextCursor of a page"))?;
        // One more row than requested shows whether there is another page.
        let mut views = app.store.webhooks(caller.webhooks_of(), after, limit + 1).await?;
        let more = views.len() > limit as usize;
        views.truncate(limit as usize);
        let next_cursor = views.last().filter(|_| more).map(|last| last.id.0.simple().to_string());
        Ok(Json(WebhookPage { items: views.into_iter().map(Webhook::from).collect(), next_cursor }))
    }

    /// Get a webhook
    ///
    /// With the state of its deliveries. Without its secret.
    #[oai(path = "/api/v1/webhooks/:webhookId", method = "get", operation_id = "getWebhook")]
    async fn get(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Read>,
        #[oai(name = "webhookId")] webhook_id: Path<String>,
    ) -> Result<Json<Webhook>, Failure<OnRead>> {
        let id = parse_id(&webhook_id.0)?;
        Ok(Json(own_webhook(&app, &caller, id).await?.into()))
    }

    /// Change a webhook
    ///
    /// Workers follow within a second. A delivery that is under way may still go to the old URL.
    #[oai(path = "/api/v1/webhooks/:webhookId", method = "patch", operation_id = "updateWebhook")]
    async fn update(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Write>,
        #[oai(name = "webhookId")] webhook_id: Path<String>,
        body: Body<ChangeWebhook>,
    ) -> Result<Json<Webhook>, Failure<OnWebhookChange>> {
        let ChangeWebhook { url, description, filter, enabled } = body.0;
        let id = parse_id(&webhook_id.0)?;
        let target = url.map(|url| app.webhooks.target(&url)).transpose()?;
        description.as_deref().map_or(Ok(()), check_description)?;
        let change = WebhookChange {
            url: target.as_ref().map(|target| target.expose().to_owned()),
            description,
            filter: filter.map(|filter| checked_filter(&app, &caller, filter)).transpose()?,
            enabled,
        };
        let changed = app.store.update_webhook(caller.webhooks_of(), id, &change).await?;
        let view = changed.ok_or(ApiError::WebhookNotFound)?;
        let target = target.map(|target| target.to_string());
        tracing::info!(webhook.id = %id, target, enabled, actor = caller.actor(), "webhook changed");
        Ok(Json(view.into()))
    }

    /// Delete a webhook
    ///
    /// Nothing is delivered any more. A delivery that is under way may still arrive.
    #[oai(path = "/api/v1/webhooks/:webhookId", method = "delete", operation_id = "deleteWebhook")]
    async fn delete(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Write>,
        #[oai(name = "webhookId")] webhook_id: Path<String>,
    ) -> Result<DeletedWebhook, Failure<OnRead>> {
        let id = parse_id(&webhook_id.0)?;
        if !app.store.delete_webhook(caller.webhooks_of(), id).await? {
            return Err(ApiError::WebhookNotFound.into());
        }
        tracing::info!(webhook.id = %id, actor = caller.actor(), "webhook deleted");
        Ok(DeletedWebhook::Deleted)
    }

    /// Rotate the secret of a webhook
    ///
    /// For `events.webhook.rotation_overlap` (24 hours by default), deliveries are signed with the new and with the previous
    /// secret. The response has the new one, which is not shown again.
    #[oai(path = "/api/v1/webhooks/:webhookId/rotate", method = "post", operation_id = "rotateWebhookSecret")]
    async fn rotate(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Write>,
        #[oai(name = "webhookId")] webhook_id: Path<String>,
        body: Body<NewSecret>,
    ) -> Result<Json<WebhookWithSecret>, Failure<OnWebhookChange>> {
        let id = parse_id(&webhook_id.0)?;
        let secret = app.webhooks.secret(body.0.secret.as_ref().map(|given| given.0.as_str()))?;
        let sealed = app.webhooks.seal(id, &secret)?;
        let overlap = app.webhooks.rotation_overlap;
        let rotated = app.store.rotate_webhook_secret(caller.webhooks_of(), id, &sealed, overlap).await?;
        let view = rotated.ok_or(ApiError::WebhookNotFound)?;
        tracing::info!(webhook.id = %id, actor = caller.actor(), "webhook secret rotated");
        Ok(with_secret(view, &secret))
    }
}

pub(super) fn parse_id(text: &str) -> Result<WebhookId, ApiError> {
    text.parse().map_err(|_| ApiError::invalid("webhookId", "must be a UUID"))
}

/// A webhook of another key is reported as not found.
pub(super) async fn own_webhook<R>(
    app: &App,
    caller: &Caller<R>,
    id: WebhookId,
) -> Result<WebhookView, ApiError> {
    app.store.webhook(caller.webhooks_of(), id).await?.ok_or(ApiError::WebhookNotFound)
}

fn with_secret(view: WebhookView, secret: &SigningSecret) -> Json<WebhookWithSecret> {
    Json(WebhookWithSecret { webhook: view.into(), secret: SecretText(secret.expose().to_string()) })
}

fn check_description(text: &str) -> Result<(), ApiError> {
    if text.chars().count() > MAX_DESCRIPTION || text.contains(char::is_control) {
        let problem = format!("must be at most {MAX_DESCRIPTION} printable characters");
        return Err(ApiError::invalid("description", problem));
    }
    Ok(())
}

fn checked_filter(
    app: &App,
    caller: &Caller<Write>,
    filter: WebhookFilter,
) -> Result<store::WebhookFilter, ApiError> {
    let chain_id = filter.chain_id.map(|id| app.chains.pick(Some(id))).transpose()?;
    let submitter = filter
        .submitter
        .map(|address| app.chains.submitter_in("filter.submitter", filter.chain_id, &address))
        .transpose()?;
    let tx_id: Option<TxId> = filter
        .tx_id
        .map(|text| text.parse())
        .transpose()
        .map_err(|_| ApiError::invalid("filter.txId", "must be a UUID"))?;
    Ok(store::WebhookFilter {
        chain_id,
        submitter: submitter.map(|key| caller.own(key)).transpose()?,
        tx_id,
        kinds: filter.types.map(checked_types).transpose()?,
    })
}

/// Without repetitions, in the order of the documentation.
fn checked_types(given: Vec<String>) -> Result<Vec<String>, ApiError> {
    let known = EVENT_TYPES.map(|kind| kind.name);
    if given.is_empty() {
        return Err(ApiError::invalid(
            "filter.types",
            "must not be empty; without it, all types are delivered",
        ));
    }
    if let Some(index) = given.iter().position(|name| !known.contains(&name.as_str())) {
        let problem = format!("must be one of {}", known.join(", "));
        return Err(ApiError::invalid(&format!("filter.types[{index}]"), problem));
    }
    Ok(known.into_iter().filter(|name| given.iter().any(|given| given == name)).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_known_and_listed_once() {
        let types = |names: &[&str]| checked_types(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(
            types(&["tx.failed", "tx.confirmed", "tx.failed"]).unwrap(),
            ["tx.confirmed", "tx.failed"]
        );
        for (wrong, field) in [
            (&[][..], "filter.types"),
            (&["tx.failed", "tx.*"], "filter.types[1]"),
            (&["webhook.test"], "filter.types[0]"),
        ] {
            assert_eq!(types(wrong).unwrap_err().problem().field.as_deref(), Some(field));
        }
    }

    #[test]
    fn a_description_is_short_and_printable() {
        assert!(check_description("").is_ok());
        assert!(check_description(&"ü".repeat(200)).is_ok());
        assert!(check_description(&"ü".repeat(201)).is_err());
        assert!(check_description("a\nb").is_err());
    }
}

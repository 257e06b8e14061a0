//! Webhooks and outlets.

use anyhow::{Context, Result};
use gapless_domain::WebhookId;
use reqwest::Method;
use serde_json::Value;

use super::Api;

const WEBHOOKS: &str = "api/v1/webhooks";
/// Largest page of the API.
const MAX_PAGE: u32 = 200;

impl Api {
    /// The webhook and its secret.
    pub async fn create_webhook(&self, request: &Value) -> Result<Value> {
        self.answer(self.request(Method::POST, WEBHOOKS, &[])?.json(request)).await
    }

    pub async fn webhooks(&self) -> Result<Vec<Value>> {
        self.all_pages(WEBHOOKS, None, u32::MAX).await
    }

    pub async fn webhook(&self, id: WebhookId) -> Result<Value> {
        self.answer(self.request(Method::GET, &path(id, ""), &[])?).await
    }

    pub async fn update_webhook(&self, id: WebhookId, changes: &Value) -> Result<Value> {
        self.answer(self.request(Method::PATCH, &path(id, ""), &[])?.json(changes)).await
    }

    pub async fn delete_webhook(&self, id: WebhookId) -> Result<()> {
        self.answer(self.request(Method::DELETE, &path(id, ""), &[])?).await.map(|_| ())
    }

    /// The webhook and its new secret.
    pub async fn rotate_webhook_secret(&self, id: WebhookId, request: &Value) -> Result<Value> {
        self.answer(self.request(Method::POST, &path(id, "/rotate"), &[])?.json(request)).await
    }

    /// The delivery of a test event.
    pub async fn test_webhook(&self, id: WebhookId) -> Result<Value> {
        // The API waits as long as a delivery may take, which is configured there.
        self.answer(self.endless_request(Method::POST, &path(id, "/test"), &[])?).await
    }

    /// Newest first.
    pub async fn deliveries(&self, id: WebhookId, state: Option<String>, limit: u32) -> Result<Vec<Value>> {
        self.all_pages(&path(id, "/deliveries"), state, limit).await
    }

    pub async fn replay_webhook(&self, id: WebhookId, request: &Value) -> Result<Value> {
        self.answer(self.request(Method::POST, &path(id, "/replay"), &[])?.json(request)).await
    }

    pub async fn outlets(&self) -> Result<Value> {
        self.answer(self.request(Method::GET, "api/v1/outlets", &[])?).await
    }

    async fn all_pages(&self, path: &str, state: Option<String>, limit: u32) -> Result<Vec<Value>> {
        let mut all: Vec<Value> = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let left = limit.saturating_sub(u32::try_from(all.len()).unwrap_or(u32::MAX)).min(MAX_PAGE);
            let query = [("limit", Some(left.to_string())), ("state", state.clone()), ("cursor", cursor)];
            let answer = self.answer(self.request(Method::GET, path, &query)?).await?;
            let items = answer["items"].as_array().context("the response has no list")?;
            all.extend(items.iter().cloned());
            cursor = answer["nextCursor"].as_str().map(str::to_owned);
            if cursor.is_none() || all.len() >= limit as usize {
                return Ok(all);
            }
        }
    }
}

fn path(id: WebhookId, rest: &str) -> String {
    format!("{WEBHOOKS}/{id}{rest}")
}

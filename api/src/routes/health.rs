//! `/healthz`, `/readyz`, `/metrics`.

use poem::web::Data;
use poem_openapi::payload::{Json, PlainText};
use poem_openapi::types::Example;
use poem_openapi::{Object, OpenApi};

use super::Tag;
use crate::app::SharedApp;
use crate::error::{ApiError, Failure, OnHealth, OnReady};

/// Health of the process.
#[derive(Clone, Debug, Object)]
#[oai(example)]
pub(crate) struct HealthStatus {
    /// Always `ok`.
    status: String,
}

impl Example for HealthStatus {
    fn example() -> Self {
        HealthStatus { status: "ok".into() }
    }
}

#[derive(Debug)]
pub(crate) struct Health;

#[OpenApi(tag = "Tag::Operations")]
impl Health {
    /// Liveness check
    ///
    /// Responds as long as the process runs. Does not use the database.
    #[oai(path = "/healthz", method = "get", operation_id = "health")]
    async fn health(&self) -> Result<Json<HealthStatus>, Failure<OnHealth>> {
        Ok(Json(HealthStatus { status: "ok".into() }))
    }

    /// Readiness check
    ///
    /// Responds 503 if requests cannot be served; `missing` is the cause: `database` or `schema`. The log has the details.
    #[oai(path = "/readyz", method = "get", operation_id = "ready")]
    async fn ready(&self, app: Data<&SharedApp>) -> Result<Json<HealthStatus>, Failure<OnReady>> {
        let missing = app.readiness.missing(&app.store).await;
        if missing.is_empty() {
            Ok(Json(HealthStatus { status: "ok".into() }))
        } else {
            Err(ApiError::NotReady { missing }.into())
        }
    }

    /// Prometheus metrics
    ///
    /// The metrics of this process, in the text format of Prometheus.
    #[oai(path = "/metrics", method = "get", operation_id = "metrics")]
    async fn metrics(&self, app: Data<&SharedApp>) -> Result<PlainText<String>, Failure<OnHealth>> {
        Ok(PlainText(app.metrics.render()))
    }
}

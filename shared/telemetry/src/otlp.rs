//! Export of spans to an OpenTelemetry collector: OTLP over HTTP. Off by default.
//!
//! Spans wait in a bounded queue and are sent by a thread of the SDK; a collector that is slow or away loses spans and
//! delays nothing. Only spans are exported, no log lines.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use gapless_config::Traces;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use reqwest::redirect::Policy;
use tokio::runtime::Handle;

use super::metrics::TRACE_EXPORTS_TOTAL;

/// How long a normal shutdown waits for the last spans.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Spans are made only while this is set.
static EXPORTING: AtomicBool = AtomicBool::new(false);

pub(super) fn is_exporting() -> bool {
    EXPORTING.load(Ordering::Relaxed)
}

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("configuration: traces.ca_file: {0}")]
    Certificates(String),
    #[error("cannot make the client for traces: {0}")]
    Client(#[source] reqwest::Error),
    #[error("cannot set up the export of traces: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// Exports the remaining spans on drop.
#[derive(Debug)]
pub(super) struct Export {
    provider: SdkTracerProvider,
    /// Its spans are those of the process.
    active: bool,
}

impl Export {
    /// The subscriber of the process uses it: from now on spans are made.
    pub(super) fn activate(mut self) -> Export {
        self.active = true;
        EXPORTING.store(true, Ordering::Relaxed);
        self
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if self.active {
            EXPORTING.store(false, Ordering::Relaxed);
        }
        // A collector that is away was reported before.
        let _ = self.provider.shutdown_with_timeout(FLUSH_TIMEOUT);
    }
}

/// Must be called within a tokio runtime, which sends the requests.
pub(super) fn start(
    config: &Traces,
    service: &'static str,
) -> Result<Option<(Export, SdkTracer)>, ExportError> {
    let Some(url) = &config.otlp_url else { return Ok(None) };
    let mut client = gapless_http_client::client_builder().timeout(config.timeout).redirect(Policy::none());
    if let Some(path) = &config.ca_file {
        for certificate in gapless_http_client::read_certificates(path).map_err(ExportError::Certificates)? {
            client = client.add_root_certificate(certificate);
        }
    }
    let client = client.build().map_err(ExportError::Client)?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Collector { client, runtime: Handle::current(), failing: Arc::default() })
        .with_endpoint(format!("{}/v1/traces", url.expose().trim_end_matches('/')))
        .with_timeout(config.timeout)
        .build()?;
    let resource = Resource::builder()
        .with_service_name(service)
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample_ratio))))
        .with_resource(resource)
        .build();
    let tracer = provider.tracer("gapless");
    Ok(Some((Export { provider, active: false }, tracer)))
}

/// The collector as seen by the exporter. Logs when it becomes unavailable and when it is available again.
#[derive(Debug)]
struct Collector {
    client: reqwest::Client,
    /// The exporter calls from a thread of its own.
    runtime: Handle,
    failing: Arc<AtomicBool>,
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (client, failing) = (self.client.clone(), self.failing.clone());
        let task = self.runtime.spawn(async move {
            let answer = send(&client, request).await;
            let problem = match &answer {
                Ok(answer) if answer.status().is_success() => None,
                Ok(answer) => Some(format!("HTTP {}", answer.status().as_u16())),
                Err(error) => Some(error.to_string()),
            };
            report(&failing, problem);
            answer
        });
        Ok(task.await??)
    }
}

async fn send(client: &reqwest::Client, request: Request<Bytes>) -> Result<Response<Bytes>, reqwest::Error> {
    // The URL may contain an API key.
    let answer = client.execute(request.try_into()?).await.map_err(reqwest::Error::without_url)?;
    let status = answer.status();
    let mut response = Response::new(answer.bytes().await.map_err(reqwest::Error::without_url)?);
    *response.status_mut() = status;
    Ok(response)
}

fn report(failing: &AtomicBool, problem: Option<String>) {
    let result = if problem.is_none() { "ok" } else { "failed" };
    metrics::counter!(TRACE_EXPORTS_TOTAL, "result" => result).increment(1);
    match (failing.swap(problem.is_some(), Ordering::Relaxed), problem) {
        (false, Some(problem)) => tracing::warn!(problem, "spans could not be exported; retrying"),
        (true, None) => tracing::info!("spans are exported again"),
        _ => {}
    }
}

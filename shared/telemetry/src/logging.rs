//! Log output and format, and the spans that are exported.

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::fmt::format::JsonFields;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use super::json_line::JsonLine;
use super::log_queue::LogQueue;
use super::otlp::{self, Export, ExportError};
use super::trace::STEP_TARGET;
use gapless_config::{Log, LogFormat, Traces};

/// Further lines are dropped while the queue is full.
const QUEUE_BYTES: usize = 8 << 20;
/// How long a normal shutdown waits for the log to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

static QUEUE: OnceLock<LogQueue> = OnceLock::new();

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("configuration: log.level: `{level}` is not a valid filter: {source}")]
    Filter {
        level: String,
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("cannot start the log thread: {0}")]
    Thread(#[from] std::io::Error),
    #[error(transparent)]
    Export(#[from] ExportError),
}

/// Writes the remaining log lines and exports the remaining spans on drop. Keep it until the process ends.
#[derive(Debug)]
#[must_use = "log lines and spans may be lost if it is dropped early"]
pub struct TelemetryGuard {
    export: Option<Export>,
}

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        // First, because it may log.
        drop(self.export.take());
        flush_logs();
    }
}

/// Logs to standard error, so that standard output is free for data, and exports spans if that is configured. Only the
/// first call in a process has an effect, so several services in one process (as in tests) share one log.
///
/// With an export it must be called within a tokio runtime.
pub fn init_telemetry(
    log: &Log,
    traces: &Traces,
    service: &'static str,
) -> Result<TelemetryGuard, TelemetryError> {
    let filter = EnvFilter::try_new(&log.level)
        .map_err(|source| TelemetryError::Filter { level: log.level.clone(), source })?;
    let queue = match QUEUE.get() {
        Some(queue) => queue,
        // Two concurrent first calls leave one unused thread.
        None => {
            let queue = LogQueue::start(std::io::stderr(), QUEUE_BYTES)?;
            QUEUE.get_or_init(|| queue)
        }
    };
    let lines = match log.format {
        LogFormat::Json => tracing_subscriber::fmt::layer()
            .with_writer(queue.clone())
            .fmt_fields(JsonFields::new())
            .event_format(JsonLine::new())
            .boxed(),
        LogFormat::Text => tracing_subscriber::fmt::layer()
            .with_writer(queue.clone())
            .with_ansi(std::io::stderr().is_terminal())
            .boxed(),
    };
    let lines = lines.with_filter(filter.and(filter_fn(may_be_logged)));
    let (export, tracer) = otlp::start(traces, service)?.unzip();
    let spans = tracer.map(|tracer| {
        let layer = tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false);
        layer.with_filter(filter_fn(is_exported).with_max_level_hint(LevelFilter::INFO))
    });
    let export = match tracing_subscriber::registry().with(lines).with(spans).try_init() {
        Ok(()) => export.map(Export::activate),
        Err(_) => {
            tracing::debug!("logging was already set up");
            None
        }
    };
    Ok(TelemetryGuard { export })
}

/// Spans of our own. Log lines are not exported: they may contain more than a collector should see.
fn is_exported(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && *metadata.level() <= Level::INFO && is_ours(metadata.target())
}

/// Libraries never log below `info`, whatever the filter: at `debug` and `trace` some of them log URLs, headers,
/// statements or connection data, and an update may add more. Spans of steps are only exported.
fn may_be_logged(metadata: &Metadata<'_>) -> bool {
    let is_step = metadata.is_span() && metadata.target() == STEP_TARGET;
    !is_step && (is_ours(metadata.target()) || *metadata.level() <= limit_of(metadata.target()))
}

/// The libraries of cloud services report each load of credentials at `info`, and print whole responses of credential
/// servers at `warn`. What failed is in our own messages.
fn limit_of(library: &str) -> Level {
    match ["aws_", "google_cloud_"].iter().any(|prefix| library.starts_with(prefix)) {
        true => Level::ERROR,
        false => Level::INFO,
    }
}

/// The crates of this workspace: `gapless`, `gapless_api` and so on.
fn is_ours(target: &str) -> bool {
    let name = target.split("::").next().unwrap_or_default();
    name == "gapless" || name.starts_with("gapless_")
}

/// Waits until all lines logged so far are written, up to a timeout.
pub fn flush_logs() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(FLUSH_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_filter_names_its_key() {
        let log = Log { level: "a=b=c".into(), format: LogFormat::Json };
        let error = init_telemetry(&log, &Traces::default(), "gapless-api").unwrap_err();
        assert!(error.to_string().contains("log.level"), "{error}");
    }

    #[test]
    fn only_our_own_crates_log_below_info() {
        for target in ["gapless", "gapless::store", "gapless_worker::lane", "gapless_api"] {
            assert!(is_ours(target), "{target}");
        }
        for target in ["hyper", "gaplessly", "sqlx::query", "log", "rustls::gapless"] {
            assert!(!is_ours(target), "{target}");
            assert_eq!(limit_of(target), Level::INFO, "{target}");
        }
        for target in ["aws_config::profile", "aws_smithy_runtime", "google_cloud_auth::token"] {
            assert_eq!(limit_of(target), Level::ERROR, "{target}");
        }
    }
}

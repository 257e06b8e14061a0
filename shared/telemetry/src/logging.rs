//! Log output and format.

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::Duration;

use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::log_queue::LogQueue;
use gapless_config::{Log, LogFormat};

/// Further lines are dropped while the queue is full.
const QUEUE_BYTES: usize = 8 << 20;
/// How long a normal shutdown waits for the log to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

static QUEUE: OnceLock<LogQueue> = OnceLock::new();

#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    #[error("configuration: log.level: `{level}` is not a valid filter: {source}")]
    Filter {
        level: String,
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("cannot start the log thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Flushes the log on drop. Keep it until the process ends.
#[derive(Debug)]
#[must_use = "log lines may be lost if it is dropped early"]
pub struct LogGuard(());

impl Drop for LogGuard {
    fn drop(&mut self) {
        flush_logs();
    }
}

/// Logs to standard error, so that standard output is free for data. Only the first call in a process has an effect, so
/// several services in one process (as in tests) share one log.
pub fn init_logging(config: &Log) -> Result<LogGuard, LoggingError> {
    let filter = EnvFilter::try_new(&config.level)
        .map_err(|source| LoggingError::Filter { level: config.level.clone(), source })?;
    let queue = match QUEUE.get() {
        Some(queue) => queue,
        // Two concurrent first calls leave one unused thread.
        None => {
            let queue = LogQueue::start(std::io::stderr(), QUEUE_BYTES)?;
            QUEUE.get_or_init(|| queue)
        }
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(queue.clone())
        .with_ansi(std::io::stderr().is_terminal());
    let cap = filter_fn(may_be_logged);
    let installed = match config.format {
        LogFormat::Json => {
            builder.json().flatten_event(true).with_span_list(false).finish().with(cap).try_init()
        }
        LogFormat::Text => builder.finish().with(cap).try_init(),
    };
    if installed.is_err() {
        tracing::debug!("logging was already set up");
    }
    Ok(LogGuard(()))
}

/// Libraries never log below `info`, whatever the filter: at `debug` and `trace` some of them log URLs, headers,
/// statements or connection data, and an update may add more.
fn may_be_logged(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::INFO || is_ours(metadata.target())
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
        let error = init_logging(&Log { level: "a=b=c".into(), format: LogFormat::Json }).unwrap_err();
        assert!(error.to_string().contains("log.level"), "{error}");
    }

    #[test]
    fn only_our_own_crates_log_below_info() {
        for target in ["gapless", "gapless::store", "gapless_worker::lane", "gapless_api"] {
            assert!(is_ours(target), "{target}");
        }
        for target in ["hyper", "gaplessly", "sqlx::query", "log", "rustls::gapless"] {
            assert!(!is_ours(target), "{target}");
        }
    }
}

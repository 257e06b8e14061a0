//! Where log lines go and what they look like.

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::Duration;

use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::log_queue::LogQueue;
use crate::config::{Log, LogFormat};

/// Some seconds of a flood, or a day of a quiet service. Beyond it lines are dropped.
const QUEUE_BYTES: usize = 8 << 20;
/// What a normal end waits for a slow reader of the log.
const PATIENCE: Duration = Duration::from_secs(2);

static QUEUE: OnceLock<LogQueue> = OnceLock::new();

#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    #[error("configuration: log.level: `{level}` is not a filter: {source}")]
    Filter {
        level: String,
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("the log has no thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// To be kept until the process ends: its end is when the last lines are written.
#[derive(Debug)]
#[must_use = "the last lines are lost if it is dropped early"]
pub struct LogGuard(());

impl Drop for LogGuard {
    fn drop(&mut self) {
        flush_logs();
    }
}

/// Logs go to standard error, so that a program's output stays its own. A second call in one process changes
/// nothing: whoever embeds several services (tests do) has one log.
pub fn init_logging(config: &Log) -> Result<LogGuard, LoggingError> {
    let filter = EnvFilter::try_new(&config.level)
        .map_err(|source| LoggingError::Filter { level: config.level.clone(), source })?;
    let queue = match QUEUE.get() {
        Some(queue) => queue,
        // Of two that come at once, one has a thread for nothing.
        None => {
            let queue = LogQueue::start(std::io::stderr(), QUEUE_BYTES)?;
            QUEUE.get_or_init(|| queue)
        }
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(queue.clone())
        .with_ansi(std::io::stderr().is_terminal());
    let cap = filter_fn(may_be_told);
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

/// Whatever the filter says, libraries say nothing below `info`: at `debug` and `trace` some of them show URLs, headers,
/// statements or bytes of a connection, and what they will show after the next update nobody knows.
fn may_be_told(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::INFO || is_ours(metadata.target())
}

/// The crates of this workspace: `gapless`, `gapless_api` and so on.
fn is_ours(target: &str) -> bool {
    let name = target.split("::").next().unwrap_or_default();
    name == "gapless" || name.starts_with("gapless_")
}

/// Waits until everything logged so far is written, or the reader has proved too slow.
pub fn flush_logs() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(PATIENCE);
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
    fn only_our_own_crates_may_be_talkative() {
        for target in ["gapless", "gapless::store", "gapless_worker::lane", "gapless_api"] {
            assert!(is_ours(target), "{target}");
        }
        for target in ["hyper", "gaplessly", "sqlx::query", "log", "rustls::gapless"] {
            assert!(!is_ours(target), "{target}");
        }
    }
}

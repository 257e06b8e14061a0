//! Where log lines go and what they look like.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{Log, LogFormat};

#[derive(Debug, thiserror::Error)]
#[error("configuration: log.level: `{level}` is not a filter: {source}")]
pub struct LoggingError {
    level: String,
    #[source]
    source: tracing_subscriber::filter::ParseError,
}

/// Logs go to standard error, so that a program's output stays its own. A second call in one process changes
/// nothing: whoever embeds several services (tests do) has one log.
pub fn init_logging(config: &Log) -> Result<(), LoggingError> {
    let filter = EnvFilter::try_new(&config.level)
        .map_err(|source| LoggingError { level: config.level.clone(), source })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let installed = match config.format {
        LogFormat::Json => builder.json().flatten_event(true).with_span_list(false).finish().try_init(),
        LogFormat::Text => builder.finish().try_init(),
    };
    if installed.is_err() {
        tracing::debug!("logging was already set up");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_filter_names_its_key() {
        let error = init_logging(&Log { level: "a=b=c".into(), format: LogFormat::Json }).unwrap_err();
        assert!(error.to_string().contains("log.level"), "{error}");
    }
}

//! Export of traces to an OpenTelemetry collector.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use url::Url;

use super::{ConfigError, Secret};

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Traces {
    /// Base URL of an OTLP/HTTP collector; `/v1/traces` is appended. `None`: nothing is exported. A secret, because
    /// URLs of providers may contain API keys.
    pub otlp_url: Option<Secret>,
    /// Share of new traces that are exported, 0 to 1. A client's `traceparent` decides for its own trace.
    pub sample_ratio: f64,
    /// PEM file with extra CA certificates for the collector.
    pub ca_file: Option<PathBuf>,
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

impl Default for Traces {
    fn default() -> Self {
        Traces { otlp_url: None, sample_ratio: 1.0, ca_file: None, timeout: Duration::from_secs(10) }
    }
}

impl Traces {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let bad = |key: &str, problem: &str| {
            Err(ConfigError::Invalid { key: format!("traces.{key}"), problem: problem.to_owned() })
        };
        if let Some(url) = &self.otlp_url {
            match Url::parse(url.expose()) {
                Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => {}
                _ => return bad("otlp_url", "is not an http or https URL"),
            }
        }
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return bad("sample_ratio", "must be between 0 and 1");
        }
        if self.timeout.is_zero() {
            return bad("timeout", "must be longer than 0");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_is_none_and_a_ratio_above_one_are_refused() {
        let traces = |url: &str, sample_ratio| Traces {
            otlp_url: Some(Secret::new(url)),
            sample_ratio,
            ..Traces::default()
        };
        assert!(traces("http://collector:4318", 0.5).check().is_ok());
        assert!(Traces::default().check().is_ok());
        for (refused, key) in [
            (traces("collector:4318", 1.0), "traces.otlp_url"),
            (traces("grpc://collector:4317", 1.0), "traces.otlp_url"),
            (traces("http://collector:4318", 1.1), "traces.sample_ratio"),
            (traces("http://collector:4318", f64::NAN), "traces.sample_ratio"),
        ] {
            let error = refused.check().unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}

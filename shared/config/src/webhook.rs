//! The `[events.webhook]` section: delivery of events by HTTP.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::{ConfigError, Secret};

const MAX_IN_FLIGHT: RangeInclusive<usize> = 1..=256;
/// Longer times do not fit the timestamps of the database.
const MAX_TIME: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
const HOUR: u64 = 3600;

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Webhook {
    /// File with the keys that encrypt signing secrets, for API and worker. Absent: webhooks are off.
    pub key_file: Option<PathBuf>,
    /// Addresses and networks that deliveries may go to although they are not public.
    pub allow: Vec<String>,
    /// Of one delivery.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Waits before each attempt, the first included.
    #[serde(deserialize_with = "durations")]
    pub retry: Vec<Duration>,
    /// Maximum concurrent deliveries of one webhook.
    pub max_in_flight: usize,
    /// A webhook whose deliveries all fail for this long is disabled.
    #[serde(with = "humantime_serde")]
    pub disable_after: Duration,
    /// How long after a rotation the previous secret signs as well.
    #[serde(with = "humantime_serde")]
    pub rotation_overlap: Duration,
    /// How long successful deliveries stay in the list.
    #[serde(with = "humantime_serde")]
    pub delivered_retention: Duration,
}

impl Default for Webhook {
    fn default() -> Self {
        // Those of Standard Webhooks: a receiver that is down for a day misses nothing.
        let retry = [0, 5, 5 * 60, 30 * 60, 2 * HOUR, 5 * HOUR, 10 * HOUR, 10 * HOUR];
        Webhook {
            key_file: None,
            allow: Vec::new(),
            timeout: Duration::from_secs(15),
            retry: retry.map(Duration::from_secs).to_vec(),
            max_in_flight: 32,
            disable_after: Duration::from_secs(5 * 24 * HOUR),
            rotation_overlap: Duration::from_secs(24 * HOUR),
            delivered_retention: Duration::from_secs(24 * HOUR),
        }
    }
}

fn durations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Duration>, D::Error> {
    let texts = Vec::<humantime_serde::Serde<Duration>>::deserialize(deserializer)?;
    Ok(texts.into_iter().map(humantime_serde::Serde::into_inner).collect())
}

fn invalid(key: &str, problem: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { key: format!("events.webhook.{key}"), problem: problem.into() }
}

impl Webhook {
    /// The text of `key_file`. `None`: webhooks are off.
    pub fn read_keys(&self) -> Result<Option<Secret>, ConfigError> {
        let Some(path) = &self.key_file else { return Ok(None) };
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Some(Secret::new(text))),
            Err(error) => Err(invalid("key_file", format!("{}: {error}", path.display()))),
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !MAX_IN_FLIGHT.contains(&self.max_in_flight) {
            let (min, max) = MAX_IN_FLIGHT.into_inner();
            return Err(invalid("max_in_flight", format!("must be between {min} and {max}")));
        }
        if self.retry.is_empty() {
            return Err(invalid("retry", "must have at least one wait"));
        }
        for (key, time) in [("timeout", self.timeout), ("disable_after", self.disable_after)] {
            if time.is_zero() {
                return Err(invalid(key, "must be greater than 0"));
            }
        }
        let times = [
            ("timeout", self.timeout),
            ("disable_after", self.disable_after),
            ("rotation_overlap", self.rotation_overlap),
            ("delivered_retention", self.delivered_retention),
        ];
        let waits = self.retry.iter().map(|wait| ("retry", *wait));
        match times.into_iter().chain(waits).find(|(_, time)| *time > MAX_TIME) {
            Some((key, _)) => Err(invalid(key, "must be at most 10 years")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use figment::Figment;
    use figment::providers::{Format, Toml};

    use super::*;

    fn parse(toml: &str) -> Result<Webhook, ConfigError> {
        let webhook: Webhook = Figment::from(Toml::string(toml)).extract()?;
        webhook.check()?;
        Ok(webhook)
    }

    #[test]
    fn the_defaults_are_those_of_the_sample_and_valid() {
        let sample: toml::Value = toml::from_str(include_str!("../../../gapless.example.toml")).unwrap();
        let section = toml::to_string(&sample["events"]["webhook"]).unwrap();
        let (sample, default) = (parse(&section).unwrap(), parse("").unwrap());
        assert_eq!(format!("{sample:?}"), format!("{default:?}"));
        assert!(default.read_keys().unwrap().is_none());
    }

    #[test]
    fn an_invalid_value_names_its_key() {
        for (setting, problem) in [
            ("max_in_flight = 0", "events.webhook.max_in_flight: must be between 1 and 256"),
            ("max_in_flight = 257", "events.webhook.max_in_flight: must be between 1 and 256"),
            ("retry = []", "events.webhook.retry: must have at least one wait"),
            ("retry = [\"0s\", \"11years\"]", "events.webhook.retry: must be at most 10 years"),
            ("retry = [\"soon\"]", "retry.0: expected a duration"),
            ("retry = \"5s\"", "retry: expected a list"),
            ("timeout = \"0s\"", "events.webhook.timeout: must be greater than 0"),
            ("disable_after = \"0s\"", "events.webhook.disable_after: must be greater than 0"),
            ("rotation_overlap = \"11years\"", "events.webhook.rotation_overlap: must be at most 10 years"),
        ] {
            let error = parse(setting).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        let shortest = "retry = [\"0s\"]\nrotation_overlap = \"0s\"\ndelivered_retention = \"0s\"";
        assert_eq!(parse(shortest).unwrap().retry, [Duration::ZERO]);
    }

    #[test]
    fn the_key_file_is_read_and_an_error_names_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "k1 hunter2\n").unwrap();
        let webhook = Webhook { key_file: Some(file.path().to_owned()), ..Webhook::default() };
        assert_eq!(webhook.read_keys().unwrap().unwrap().expose(), "k1 hunter2\n");
        let webhook = Webhook { key_file: Some("/no/such/file".into()), ..Webhook::default() };
        let error = webhook.read_keys().unwrap_err().to_string();
        assert!(error.contains("events.webhook.key_file: /no/such/file: "), "{error}");
    }
}

//! What routes of webhooks need of the configuration: keys that encrypt secrets, allowed addresses, limits. The API sends
//! nothing to a webhook; workers do.

use std::time::Duration;

use anyhow::Context;
use gapless_config::Config;
use gapless_domain::WebhookId;
use gapless_store::webhooks::SealedSecret;
use gapless_webhook::{AddressPolicy, KeyRing, SigningSecret, TargetUrl};

use crate::error::ApiError;

/// How long a worker may take to notice a test, beyond the time of the delivery.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Webhooks {
    /// `None`: `events.webhook.key_file` is not set. Existing webhooks can be read, changed and deleted.
    keys: Option<KeyRing>,
    policy: AddressPolicy,
    /// `api.max_webhooks`.
    pub(crate) max: u32,
    /// How long both secrets sign after a rotation.
    pub(crate) rotation_overlap: Duration,
    /// How long to wait for the result of a test.
    pub(crate) test_wait: Duration,
}

impl Webhooks {
    /// The error names the configuration key.
    pub(crate) fn new(config: &Config) -> anyhow::Result<Webhooks> {
        let settings = &config.events.webhook;
        let keys = settings.read_keys()?.map(|text| KeyRing::parse(text.expose())).transpose();
        Ok(Webhooks {
            keys: keys.context("events.webhook.key_file")?,
            policy: AddressPolicy::parse(&settings.allow).context("events.webhook.allow")?,
            max: config.api.max_webhooks,
            rotation_overlap: settings.rotation_overlap,
            test_wait: settings.timeout + NOTICED_WITHIN,
        })
    }

    /// Checks the URL of a webhook. The address of a name is checked by the worker, each time it connects.
    pub(crate) fn target(&self, text: &str) -> Result<TargetUrl, ApiError> {
        let invalid = |problem: String| ApiError::invalid("url", problem);
        // The parser would remove or replace them, also inside `http://`.
        if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(invalid("must not contain spaces or control characters".into()));
        }
        if !text.starts_with("http://") && !text.starts_with("https://") {
            return Err(invalid("must begin with http:// or https://".into()));
        }
        let target = TargetUrl::parse(text).map_err(|error| invalid(error.to_string()))?;
        self.policy.check_literal(&target).map_err(|error| invalid(error.to_string()))?;
        Ok(target)
    }

    /// The secret of the request, or a new one.
    pub(crate) fn secret(&self, given: Option<&str>) -> Result<SigningSecret, ApiError> {
        match given {
            Some(text) => {
                SigningSecret::parse(text).map_err(|error| ApiError::invalid("secret", error.to_string()))
            }
            None => SigningSecret::generate().map_err(|error| {
                tracing::error!(%error, "could not generate a webhook secret");
                ApiError::Internal
            }),
        }
    }

    pub(crate) fn seal(&self, id: WebhookId, secret: &SigningSecret) -> Result<SealedSecret, ApiError> {
        let keys = self.keys.as_ref().ok_or(ApiError::WebhooksNotConfigured)?;
        let sealed = keys.seal(id.0, secret).map_err(|error| {
            tracing::error!(%error, "could not encrypt a webhook secret");
            ApiError::Internal
        })?;
        Ok(SealedSecret { key_id: sealed.key_id, sealed: sealed.sealed })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use gapless_webhook::new_key_line;

    use super::*;

    fn config(webhook: &str) -> Config {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "database.url = \"postgres://localhost/d\"\nrpc.urls = []\n[events.webhook]\n{webhook}\n[chain.a]\nid = 1\n"
        );
        file.write_all(text.as_bytes()).unwrap();
        Config::load(Some(file.path())).unwrap()
    }

    #[test]
    fn an_invalid_key_file_or_network_is_an_error_that_names_its_key() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"k1 hunter2").unwrap();
        for (settings, key) in [
            (format!("key_file = \"{}\"", file.path().display()), "events.webhook.key_file: "),
            ("key_file = \"/no/such/file\"".to_owned(), "events.webhook.key_file: /no/such/file: "),
            ("allow = [\"10.0.0.1/8\"]".to_owned(), "events.webhook.allow: "),
        ] {
            let error = format!("{:#}", Webhooks::new(&config(&settings)).unwrap_err());
            assert!(error.contains(key) && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_secret_is_sealed_with_the_key_file_and_refused_without_one() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(new_key_line("k1").unwrap().as_bytes()).unwrap();
        let id = WebhookId::new();
        let with = Webhooks::new(&config(&format!("key_file = \"{}\"", file.path().display()))).unwrap();
        let secret = with.secret(None).unwrap();
        assert_eq!(with.seal(id, &secret).unwrap().key_id, "k1");
        let without = Webhooks::new(&config("")).unwrap();
        assert_eq!(without.seal(id, &secret).unwrap_err().code(), "webhooks_not_configured");
        for bad in ["hunter2", "whsec_aHVudGVyMg=="] {
            let problem = without.secret(Some(bad)).unwrap_err().problem();
            assert_eq!(problem.field.as_deref(), Some("secret"));
            assert!(!problem.detail.contains("hunter2") && !problem.detail.contains("aHVu"), "{problem:?}");
        }
    }

    #[test]
    fn a_url_is_refused_with_its_field_and_without_its_text() {
        let webhooks = Webhooks::new(&config("allow = [\"10.1.0.0/16\"]")).unwrap();
        for good in ["https://example.com/a?b=c", "http://10.1.2.3:8080/", "https://bücher.example"] {
            assert!(webhooks.target(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "example.com/hunter2",
            "ftp://example.com/hunter2",
            " http://example.com/hunter2",
            "http://example.com/hunter2\n",
            "http:example.com/hunter2",
            "HTTP://example.com/hunter2",
            "http://user:hunter2@example.com",
            "http://10.0.0.1/hunter2",
            "http://127.0.0.1/hunter2",
            "http://[::1]/hunter2",
            "http://2130706433/hunter2",
        ] {
            let problem = webhooks.target(bad).unwrap_err().problem();
            assert_eq!((problem.code.as_str(), problem.field.as_deref()), ("invalid_request", Some("url")));
            assert!(!problem.detail.contains("hunter2"), "{problem:?}");
        }
    }
}

//! `gapless webhooks reseal`: encrypts signing secrets again with the first key of the key file, so that older keys can be
//! removed from it.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use gapless_config::Config;
use gapless_domain::WebhookId;
use gapless_store::webhooks::{SealedSecret, StoredSecrets};
use gapless_store::{Store, Timeouts};
use gapless_webhook::{KeyRing, Sealed};
use serde_json::json;

use crate::commands::migrate::log_security_warnings;
use crate::output;

/// Webhooks may be created and rotated meanwhile. After so many rounds an API still uses another key: its file is an
/// older one.
const ROUNDS: usize = 5;

pub(super) async fn run(config: Option<&Path>, json: bool) -> Result<ExitCode> {
    let config = Config::load(config)?;
    let text = config.events.webhook.read_keys()?.context("events.webhook.key_file is not set")?;
    let keys = KeyRing::parse(text.expose()).context("events.webhook.key_file")?;
    log_security_warnings(&config.database.url);
    let store = Store::new(&config.database.url, "gapless-webhooks", 1, Timeouts::default())?;
    let outcome = async {
        store.check_schema().await?;
        reseal(&store, &keys).await
    };
    let outcome = outcome.await;
    store.close().await;
    let Resealed { webhooks, encrypted } = outcome?;
    let key_id = keys.sealing_key_id();
    if json {
        output::json(&json!({ "keyId": key_id, "webhooks": webhooks, "encrypted": encrypted }));
    } else {
        output::line(format!(
            "{encrypted} of {webhooks} webhooks were encrypted again; all use the key `{key_id}`"
        ));
        if keys.key_ids().count() > 1 {
            output::say("Other keys can be removed from events.webhook.key_file.");
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Clone, Copy, Debug)]
struct Resealed {
    webhooks: usize,
    encrypted: usize,
}

async fn reseal(store: &Store, keys: &KeyRing) -> Result<Resealed> {
    let mut encrypted = 0;
    for _ in 0..ROUNDS {
        let all = store.webhook_secrets().await.context("cannot read the secrets")?;
        let mut left = 0;
        for old in &all {
            let Some(new) = sealed_again(keys, old)? else { continue };
            left += 1;
            let replaced = store.replace_webhook_secrets(old, &new).await;
            if replaced.with_context(|| format!("cannot store the secret of webhook {}", old.id))? {
                encrypted += 1;
            }
        }
        if left == 0 {
            return Ok(Resealed { webhooks: all.len(), encrypted });
        }
    }
    bail!(
        "secrets are still encrypted with another key than `{}`: restart every API with the current file, then repeat",
        keys.sealing_key_id()
    )
}

/// `None`: the first key has encrypted both already.
fn sealed_again(keys: &KeyRing, old: &StoredSecrets) -> Result<Option<StoredSecrets>> {
    let is_current = |secret: &SealedSecret| secret.key_id == keys.sealing_key_id();
    if is_current(&old.current) && old.previous.as_ref().is_none_or(is_current) {
        return Ok(None);
    }
    Ok(Some(StoredSecrets {
        id: old.id,
        current: again(keys, old.id, &old.current)?,
        previous: old.previous.as_ref().map(|secret| again(keys, old.id, secret)).transpose()?,
    }))
}

fn again(keys: &KeyRing, id: WebhookId, secret: &SealedSecret) -> Result<SealedSecret> {
    let SealedSecret { key_id, sealed } = secret.clone();
    let opened = keys.open(id.0, &Sealed { key_id, sealed }).with_context(|| format!("webhook {id}"))?;
    let Sealed { key_id, sealed } =
        keys.seal(id.0, &opened).context("cannot read random bytes from the system")?;
    Ok(SealedSecret { key_id, sealed })
}

#[cfg(test)]
mod tests {
    use gapless_webhook::{SigningSecret, new_key_line};

    use super::*;

    #[test]
    fn secrets_of_older_keys_are_encrypted_with_the_first_one() {
        let [one, two] = ["k1", "k2"].map(|id| new_key_line(id).unwrap().to_string());
        let before = KeyRing::parse(&one).unwrap();
        let after = KeyRing::parse(&format!("{two}\n{one}")).unwrap();
        let (id, secret) = (WebhookId::new(), SigningSecret::generate().unwrap());
        let seal = |keys: &KeyRing| {
            let Sealed { key_id, sealed } = keys.seal(id.0, &secret).unwrap();
            SealedSecret { key_id, sealed }
        };
        let old = StoredSecrets { id, current: seal(&after), previous: Some(seal(&before)) };
        let new = sealed_again(&after, &old).unwrap().unwrap();
        let previous = new.previous.clone().unwrap();
        assert_eq!((new.current.key_id.as_str(), previous.key_id.as_str()), ("k2", "k2"));
        let opened = after.open(id.0, &Sealed { key_id: previous.key_id, sealed: previous.sealed }).unwrap();
        assert_eq!(*opened.expose(), *secret.expose());
        assert_eq!(sealed_again(&after, &new).unwrap(), None);
        // The key was removed too early.
        let error = sealed_again(&KeyRing::parse(&two).unwrap(), &old).unwrap_err();
        assert!(format!("{error:#}").contains("`k1`"), "{error:#}");
    }
}

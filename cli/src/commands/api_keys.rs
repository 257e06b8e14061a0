//! `gapless api-keys`: creates, lists and revokes API keys in the database. A new key is printed once, to standard
//! output only; the database stores its hash.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use gapless_domain::{ApiKeySecret, PresentedKey, Rights};
use gapless_store::{ApiKeyRow, NewApiKey, RateLimit, RevokeOutcome, Store, Timeouts};
use serde_json::{Value, json};

use super::migrate::database_url;
use crate::args::{self, ApiKeys};
use crate::output;

pub async fn run(config: Option<&Path>, keys: &ApiKeys, json: bool) -> Result<ExitCode> {
    let store = Store::new(&database_url(config)?, "gapless-keys", 1, Timeouts::default())?;
    store.check_schema().await?;
    let outcome = match keys {
        ApiKeys::Create(args) => create(&store, args, json).await,
        ApiKeys::List => list(&store, json).await,
        ApiKeys::Revoke(args) => revoke(&store, args, json).await,
    };
    store.close().await;
    outcome
}

async fn create(store: &Store, args: &args::NewApiKey, json: bool) -> Result<ExitCode> {
    let name = args.name.trim();
    if name.is_empty() || name.chars().count() > 100 || name.chars().any(char::is_control) {
        bail!("--name must be 1 to 100 printable characters");
    }
    if args.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
        bail!("--rate must be above 0");
    }
    if args.submitters.len() > 100 {
        bail!("a key can be restricted to at most 100 submitters");
    }
    let secret = ApiKeySecret::random().context("cannot read random bytes from the system")?;
    let key = PresentedKey::parse(secret.expose()).context("the generated key has an invalid format")?;
    let submitters = (!args.submitters.is_empty()).then(|| args.submitters.iter().copied().collect());
    let new = NewApiKey {
        name: name.to_owned(),
        key,
        rights: Rights { scopes: args.scopes.iter().copied().collect(), submitters },
        limit: RateLimit { rate: args.rate, burst: args.burst },
        expires_in: args.expires_in,
    };
    store.create_api_key(&new).await.context("cannot create the key")?;
    if json {
        output::json(&json!({ "keyId": secret.id().as_str(), "key": secret.expose() }));
    } else {
        output::line(secret.expose());
        output::say("This key is shown only once.");
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(store: &Store, json: bool) -> Result<ExitCode> {
    let keys: Vec<Value> =
        store.list_api_keys().await.context("cannot read the keys")?.iter().map(shown).collect();
    if json {
        output::json(&json!({ "items": keys }));
        return Ok(ExitCode::SUCCESS);
    }
    const COLUMNS: [(&str, &str); 9] = [
        ("ID", "keyId"),
        ("NAME", "name"),
        ("STATE", "state"),
        ("SCOPES", "scopes"),
        ("SUBMITTERS", "submitters"),
        ("CREATED", "createdAt"),
        ("EXPIRES", "expiresAt"),
        ("REVOKED", "revokedAt"),
        ("LAST USED", "lastUsedAt"),
    ];
    let rows: Vec<Vec<String>> =
        keys.iter().map(|key| COLUMNS.iter().map(|(_, field)| joined(&key[*field])).collect()).collect();
    output::table(&COLUMNS.map(|(head, _)| head), &rows);
    Ok(ExitCode::SUCCESS)
}

async fn revoke(store: &Store, args: &args::RevokeApiKey, json: bool) -> Result<ExitCode> {
    let id = &args.key_id;
    let outcome = match store.revoke_api_key(id).await.context("cannot revoke the key")? {
        RevokeOutcome::Revoked => "revoked",
        RevokeOutcome::Already => "revoked before",
        RevokeOutcome::Unknown => bail!("API key {id} does not exist"),
    };
    if json {
        output::json(&json!({ "keyId": id.as_str(), "outcome": outcome }));
    } else {
        output::line(format!("{id}  {outcome}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// All fields except the hash.
fn shown(key: &ApiKeyRow) -> Value {
    let state = match (key.usable, key.revoked_at) {
        (true, _) => "usable",
        (false, Some(_)) => "revoked",
        (false, None) => "expired",
    };
    let submitters = key.rights.submitters.as_ref();
    json!({
        "keyId": key.id.as_str(),
        "name": key.name,
        "state": state,
        "scopes": key.rights.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>(),
        "submitters": submitters.map(|own| own.iter().map(ToString::to_string).collect::<Vec<_>>()),
        "rate": key.limit.rate,
        "burst": key.limit.burst,
        "createdAt": key.created_at.to_rfc3339(),
        "expiresAt": key.expires_at.map(|time| time.to_rfc3339()),
        "revokedAt": key.revoked_at.map(|time| time.to_rfc3339()),
        "lastUsedAt": key.last_used_at.map(|time| time.to_rfc3339()),
    })
}

fn joined(value: &Value) -> String {
    match value.as_array() {
        Some(items) => items.iter().map(output::cell).collect::<Vec<_>>().join(","),
        None => output::cell(value),
    }
}

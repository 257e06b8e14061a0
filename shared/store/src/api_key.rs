//! API keys. The command line creates and revokes them; the API reads them and records when they were last used.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use ethers_core::types::Address;

use super::error::{StoreError, ensure_rows};
use super::pool::Store;
use super::row::{self, Cell};
use gapless_domain::{ApiKeyId, PresentedKey, Rights, Scope, SubmitterKey};

/// Rate limit of one key, per API process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RateLimit {
    /// Requests per second. `None`: the default of the API's configuration.
    pub rate: Option<f64>,
    /// Burst size. `None`: the default of the API's configuration.
    pub burst: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct NewApiKey {
    pub name: String,
    /// Has the hash only, not the secret.
    pub key: PresentedKey,
    pub rights: Rights,
    pub limit: RateLimit,
    /// `None`: never.
    pub expires_in: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct ApiKeyRow {
    pub id: ApiKeyId,
    pub name: String,
    pub secret_hash: [u8; 32],
    pub rights: Rights,
    pub limit: RateLimit,
    pub created_at: DateTime<Utc>,
    pub expires_at: Option<DateTime<Utc>>,
    pub revoked_at: Option<DateTime<Utc>>,
    pub last_used_at: Option<DateTime<Utc>>,
    /// Neither revoked nor expired, by the database's clock.
    pub usable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeOutcome {
    Revoked,
    /// It was revoked before; the earlier time is unchanged.
    Already,
    Unknown,
}

row::row_struct! {
    struct Raw {
        key_id: String,
        name: String,
        secret_hash: Vec<u8>,
        scopes: Vec<String>,
        submitters: Option<Vec<String>>,
        rate_limit: Option<f64>,
        rate_burst: Option<i32>,
        created_at: DateTime<Utc>,
        expires_at: Option<DateTime<Utc>>,
        revoked_at: Option<DateTime<Utc>>,
        last_used_at: Option<DateTime<Utc>>,
        usable: bool,
    }
}

macro_rules! select_keys {
    ($name:literal, $rest:literal) => {
        concat!(
            "-- ",
            $name,
            "
            SELECT key_id, name, secret_hash, scopes, submitters, rate_limit, rate_burst, created_at, expires_at, revoked_at,
                   last_used_at,
                   revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp()) AS usable
            FROM api_key
            ",
            $rest
        )
    };
}

impl Store {
    pub async fn create_api_key(&self, new: &NewApiKey) -> Result<(), StoreError> {
        let submitters = new.rights.submitters.as_ref().map(|own| texts(own.iter()));
        let done = sqlx::query(
            "-- create_api_key
            INSERT INTO api_key (key_id, name, secret_hash, scopes, submitters, rate_limit, rate_burst, expires_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp() + make_interval(secs => $8))",
        )
        .bind(new.key.id.as_str())
        .bind(&new.name)
        .bind(new.key.secret_hash.as_slice())
        .bind(texts(new.rights.scopes.iter()))
        .bind(submitters)
        .bind(new.limit.rate)
        .bind(new.limit.burst.map(|burst| i32::try_from(burst).unwrap_or(i32::MAX)))
        .bind(new.expires_in.map(|time| time.as_secs_f64()))
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("create_api_key"))?;
        ensure_rows("create_api_key", 1, done.rows_affected() as usize)
    }

    /// After the commit, every read of the key finds it revoked.
    pub async fn revoke_api_key(&self, id: &ApiKeyId) -> Result<RevokeOutcome, StoreError> {
        let before: Option<bool> = sqlx::query_scalar(
            "-- revoke_api_key
            UPDATE api_key k
            SET revoked_at = coalesce(k.revoked_at, clock_timestamp())
            FROM (SELECT key_id, revoked_at IS NOT NULL AS revoked FROM api_key WHERE key_id = $1 FOR UPDATE) o
            WHERE k.key_id = o.key_id
            RETURNING o.revoked",
        )
        .bind(id.as_str())
        .fetch_optional(&self.pool)
        .await
        .map_err(StoreError::db("revoke_api_key"))?;
        Ok(match before {
            Some(false) => RevokeOutcome::Revoked,
            Some(true) => RevokeOutcome::Already,
            None => RevokeOutcome::Unknown,
        })
    }

    /// Oldest first, including expired and revoked keys.
    pub async fn list_api_keys(&self) -> Result<Vec<ApiKeyRow>, StoreError> {
        let rows: Vec<Raw> = sqlx::query_as(select_keys!("list_api_keys", "ORDER BY created_at, key_id"))
            .fetch_all(&self.pool)
            .await
            .map_err(StoreError::db("list_api_keys"))?;
        rows.into_iter().map(ApiKeyRow::try_from).collect()
    }

    /// The keys of `ids` that exist. The caller refuses missing, expired and revoked ones.
    pub async fn find_api_keys(&self, ids: &[&ApiKeyId]) -> Result<Vec<ApiKeyRow>, StoreError> {
        let rows: Vec<Raw> = sqlx::query_as(select_keys!("find_api_keys", "WHERE key_id = ANY($1)"))
            .bind(ids.iter().map(|id| id.as_str()).collect::<Vec<&str>>())
            .fetch_all(&self.pool)
            .await
            .map_err(StoreError::db("find_api_keys"))?;
        rows.into_iter().map(ApiKeyRow::try_from).collect()
    }

    /// Whether any key exists. Expired and revoked keys count: an API that required keys continues to require them.
    pub async fn has_api_keys(&self) -> Result<bool, StoreError> {
        sqlx::query_scalar(
            "-- has_api_keys
            SELECT EXISTS (SELECT 1 FROM api_key)",
        )
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("has_api_keys"))
    }

    /// Sets `last_used_at` to now. Informational only.
    pub async fn note_api_keys_used(&self, ids: &[ApiKeyId]) -> Result<(), StoreError> {
        sqlx::query(
            "-- note_api_keys_used
            UPDATE api_key
            SET last_used_at = clock_timestamp()
            WHERE key_id = ANY($1)",
        )
        .bind(ids.iter().map(ApiKeyId::as_str).collect::<Vec<&str>>())
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("note_api_keys_used"))?;
        Ok(())
    }
}

fn texts<T: ToString>(items: impl Iterator<Item = T>) -> Vec<String> {
    items.map(|item| item.to_string()).collect()
}

impl TryFrom<Raw> for ApiKeyRow {
    type Error = StoreError;

    fn try_from(raw: Raw) -> Result<Self, StoreError> {
        let id = raw.key_id.clone();
        let cell = |column| Cell { table: "api_key", column, id: &id };
        let scopes = raw.scopes.iter().map(|text| cell("scopes").parse(text));
        let submitters =
            raw.submitters.map(|own| own.iter().map(|text| submitter(cell("submitters"), text)).collect());
        let burst = raw.rate_burst.map(|burst| u32::try_from(burst).map_err(|e| cell("rate_burst").bad(e)));
        Ok(ApiKeyRow {
            id: cell("key_id").parse(&raw.key_id)?,
            name: raw.name,
            secret_hash: raw
                .secret_hash
                .try_into()
                .map_err(|_| cell("secret_hash").bad("is not 32 bytes long"))?,
            rights: Rights {
                scopes: scopes.collect::<Result<BTreeSet<Scope>, StoreError>>()?,
                submitters: submitters.transpose()?,
            },
            limit: RateLimit { rate: raw.rate_limit, burst: burst.transpose()? },
            created_at: raw.created_at,
            expires_at: raw.expires_at,
            revoked_at: raw.revoked_at,
            last_used_at: raw.last_used_at,
            usable: raw.usable,
        })
    }
}

/// Parses `<chain id>:<address>`, as `SubmitterKey` is printed.
pub(super) fn submitter(cell: Cell<'_>, text: &str) -> Result<SubmitterKey, StoreError> {
    let (chain, address) = text.split_once(':').ok_or_else(|| cell.bad("has no chain"))?;
    let address: Address = cell.parse(address)?;
    row::key("api_key", cell.parse(chain)?, address.into())
}

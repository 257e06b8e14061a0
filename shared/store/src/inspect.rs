//! Reads about the server and the connected user, for `gapless doctor`. Nothing is written.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::address::Address;
use super::error::StoreError;
use super::pool::Store;
use super::row;
use gapless_config::Secret;

/// The oldest supported version of PostgreSQL, as `server_version_num` counts.
pub const OLDEST_SERVER: i32 = 130_000;

/// Settings and state of the server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerFacts {
    /// For example 150004.
    pub version_number: i32,
    /// For example `15.4`.
    pub version: String,
    /// Its clock when the statement ran.
    pub now: DateTime<Utc>,
    pub max_connections: i64,
    /// Connections that only superusers get.
    pub reserved_connections: i64,
    /// Client connections of other programs.
    pub other_connections: i64,
    pub fsync: bool,
    pub synchronous_commit: String,
    /// A standby, which accepts no writes.
    pub is_standby: bool,
}

row::row_struct! {
    struct FactsRow {
        version_number: i32,
        version: String,
        now: DateTime<Utc>,
        max_connections: i64,
        reserved_connections: i64,
        other_connections: i64,
        fsync: bool,
        synchronous_commit: String,
        is_standby: bool,
    }
}

/// A program, by the rights that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramRole {
    Api,
    Worker,
}

impl ProgramRole {
    pub const ALL: [ProgramRole; 2] = [ProgramRole::Api, ProgramRole::Worker];

    /// The role that migrations create for it.
    pub fn name(self) -> &'static str {
        match self {
            ProgramRole::Api => "gapless_api",
            ProgramRole::Worker => "gapless_worker",
        }
    }

    /// Tables and the rights on them, or on some of their columns. A test compares this list with the grants of the
    /// migrations.
    pub fn rights(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            ProgramRole::Api => &API_RIGHTS,
            ProgramRole::Worker => &WORKER_RIGHTS,
        }
    }
}

const API_RIGHTS: [(&str, &[&str]); 21] = [
    ("_sqlx_migrations", &["SELECT"]),
    ("api_key", &["SELECT", "UPDATE"]),
    ("audit_log", &["SELECT", "INSERT"]),
    ("chain_block", &["SELECT"]),
    ("chain_halt", &["SELECT"]),
    ("event_head", &["SELECT"]),
    ("event_log", &["SELECT"]),
    ("event_recording", &["UPDATE"]),
    ("managed_tx", &["SELECT", "INSERT"]),
    ("outbox_event", &["INSERT"]),
    ("outlet", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("outlet_submitter", &["SELECT", "UPDATE", "DELETE"]),
    ("submitter", &["SELECT", "UPDATE"]),
    ("submitter_lease", &["SELECT"]),
    ("submitter_nonce_cursor", &["SELECT"]),
    ("tx_attempt", &["SELECT"]),
    ("tx_request", &["SELECT", "INSERT", "UPDATE"]),
    ("webhook", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("webhook_delivery", &["SELECT", "INSERT", "UPDATE"]),
    ("webhook_replay", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("worker", &["SELECT"]),
];

const WORKER_RIGHTS: [(&str, &[&str]); 27] = [
    ("_sqlx_migrations", &["SELECT"]),
    ("api_key", &["SELECT"]),
    ("audit_log", &["SELECT", "INSERT", "UPDATE"]),
    ("chain", &["SELECT", "INSERT"]),
    ("chain_block", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("chain_halt", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("duty_lease", &["SELECT", "INSERT", "UPDATE"]),
    ("event_head", &["SELECT", "UPDATE"]),
    ("event_log", &["SELECT", "INSERT"]),
    ("event_partition", &["SELECT"]),
    ("event_recording", &["UPDATE"]),
    ("external_nonce", &["SELECT", "INSERT", "DELETE"]),
    ("managed_tx", &["SELECT", "UPDATE", "DELETE"]),
    ("nonce_reservation", &["SELECT", "UPDATE", "DELETE"]),
    ("outbox_event", &["SELECT", "INSERT", "DELETE"]),
    ("outlet", &["SELECT", "UPDATE"]),
    ("outlet_submitter", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("policy_audit", &["SELECT", "INSERT"]),
    ("submitter", &["SELECT", "INSERT", "UPDATE"]),
    ("submitter_lease", &["SELECT", "INSERT", "UPDATE"]),
    ("submitter_nonce_cursor", &["SELECT", "INSERT", "UPDATE"]),
    ("tx_attempt", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("tx_request", &["SELECT", "UPDATE", "DELETE"]),
    ("webhook", &["SELECT", "UPDATE"]),
    ("webhook_delivery", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("webhook_replay", &["SELECT", "UPDATE", "DELETE"]),
    ("worker", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
];

/// What the connected user may do as one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleFacts {
    pub user: String,
    pub role: ProgramRole,
    /// Whether the user is a member of the program's role.
    pub is_member: bool,
    /// Missing rights, for example `INSERT on managed_tx`; empty if it has all.
    pub missing: Vec<String>,
}

impl Store {
    pub async fn server_facts(&self) -> Result<ServerFacts, StoreError> {
        let row: FactsRow = sqlx::query_as(
            "-- server_facts
            SELECT current_setting('server_version_num')::INT AS version_number,
                   split_part(current_setting('server_version'), ' ', 1) AS version,
                   clock_timestamp() AS now,
                   current_setting('max_connections')::BIGINT AS max_connections,
                   current_setting('superuser_reserved_connections')::BIGINT AS reserved_connections,
                   (SELECT count(*) FROM pg_stat_activity
                    WHERE datname IS NOT NULL AND application_name NOT LIKE 'gapless%') AS other_connections,
                   current_setting('fsync')::BOOLEAN AS fsync,
                   current_setting('synchronous_commit') AS synchronous_commit,
                   pg_is_in_recovery() AS is_standby",
        )
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("server_facts"))?;
        Ok(ServerFacts {
            version_number: row.version_number,
            version: row.version,
            now: row.now,
            max_connections: row.max_connections,
            reserved_connections: row.reserved_connections,
            other_connections: row.other_connections,
            fsync: row.fsync,
            synchronous_commit: row.synchronous_commit,
            is_standby: row.is_standby,
        })
    }

    /// The rights of the connected user for a program. On a table that does not exist it has none.
    pub async fn role_facts(&self, role: ProgramRole) -> Result<RoleFacts, StoreError> {
        let (mut tables, mut rights) = (Vec::new(), Vec::new());
        for (table, needed) in role.rights() {
            for right in *needed {
                tables.push((*table).to_owned());
                rights.push((*right).to_owned());
            }
        }
        let (user, is_member, missing): (String, bool, Vec<String>) = sqlx::query_as(
            "-- role_facts
            SELECT current_user::TEXT,
                   coalesce((SELECT pg_has_role(current_user, oid, 'MEMBER') FROM pg_roles WHERE rolname = $1), FALSE),
                   coalesce((
                       SELECT array_agg(r.privilege || ' on ' || r.relation)
                       FROM unnest($2::TEXT[], $3::TEXT[]) AS r (relation, privilege)
                       WHERE NOT coalesce(
                           CASE
                               -- Deletion is never granted by column.
                               WHEN r.privilege = 'DELETE' THEN has_table_privilege(to_regclass(r.relation), r.privilege)
                               ELSE has_any_column_privilege(to_regclass(r.relation), r.privilege)
                           END, FALSE)), '{}')",
        )
        .bind(role.name())
        .bind(&tables)
        .bind(&rights)
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("role_facts"))?;
        Ok(RoleFacts { user, role, is_member, missing })
    }

    /// Workers with a heartbeat within this time.
    pub async fn live_workers(&self, within: Duration) -> Result<u64, StoreError> {
        let count: i64 = sqlx::query_scalar(
            "-- live_workers
            SELECT count(*) FROM worker WHERE seen_at > clock_timestamp() - make_interval(secs => $1)",
        )
        .bind(within.as_secs_f64())
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("live_workers"))?;
        Ok(count.unsigned_abs())
    }
}

/// Host, port and database of the URL, without user and password. `None` for an invalid URL.
pub fn database_place(url: &Secret) -> Option<String> {
    Address::read(url).ok().map(|address| address.place())
}

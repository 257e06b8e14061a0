//! The database: reachable, without a pooler that shares sessions, version, clock, connections, schema, rights.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use ethers_core::types::H256;
use gapless_config::Config;
use gapless_domain::ChainId;
use gapless_store::{
    ConnectedProgram, OLDEST_SERVER, ProgramRole, RoleFacts, ServerFacts, Store, StoreError, SubmitterView,
    Timeouts, database_place,
};

use super::REQUEST_LIMIT;
use super::report::{Area, Check, Subject};

/// More than anyone reads, and quick to load.
pub(super) const MAX_SUBMITTERS: u32 = 5_000;
/// Times the clock is read; the shortest round trip counts.
const CLOCK_READS: usize = 3;
/// The connections that an API process opens in addition to `database.max_connections`, and a worker in addition to
/// `worker.writers`.
const OTHER_CONNECTIONS_OF_API: i64 = 6;
const OTHER_CONNECTIONS_OF_WORKER: i64 = 10;
/// Of a worker that delivers webhooks, in addition.
const WEBHOOK_CONNECTIONS: i64 = 5;

/// What later checks need from the database.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// `None`: they could not be read.
    pub(super) submitters: Option<Vec<SubmitterView>>,
    /// Stored hashes of block 0.
    pub(super) genesis: HashMap<ChainId, H256>,
    /// Whether an API key was ever created. `None`: unknown.
    pub(super) has_api_keys: Option<bool>,
}

pub(super) async fn check(config: &Config) -> (Vec<Check>, Found) {
    let url = &config.database.url;
    let place = database_place(url).unwrap_or_else(|| "database.url".to_owned());
    let subject = Subject::new(Area::Database, place);
    // The timeouts of a worker, which a pooler has to apply.
    let timeouts = Timeouts { statement: config.lease.database_timeout(), acquire: REQUEST_LIMIT };
    let store = match Store::new(url, "gapless-doctor", 2, timeouts) {
        Ok(store) => store,
        Err(error) => return (vec![not_connected(&subject, &error)], Found::default()),
    };
    let result = with_store(config, &subject, &store).await;
    // Closing waits for connections in use, which an unresponsive server may keep.
    let _ = tokio::time::timeout(Duration::from_secs(1), store.close()).await;
    result
}

async fn with_store(config: &Config, subject: &Subject, store: &Store) -> (Vec<Check>, Found) {
    let mut checks = Vec::new();
    match store.check_session().await {
        Ok(()) => {
            checks.push(subject.ok("connection", "reachable"));
            checks.push(subject.ok("pooler", "each connection has a session of its own"));
        }
        Err(StoreError::Pooled { problem }) => {
            checks.push(subject.problem(
                "pooler",
                format!("database.url points to a connection pooler that {problem}"),
                "connect to PostgreSQL directly (docs/operate/production.md#connection-poolers)",
            ));
            checks.push(subject.not_checked("other checks", "answers through this pooler are not reliable"));
            return (checks, Found::default());
        }
        Err(error) => return (vec![not_connected(subject, &error)], Found::default()),
    }
    match store.server_facts().await {
        Ok(facts) => {
            checks.push(version(subject, &facts));
            checks.extend(standby(subject, &facts));
            checks.push(connections(subject, &facts, config));
            checks.push(durability(subject, &facts));
        }
        Err(error) => checks.push(subject.not_checked("server", error.reason())),
    }
    checks.push(match clock_offset(store).await {
        Ok(offset) => clock(subject, offset, config.lease.clock_skew),
        Err(error) => subject.not_checked("clock", error.reason()),
    });
    let schema = store.check_schema().await;
    let is_current = schema.is_ok();
    let is_denied = schema.as_ref().is_err_and(is_denied);
    checks.push(match schema {
        Ok(()) => subject.ok("schema", "as new as this program, or newer"),
        Err(error) if is_denied => subject.not_checked("schema", error.reason()),
        Err(error) => schema_problem(subject, &error),
    });
    if !is_current && !is_denied {
        checks.push(subject.not_checked("rights", "the schema is not that of this program"));
        return (checks, Found::default());
    }
    checks.push(
        match (store.role_facts(ProgramRole::Api).await, store.role_facts(ProgramRole::Worker).await) {
            (Ok(api), Ok(worker)) => rights(subject, &api, &worker),
            (Err(error), _) | (_, Err(error)) => subject.not_checked("rights", error.reason()),
        },
    );
    // As workers decide it about each other.
    let within = config.lease.duration.max(config.worker.poll_interval * 3);
    checks.push(workers(subject, store.live_workers(within).await, within));
    checks.push(program_versions(subject, store.connected_programs().await));
    (checks, read(config, store).await)
}

fn is_denied(error: &StoreError) -> bool {
    error.sql_state().as_deref() == Some("42501")
}

async fn read(config: &Config, store: &Store) -> Found {
    let mut found = Found {
        submitters: store.list_submitters(None, None, None, MAX_SUBMITTERS).await.ok(),
        has_api_keys: store.has_api_keys().await.ok(),
        ..Found::default()
    };
    for chain in config.chains.values() {
        if let Ok(Some(genesis)) = store.known_genesis(chain.id).await {
            found.genesis.insert(chain.id, genesis);
        }
    }
    found
}

fn not_connected(subject: &Subject, error: &StoreError) -> Check {
    subject.problem("connection", error.reason(), connection_advice(error))
}

fn connection_advice(error: &StoreError) -> &'static str {
    if matches!(
        error,
        StoreError::BadUrl { .. } | StoreError::Unsecured { .. } | StoreError::Untrusted { .. }
    ) {
        return "correct database.url (docs/operate/access.md#tls)";
    }
    match error.sql_state().as_deref() {
        Some("28P01" | "28000") => "correct user and password in database.url, or pg_hba.conf of the server",
        Some("3D000") => "create the database and run `gapless migrate`, or correct its name in database.url",
        Some("42501" | "22023") => "make the user of database.url a member of the role that it sets",
        Some("53300") => "raise max_connections of the server, or stop what uses its connections",
        _ => "start PostgreSQL, or correct host and port in database.url",
    }
}

fn schema_problem(subject: &Subject, error: &StoreError) -> Check {
    let (message, advice) = match error {
        StoreError::SchemaTooOld { found: 0, .. } => {
            ("the database has no schema".to_owned(), "run `gapless migrate` as the owner of the database")
        }
        StoreError::SchemaTooOld { found, needed } => (
            format!("it has version {found}; this program needs {needed}"),
            "run `gapless migrate` as the owner of the database",
        ),
        StoreError::SchemaUnreleased { version } => (
            format!("it is of an unreleased version (migration {version} differs) and cannot be upgraded"),
            "use an empty database, and run `gapless migrate`",
        ),
        StoreError::ProgramTooOld { own, oldest } => (
            format!("it needs programs of version {oldest} or newer; this one is {own}"),
            "update the programs",
        ),
        other => (other.reason(), "make sure that the database answers, and run this again"),
    };
    subject.problem("schema", message, advice)
}

fn version(subject: &Subject, facts: &ServerFacts) -> Check {
    let oldest = OLDEST_SERVER / 10_000;
    match facts.version_number >= OLDEST_SERVER {
        true => subject.ok("version", format!("PostgreSQL {}", facts.version)),
        false => subject.problem(
            "version",
            format!("PostgreSQL {} is older than {oldest}, the oldest supported version", facts.version),
            format!("upgrade the server to PostgreSQL {oldest} or newer"),
        ),
    }
}

/// During a roll there are two versions for some minutes.
fn program_versions(subject: &Subject, connected: Result<Vec<ConnectedProgram>, StoreError>) -> Check {
    let connected = match connected {
        Ok(connected) => connected,
        Err(error) => return subject.not_checked("program versions", error.reason()),
    };
    let programs: Vec<String> = connected.iter().map(ConnectedProgram::to_string).collect();
    let programs = programs.join(", ");
    match connected.iter().any(|program| program.version != connected[0].version) {
        true => subject.warning(
            "program versions",
            format!("programs of different versions are connected: {programs}"),
            "finish the upgrade: all programs of one version (docs/operate/upgrade.md)",
        ),
        false if connected.is_empty() => subject.ok("program versions", "no program is connected"),
        false => subject.ok("program versions", programs),
    }
}

fn standby(subject: &Subject, facts: &ServerFacts) -> Option<Check> {
    facts.is_standby.then(|| {
        subject.problem(
            "standby",
            "the server is a standby and accepts no writes",
            "point database.url at the primary server, or promote this one (docs/operate/backup.md#backup-and-failover)",
        )
    })
}

/// Whether one API and one worker get their connections.
fn connections(subject: &Subject, facts: &ServerFacts, config: &Config) -> Check {
    let of_api = i64::from(config.database.max_connections) + OTHER_CONNECTIONS_OF_API;
    let of_worker = i64::try_from(config.worker.writers).unwrap_or(i64::MAX) + OTHER_CONNECTIONS_OF_WORKER;
    let of_webhooks = config.events.webhook.key_file.as_ref().map_or(0, |_| WEBHOOK_CONNECTIONS);
    let needed = of_api + of_worker + of_webhooks;
    let available = facts.max_connections - facts.reserved_connections;
    let left = available - facts.other_connections;
    let need = format!("one API and one worker open up to {needed} connections");
    let advice = "raise max_connections of the server, or lower database.max_connections";
    if needed > available {
        return subject.problem("connections", format!("{need}, and the server has {available}"), advice);
    }
    if needed > left {
        let others = facts.other_connections;
        let message = format!("{need}; other programs use {others} of {available}");
        return subject.warning("connections", message, advice);
    }
    subject.ok("connections", format!("{need}; the server has {available}"))
}

fn durability(subject: &Subject, facts: &ServerFacts) -> Check {
    let off: Vec<&str> = [
        (!facts.fsync).then_some("fsync"),
        (facts.synchronous_commit == "off").then_some("synchronous_commit"),
    ]
    .into_iter()
    .flatten()
    .collect();
    match off.is_empty() {
        true => subject.ok("durability", "fsync and synchronous_commit are on"),
        false => subject.warning(
            "durability",
            format!("{} is off: a crash of the server loses committed transactions", off.join(" and ")),
            "turn it on; no guarantee holds without it",
        ),
    }
}

/// How much the server's clock is ahead of this machine's, and how uncertain that is.
#[derive(Clone, Copy, Debug)]
struct Offset {
    ahead: TimeDelta,
    uncertainty: TimeDelta,
}

/// The clock was read between the two local times.
fn offset(before: DateTime<Utc>, server: DateTime<Utc>, after: DateTime<Utc>) -> Offset {
    let uncertainty = (after - before) / 2;
    Offset { ahead: server - (before + uncertainty), uncertainty }
}

async fn clock_offset(store: &Store) -> Result<Offset, StoreError> {
    let mut best: Option<Offset> = None;
    for _ in 0..CLOCK_READS {
        let before = Utc::now();
        let server = store.now().await?;
        let read = offset(before, server, Utc::now());
        if best.is_none_or(|best| read.uncertainty < best.uncertainty) {
            best = Some(read);
        }
    }
    Ok(best.expect("the clock was read at least once"))
}

fn clock(subject: &Subject, offset: Offset, allowed: Duration) -> Check {
    let allowed_delta = TimeDelta::from_std(allowed).unwrap_or(TimeDelta::MAX);
    let direction = if offset.ahead < TimeDelta::zero() { "behind" } else { "ahead of" };
    let by = offset.ahead.abs();
    let shown = format!("{:.3} s", by.as_seconds_f64());
    if by > allowed_delta + offset.uncertainty {
        return subject.problem(
            "clock",
            format!(
                "the clock of the database is {shown} {direction} this machine's; lease.clock_skew allows {allowed:?}"
            ),
            "synchronise both clocks (NTP)",
        );
    }
    let most = (by + offset.uncertainty).as_seconds_f64();
    subject.ok("clock", format!("differs from this machine's by {most:.3} s at most"))
}

fn rights(subject: &Subject, api: &RoleFacts, worker: &RoleFacts) -> Check {
    let user = &api.user;
    match (api.missing.is_empty(), worker.missing.is_empty()) {
        (true, true) => return subject.ok("rights", format!("{user} has the rights of API and worker")),
        (true, false) if !worker.is_member => {
            return subject.ok("rights", format!("{user} has the rights of the API, not of a worker"));
        }
        (false, true) if !api.is_member => {
            return subject.ok("rights", format!("{user} has the rights of a worker, not of the API"));
        }
        _ => {}
    }
    // A member of a program's role, or nearest to it by the number of missing rights.
    let lacking = [api, worker].into_iter().filter(|facts| !facts.missing.is_empty());
    let facts = lacking.min_by_key(|facts| (!facts.is_member, facts.missing.len()));
    let facts = facts.expect("one of them lacks a right");
    let role = facts.role.name();
    let advice = match facts.is_member {
        true => "run `SELECT gapless_grant_roles()` as the owner of the tables".to_owned(),
        false => format!(
            "make {user} a member of gapless_api or gapless_worker (docs/operate/access.md#database-roles), or use \
             another user in database.url"
        ),
    };
    let message = format!("{user} lacks rights of {role}: {}", shortened(&facts.missing));
    subject.problem("rights", message, advice)
}

/// The first few, and how many more.
fn shortened(all: &[String]) -> String {
    const SHOWN: usize = 4;
    match all.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{} and {more} more", all[..SHOWN].join(", ")),
        _ => all.join(", "),
    }
}

fn workers(subject: &Subject, alive: Result<u64, StoreError>, within: Duration) -> Check {
    match alive {
        Ok(0) => subject.warning(
            "workers",
            format!("no worker has reported within {within:?}: nothing is sent"),
            "start gapless-worker, or read its log",
        ),
        Ok(1) => subject.ok("workers", "1 worker is running"),
        Ok(count) => subject.ok("workers", format!("{count} workers are running")),
        Err(error) => subject.not_checked("workers", error.reason()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Outcome;
    use super::*;

    fn subject() -> Subject {
        Subject::new(Area::Database, "d")
    }

    fn facts() -> ServerFacts {
        ServerFacts {
            version_number: 150_004,
            version: "15.4".into(),
            now: Utc::now(),
            max_connections: 100,
            reserved_connections: 3,
            other_connections: 10,
            fsync: true,
            synchronous_commit: "on".into(),
            is_standby: false,
        }
    }

    #[test]
    fn an_old_server_a_standby_and_lost_commits_are_reported() {
        assert_eq!(version(&subject(), &facts()).outcome, Outcome::Ok);
        let old = ServerFacts { version_number: 120_017, ..facts() };
        assert_eq!(version(&subject(), &old).outcome, Outcome::Problem);
        assert!(standby(&subject(), &facts()).is_none());
        assert!(standby(&subject(), &ServerFacts { is_standby: true, ..facts() }).is_some());
        assert_eq!(durability(&subject(), &facts()).outcome, Outcome::Ok);
        let risky = ServerFacts { fsync: false, synchronous_commit: "off".into(), ..facts() };
        let check = durability(&subject(), &risky);
        assert_eq!(check.outcome, Outcome::Warning);
        assert!(check.message.contains("fsync and synchronous_commit"), "{}", check.message);
    }

    #[test]
    fn programs_of_two_versions_are_a_warning() {
        let program = |name: &str, version: Option<&str>| ConnectedProgram {
            name: name.to_owned(),
            version: version.map(|version| version.parse().unwrap()),
            connections: 2,
        };
        let check = |programs: Vec<ConnectedProgram>| program_versions(&subject(), Ok(programs));
        let one = program("gapless-api", Some("0.2.0"));
        assert_eq!(check(vec![]).outcome, Outcome::Ok);
        assert_eq!(check(vec![one.clone(), program("gapless-worker", Some("0.2.0"))]).outcome, Outcome::Ok);
        let mixed = check(vec![one, program("gapless-worker", None)]);
        assert_eq!(mixed.outcome, Outcome::Warning);
        assert!(mixed.message.contains("gapless-worker 0.1.0 (2 connections)"), "{}", mixed.message);
    }

    #[test]
    fn a_clock_is_off_only_beyond_what_is_allowed_and_uncertain() {
        let start = Utc::now();
        let at = |millis: i64| start + TimeDelta::milliseconds(millis);
        let outcome = |server: i64, trip: i64| {
            clock(&subject(), offset(at(0), at(server), at(trip)), Duration::from_secs(1)).outcome
        };
        assert_eq!(outcome(10, 20), Outcome::Ok);
        assert_eq!(outcome(1_200, 20), Outcome::Problem);
        assert_eq!(outcome(-1_200, 20), Outcome::Problem);
        assert_eq!(outcome(1_900, 2_000), Outcome::Ok, "a slow answer proves nothing");
    }

    #[test]
    fn too_few_connections_are_a_problem_and_busy_ones_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, "database.url = \"postgres://localhost/d\"\n[chain.a]\nid = 1").unwrap();
        let config = Config::load(Some(&path)).unwrap();
        let outcome = |facts: ServerFacts| connections(&subject(), &facts, &config).outcome;
        assert_eq!(outcome(facts()), Outcome::Ok);
        assert_eq!(outcome(ServerFacts { other_connections: 80, ..facts() }), Outcome::Warning);
        assert_eq!(outcome(ServerFacts { max_connections: 20, ..facts() }), Outcome::Problem);
    }

    fn role(role: ProgramRole, is_member: bool, missing: &[&str]) -> RoleFacts {
        let missing = missing.iter().map(|right| (*right).to_owned()).collect();
        RoleFacts { user: "u".into(), role, is_member, missing }
    }

    #[test]
    fn a_user_needs_the_rights_of_one_program_and_all_of_its_own_role() {
        use ProgramRole::{Api, Worker};
        let some: &[&str] = &["INSERT on a", "INSERT on b", "INSERT on c", "INSERT on d", "INSERT on e"];
        let result = |api: RoleFacts, worker: RoleFacts| rights(&subject(), &api, &worker);
        assert_eq!(result(role(Api, true, &[]), role(Worker, true, &[])).outcome, Outcome::Ok);
        assert_eq!(result(role(Api, true, &[]), role(Worker, false, some)).outcome, Outcome::Ok);
        let lost = result(role(Api, true, some), role(Worker, false, some));
        assert_eq!(lost.outcome, Outcome::Problem);
        assert!(lost.message.contains("gapless_api") && lost.message.contains("and 1 more"), "{lost:?}");
        assert!(lost.advice.unwrap().contains("gapless_grant_roles"));
        let no_member = result(role(Api, false, some), role(Worker, false, some));
        assert!(no_member.advice.unwrap().contains("member"));
        let half = result(role(Api, true, &[]), role(Worker, true, some));
        assert_eq!(half.outcome, Outcome::Problem, "a member of both needs both");
    }
}

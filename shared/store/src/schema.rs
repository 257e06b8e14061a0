//! The schema: migrates it, and checks which programs may use it.
//!
//! A migration expands the schema: it only adds, and programs of the previous version keep working. What became unused is
//! removed by a later migration, which contracts it. That one begins with the line `-- contract: needs VERSION` and is
//! applied separately, when no older program is connected (docs/operate/upgrade.md).

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use semver::Version;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{PgConnection, SqlStr};

use super::error::StoreError;
use super::pool::Store;

/// Version, description and text; made by build.rs.
const FILES: &[(i64, &str, &str)] = include!(concat!(env!("OUT_DIR"), "/migrations.rs"));

const CONTRACT: &str = "-- contract: needs ";

/// Migrations in order.
#[derive(Clone, Debug)]
pub struct Migrations(Vec<Migration>);

impl Migrations {
    /// Those of this program.
    pub fn embedded() -> Migrations {
        Migrations(
            FILES.iter().map(|(version, description, sql)| migration(*version, description, sql)).collect(),
        )
    }

    /// The first ones, up to this version: the schema of an earlier release.
    pub fn up_to(mut self, version: i64) -> Migrations {
        self.0.retain(|migration| migration.version <= version);
        self
    }

    /// One more.
    pub fn and(mut self, version: i64, description: &'static str, sql: &'static str) -> Migrations {
        self.0.push(migration(version, description, sql));
        self
    }

    fn find(&self, version: i64) -> Option<&Migration> {
        self.0.iter().find(|migration| migration.version == version)
    }

    fn missing<'a>(&'a self, applied: &'a [(i64, Vec<u8>)]) -> impl Iterator<Item = &'a Migration> {
        self.0.iter().filter(|migration| applied.iter().all(|(version, _)| *version != migration.version))
    }

    /// Refuses an applied migration whose text is not this program's.
    fn check_applied(&self, applied: &[(i64, Vec<u8>)]) -> Result<(), StoreError> {
        for (version, checksum) in applied {
            if self.find(*version).is_some_and(|migration| migration.checksum[..] != checksum[..]) {
                return Err(StoreError::SchemaUnreleased { version: *version });
            }
        }
        Ok(())
    }
}

fn migration(version: i64, description: &'static str, sql: &'static str) -> Migration {
    // The mark is that of sqlx.
    let (no_tx, sql) = (sql.starts_with("-- no-transaction"), SqlStr::from_static(sql));
    Migration::new(version, description.into(), MigrationType::Simple, sql, no_tx)
}

/// The oldest program that can use the schema after this migration, if it contracts the schema.
fn needs(migration: &Migration) -> Option<Version> {
    let first = migration.sql.as_str().lines().next()?;
    first.strip_prefix(CONTRACT)?.split_whitespace().next()?.trim_end_matches([':', '.']).parse().ok()
}

/// Whether migrations that contract the schema are applied too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contract {
    /// Only to an empty database, which no program uses.
    Later,
    Now,
}

/// What `migrate` did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Versions of the migrations that were applied.
    pub applied: Vec<i64>,
    /// Migrations that contract the schema and were not applied, with the oldest program that they allow.
    pub waiting: Vec<(i64, Version)>,
}

/// Programs that are connected to the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectedProgram {
    /// `gapless-api`, `gapless-worker` or `gapless-embedded`.
    pub name: String,
    /// `None`: 0.1.0, whose connections do not state it.
    pub version: Option<Version>,
    pub connections: u64,
}

impl ConnectedProgram {
    pub(super) fn is_older_than(&self, version: &Version) -> bool {
        self.version.as_ref().is_none_or(|own| own < version)
    }
}

impl fmt::Display for ConnectedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            Some(version) => write!(f, "{} {version}", self.name)?,
            None => write!(f, "{} 0.1.0", self.name)?,
        }
        match self.connections {
            1 => write!(f, " (1 connection)"),
            count => write!(f, " ({count} connections)"),
        }
    }
}

const OLDEST_PROGRAM: &str = "-- oldest_program
    SELECT oldest_program
    FROM schema_support";

/// Whether this process has found a schema that supports it. From then on new connections are checked too.
static CHECKED: AtomicBool = AtomicBool::new(false);

/// This program's version. All programs of a release have the same; a pre-release counts as its release.
pub fn program_version() -> Version {
    // Unwrap safety: Cargo accepts no other.
    let own: Version = env!("CARGO_PKG_VERSION").parse().expect("a version of Cargo");
    Version::new(own.major, own.minor, own.patch)
}

fn supports(oldest: &str) -> Result<(), StoreError> {
    let own = program_version();
    match oldest.parse::<Version>() {
        Ok(oldest) if oldest <= own => Ok(()),
        // Unreadable: of a newer program, which writes versions in another way.
        _ => Err(StoreError::ProgramTooOld { own, oldest: oldest.to_owned() }),
    }
}

/// For every new connection: a program that was disconnected while the schema was contracted must not go on.
pub(super) async fn refuse_if_too_old(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    if !CHECKED.load(Ordering::Relaxed) {
        // The check at the start has the better message.
        return Ok(());
    }
    let oldest: String = match sqlx::query_scalar(OLDEST_PROGRAM).fetch_one(connection).await {
        // 42P01: undefined table: a database of version 0.1.0.
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("42P01") => return Ok(()),
        oldest => oldest?,
    };
    supports(&oldest).map_err(|error| sqlx::Error::Configuration(Box::new(error)))
}

impl Store {
    /// Migrates the schema to this program's version. Safe to run concurrently.
    pub async fn migrate(&self, contract: Contract) -> Result<Migrated, StoreError> {
        self.migrate_with(&Migrations::embedded(), contract).await
    }

    pub async fn migrate_with(
        &self,
        migrations: &Migrations,
        contract: Contract,
    ) -> Result<Migrated, StoreError> {
        let applied = self.applied_migrations("migrate").await?;
        migrations.check_applied(&applied)?;
        if applied.iter().any(|(version, _)| migrations.find(*version).is_none()) {
            self.check_support().await?;
        }
        let is_empty = applied.is_empty();
        let (contracts, expands): (Vec<_>, Vec<_>) =
            migrations.missing(&applied).cloned().partition(|migration| needs(migration).is_some());
        let oldest = contracts.iter().filter_map(needs).max();
        let mut done = Migrated::default();
        match oldest {
            // Nobody uses an empty database: all of them, in order.
            Some(oldest) if is_empty => {
                self.run(migrations.missing(&applied), &mut done).await?;
                self.set_oldest_program(&oldest).await?;
            }
            Some(oldest) if contract == Contract::Now => {
                self.run(expands.iter(), &mut done).await?;
                self.exclude_older_programs(&oldest).await?;
                self.run(contracts.iter(), &mut done).await?;
            }
            _ => {
                self.run(expands.iter(), &mut done).await?;
                let waiting = |migration: &Migration| Some((migration.version, needs(migration)?));
                done.waiting.extend(contracts.iter().filter_map(waiting));
            }
        }
        Ok(done)
    }

    async fn run<'a>(
        &self,
        migrations: impl Iterator<Item = &'a Migration>,
        done: &mut Migrated,
    ) -> Result<(), StoreError> {
        let migrations: Vec<Migration> = migrations.cloned().collect();
        let versions: Vec<i64> = migrations.iter().map(|migration| migration.version).collect();
        let mut migrator = Migrator::with_migrations(migrations);
        // Applied before, or those of newer programs.
        migrator.set_ignore_missing(true);
        let run = migrator.run(self.pool.without_timeout()).await;
        run.map_err(|error| StoreError::Db {
            operation: "migrate",
            error: sqlx::Error::Migrate(Box::new(error)),
        })?;
        done.applied.extend(versions);
        Ok(())
    }

    /// No older program is connected, and none can connect any more. In this order: a session that began before the
    /// version was raised is seen, and one that begins later is refused by `refuse_if_too_old`.
    async fn exclude_older_programs(&self, oldest: &Version) -> Result<(), StoreError> {
        self.refuse_older_programs(oldest).await?;
        let before = self.oldest_program().await?;
        self.set_oldest_program(oldest).await?;
        let refused = self.refuse_older_programs(oldest).await;
        if let (Err(_), Ok(before)) = (&refused, before.parse()) {
            self.set_oldest_program(&before).await?;
        }
        refused
    }

    /// Refuses a schema that is older than this program, of an unreleased version, or that this program is too old for. A
    /// newer one is accepted otherwise.
    pub async fn check_schema(&self) -> Result<(), StoreError> {
        let (migrations, applied) = (Migrations::embedded(), self.applied_migrations("check_schema").await?);
        migrations.check_applied(&applied)?;
        let missing = migrations.missing(&applied).filter(|migration| needs(migration).is_none());
        if let Some(needed) = missing.map(|migration| migration.version).max() {
            let found = applied.iter().map(|(version, _)| *version).max().unwrap_or(0);
            return Err(StoreError::SchemaTooOld { found, needed });
        }
        self.check_support().await
    }

    async fn check_support(&self) -> Result<(), StoreError> {
        supports(&self.oldest_program().await?)?;
        CHECKED.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn oldest_program(&self) -> Result<String, StoreError> {
        let oldest = sqlx::query_scalar(OLDEST_PROGRAM).fetch_one(&self.pool).await;
        oldest.map_err(StoreError::db("oldest_program"))
    }

    async fn set_oldest_program(&self, oldest: &Version) -> Result<(), StoreError> {
        let updated = sqlx::query(
            "-- set_oldest_program
            UPDATE schema_support
            SET oldest_program = $1",
        )
        .bind(oldest.to_string())
        .execute(&self.pool)
        .await
        .map_err(StoreError::db("set_oldest_program"))?;
        match updated.rows_affected() {
            1 => Ok(()),
            found => Err(StoreError::RowsAffected {
                operation: "set_oldest_program",
                expected: 1,
                found: usize::try_from(found).unwrap_or(usize::MAX),
            }),
        }
    }

    async fn refuse_older_programs(&self, oldest: &Version) -> Result<(), StoreError> {
        let mut older = self.connected_programs().await?;
        older.retain(|program| program.is_older_than(oldest));
        match older.is_empty() {
            true => Ok(()),
            false => Err(StoreError::OlderPrograms { oldest: oldest.clone(), connected: older }),
        }
    }

    /// The programs that are connected to this database now. A program that is connected at no moment is not seen; API and
    /// worker always are while they can work.
    pub async fn connected_programs(&self) -> Result<Vec<ConnectedProgram>, StoreError> {
        let rows: Vec<(String, Option<String>, i64)> = sqlx::query_as(
            r"-- connected_programs
            SELECT substring(application_name FROM '^gapless-(?:api|worker|embedded)'),
                   substring(application_name FROM ' ([0-9]+\.[0-9]+\.[0-9]+[^ ]*)'),
                   count(*)
            FROM pg_stat_activity
            WHERE datname = current_database()
              AND application_name ~ '^gapless-(api|worker|embedded)'
            GROUP BY 1, 2
            ORDER BY 1, 2",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("connected_programs"))?;
        let program = |(name, version, connections): (String, Option<String>, i64)| ConnectedProgram {
            name,
            version: version.and_then(|version| version.parse().ok()),
            connections: connections.unsigned_abs(),
        };
        Ok(rows.into_iter().map(program).collect())
    }

    /// Versions and checksums of the applied migrations.
    async fn applied_migrations(&self, operation: &'static str) -> Result<Vec<(i64, Vec<u8>)>, StoreError> {
        let applied = sqlx::query_as(
            "-- applied_migrations
            SELECT version, checksum
            FROM _sqlx_migrations
            WHERE success",
        );
        applied.fetch_all(&self.pool).await.or_else(|error| match &error {
            // 42P01: undefined table: no migration was ever run.
            sqlx::Error::Database(db) if db.code().as_deref() == Some("42P01") => Ok(Vec::new()),
            _ => Err(StoreError::db(operation)(error)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_is_the_first() {
        let Migrations(all) = Migrations::embedded();
        assert_eq!((all[0].version, &*all[0].description), (1, "baseline"));
        assert!(all[0].sql.as_str().contains("CREATE TABLE managed_tx"));
    }

    #[test]
    fn a_migration_that_contracts_names_the_oldest_program() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        for (sql, expected) in [
            ("-- contract: needs 0.3.0: nobody reads the column any more\nSELECT 1", Some(version("0.3.0"))),
            ("-- contract: needs 0.3.0\nSELECT 1", Some(version("0.3.0"))),
            ("-- Adds a column.\n-- contract: needs 0.3.0", None),
        ] {
            assert_eq!(
                needs(&migration(9, "x", Box::leak(sql.to_owned().into_boxed_str()))),
                expected,
                "{sql}"
            );
        }
        let Migrations(all) = Migrations::embedded();
        for one in all.iter().filter(|one| one.sql.as_str().starts_with("-- contract")) {
            assert!(needs(one).is_some(), "migration {}: write `{CONTRACT}VERSION`", one.version);
        }
    }
}

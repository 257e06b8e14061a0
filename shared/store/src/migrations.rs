//! The migrations, compiled in.

use std::sync::LazyLock;

use sqlx::SqlStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// Version, description and text; made by build.rs.
const FILES: &[(i64, &str, &str)] = include!(concat!(env!("OUT_DIR"), "/migrations.rs"));

pub(crate) static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let migration = |(version, description, sql): &(i64, &'static str, &'static str)| {
        // The mark is that of sqlx.
        let (no_tx, sql) = (sql.starts_with("-- no-transaction"), SqlStr::from_static(sql));
        Migration::new(*version, (*description).into(), MigrationType::Simple, sql, no_tx)
    };
    Migrator::with_migrations(FILES.iter().map(migration).collect())
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_is_the_first() {
        let first = MIGRATIONS.iter().next().unwrap();
        assert_eq!((first.version, &*first.description), (1, "baseline"));
        assert!(first.sql.as_str().contains("CREATE TABLE managed_tx"));
    }
}

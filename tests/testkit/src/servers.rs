//! Servers of a stack: one PostgreSQL per test process with a database per test; programs are located once.

use std::sync::atomic::{AtomicU32, Ordering};

use gapless_localnet::{AnvilProgram, Postgres, PostgresBinaries, PostgresOptions};
use tokio::sync::OnceCell;

fn ignore(_: &str) {}

async fn binaries() -> &'static PostgresBinaries {
    static FOUND: OnceCell<PostgresBinaries> = OnceCell::const_new();
    let find = || async {
        let found = tokio::task::spawn_blocking(|| PostgresBinaries::obtain(ignore)).await.unwrap();
        found.expect("the tests need PostgreSQL: install it, or Node.js to fetch it")
    };
    FOUND.get_or_init(find).await
}

pub(crate) async fn anvil_program() -> &'static AnvilProgram {
    static FOUND: OnceCell<AnvilProgram> = OnceCell::const_new();
    let find = || async {
        let found = tokio::task::spawn_blocking(|| AnvilProgram::obtain(ignore)).await.unwrap();
        found.expect("the tests need anvil: install Foundry, or Node.js to fetch it")
    };
    FOUND.get_or_init(find).await
}

/// Shared by all tests. It ends and is removed when this process ends: statics are not dropped, but its lifeline pipe
/// closes.
pub async fn shared_postgres() -> &'static Postgres {
    static SERVER: OnceCell<Postgres> = OnceCell::const_new();
    SERVER.get_or_init(own_postgres).await
}

/// A server that a test may kill.
pub(crate) async fn own_postgres() -> Postgres {
    Postgres::start(binaries().await, PostgresOptions::for_tests()).await.expect("PostgreSQL starts")
}

/// The same, with more environment variables.
pub(crate) async fn own_postgres_with(env: Vec<(String, String)>) -> Postgres {
    let options = PostgresOptions { env, ..PostgresOptions::for_tests() };
    Postgres::start(binaries().await, options).await.expect("PostgreSQL starts")
}

/// Creates an empty database and returns its URL.
pub async fn create_database(server: &Postgres) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("stack_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    server.create_database(&name).await.expect("a new database");
    server.url(&name)
}

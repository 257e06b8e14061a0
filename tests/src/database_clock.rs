//! A PostgreSQL whose wall clock can be moved while it runs. `tests/clock/database_clock.c` says how; it is compiled by the C
//! compiler that Rust links with.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use gapless_cli::localnet::Postgres;
use tempfile::TempDir;

use crate::servers;

/// Names the file to the shared library.
const FILE_VAR: &str = "GAPLESS_TEST_CLOCK_MAP";
const LIBRARY: &str = "database_clock.so";

/// By how many seconds the clock of a server is off.
#[derive(Debug)]
pub struct DatabaseClock {
    dir: TempDir,
}

impl Default for DatabaseClock {
    fn default() -> Self {
        DatabaseClock::new()
    }
}

impl DatabaseClock {
    /// A clock that is right.
    pub fn new() -> DatabaseClock {
        let clock = DatabaseClock { dir: open_dir() };
        build(clock.dir.path());
        clock.set(0);
        clock
    }

    /// Moves the clock, of sessions that are open as well.
    pub fn set(&self, off_by_s: i64) {
        // In place: a file that is truncated first would leave nothing to read where it is mapped.
        let mut options = std::fs::OpenOptions::new();
        let file = options.create(true).write(true).truncate(false).open(self.file()).unwrap();
        file.set_permissions(PermissionsExt::from_mode(0o644)).unwrap();
        file.write_all_at(&off_by_s.to_ne_bytes(), 0).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("off_by_s")
    }

    /// What makes a server read this clock.
    pub(crate) fn env(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_str().expect("a UTF-8 path").to_owned();
        vec![
            ("LD_PRELOAD".to_owned(), text(&self.dir.path().join(LIBRARY))),
            (FILE_VAR.to_owned(), text(&self.file())),
        ]
    }
}

/// A server with an empty database and a clock of its own.
#[derive(Debug)]
pub struct ClockedPostgres {
    pub clock: DatabaseClock,
    url: String,
    _server: Postgres,
}

impl ClockedPostgres {
    pub async fn start() -> ClockedPostgres {
        let clock = DatabaseClock::new();
        let server = servers::own_postgres_with(clock.env()).await;
        let url = servers::create_database(&server).await;
        ClockedPostgres { clock, url, _server: server }
    }

    pub fn url(&self) -> &str {
        &self.url
    }
}

/// A directory that the account of PostgreSQL may read.
fn open_dir() -> TempDir {
    let dir = tempfile::Builder::new().prefix("gapless-clock-").tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    dir
}

/// Compiles the shared library into `dir`.
fn build(dir: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clock/database_clock.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).arg(dir.join(LIBRARY)).arg(source);
    let output =
        compiler.output().expect("the linker of Rust is cc, and this test needs it as well: install it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

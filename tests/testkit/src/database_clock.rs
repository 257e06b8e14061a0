//! A PostgreSQL whose wall clock can be shifted while it runs, by preloading `clock/database_clock.c`. That is
//! compiled with `cc`, which Rust needs as its linker anyway.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use gapless_localnet::Postgres;
use tempfile::TempDir;

use crate::servers;

/// Path of the offset file, for the shared library.
const FILE_VAR: &str = "GAPLESS_TEST_CLOCK_MAP";
const LIBRARY: &str = "database_clock.so";

/// The clock offset of a server, in seconds.
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
    /// With offset 0.
    pub fn new() -> DatabaseClock {
        let clock = DatabaseClock { dir: open_dir() };
        build(clock.dir.path());
        clock.set(0);
        clock
    }

    /// Sets the offset, also for open sessions.
    pub fn set(&self, off_by_s: i64) {
        // Written in place: the file is memory-mapped, and truncating it would leave nothing to read.
        let mut options = std::fs::OpenOptions::new();
        let file = options.create(true).write(true).truncate(false).open(self.file()).unwrap();
        file.set_permissions(PermissionsExt::from_mode(0o644)).unwrap();
        file.write_all_at(&off_by_s.to_ne_bytes(), 0).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("off_by_s")
    }

    /// Environment variables that make a server use this clock.
    pub(crate) fn env(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_str().expect("a UTF-8 path").to_owned();
        vec![
            ("LD_PRELOAD".to_owned(), text(&self.dir.path().join(LIBRARY))),
            (FILE_VAR.to_owned(), text(&self.file())),
        ]
    }
}

/// A server with an empty database and its own clock.
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

/// A directory that the PostgreSQL account can read.
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
    let output = compiler.output().expect("this test needs the C compiler `cc`");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

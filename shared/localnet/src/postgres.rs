//! A PostgreSQL server with its own data directory.

mod standby;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::free_port::Port;
use crate::lifeline::{Launch, Process};
use crate::postgres_binaries::PostgresBinaries;
use crate::postgres_wire;
use crate::unprivileged::{Account, lasting_temp_dir};

const USER: &str = "gapless";
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Another program may take the chosen port before the server binds it.
const PORT_ATTEMPTS: u32 = 5;
/// File in a persistent directory with the path of the data, if the data had to be stored elsewhere.
const POINTER_FILE: &str = "postgres.path";
/// Name prefix of an incomplete data directory.
const UNFINISHED: &str = "initdb-";
/// Log messages of a server whose data directory is still in use by another server.
const DATA_IN_USE: [&str; 2] = ["still in use", "lock file \"postmaster.pid\" already exists"];

/// Location of the data.
#[derive(Clone, Debug)]
pub enum DataDir {
    /// Removed when the server is dropped or this process ends.
    Temporary,
    /// `<dir>/postgres`, persistent. If the server's account has no access to it, a directory below the system's
    /// temporary directory, whose path is then stored in `<dir>/postgres.path`.
    Persistent(PathBuf),
}

#[derive(Clone, Debug)]
pub struct PostgresOptions {
    pub data: DataDir,
    /// `None`: any free port.
    pub port: Option<u16>,
    /// `None`: inside the data directory.
    pub log: Option<PathBuf>,
    /// Extra settings, as `name=value`.
    pub settings: Vec<String>,
    /// Extra environment variables of the server.
    pub env: Vec<(String, String)>,
}

impl PostgresOptions {
    /// Fast: data survives a crash of the server, but not of the machine.
    pub fn for_tests() -> PostgresOptions {
        let settings = ["fsync=off", "synchronous_commit=on", "full_page_writes=off", "max_connections=500"];
        PostgresOptions {
            data: DataDir::Temporary,
            port: None,
            log: None,
            settings: settings.map(str::to_owned).to_vec(),
            env: Vec::new(),
        }
    }

    pub fn durable(dir: impl Into<PathBuf>) -> PostgresOptions {
        PostgresOptions {
            data: DataDir::Persistent(dir.into()),
            port: None,
            log: None,
            settings: Vec::new(),
            env: Vec::new(),
        }
    }
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct Postgres {
    binaries: PostgresBinaries,
    account: Option<Account>,
    settings: Vec<String>,
    env: Vec<(String, String)>,
    port: Port,
    log: PathBuf,
    process: Process,
    place: Place,
}

/// The data directory, and its temporary parent if there is one. Dropped after the process.
#[derive(Debug)]
struct Place {
    data: PathBuf,
    temporary: Option<TempDir>,
}

impl Postgres {
    pub async fn start(binaries: &PostgresBinaries, options: PostgresOptions) -> Result<Postgres> {
        let account = Account::for_servers()?;
        let place = place(&options.data, account)?;
        let binaries = match account {
            Some(account) => {
                binaries.reachable(place.data.parent().context("no parent directory")?, account)?
            }
            None => binaries.clone(),
        };
        let log = options.log.unwrap_or_else(|| place.data.with_extension("log"));
        if !place.data.join("PG_VERSION").is_file() {
            initdb(&binaries, &place, account).await?;
        }
        let mut attempt = 1;
        loop {
            let port = options.port.map(Port::chosen).map_or_else(Port::claim, Ok)?;
            match launch(&binaries, account, (&options.settings, &options.env), port.number(), &log, &place)
                .await
            {
                Ok(process) => {
                    return Ok(Postgres {
                        binaries,
                        account,
                        settings: options.settings,
                        env: options.env,
                        port,
                        log,
                        process,
                        place,
                    });
                }
                Err(_) if attempt < PORT_ATTEMPTS && options.port.is_none() => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn data_dir(&self) -> &Path {
        &self.place.data
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port.number())
    }

    /// Creates `name`, which may contain a-z, 0-9 and underscores.
    pub async fn create_database(&self, name: &str) -> Result<()> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name.is_empty() || !name.chars().all(plain) {
            bail!("invalid database name `{name}`");
        }
        postgres_wire::execute(self.port.number(), USER, &format!("CREATE DATABASE {name}")).await
    }

    /// Like `create_database`, but succeeds if the database exists.
    pub async fn ensure_database(&self, name: &str) -> Result<()> {
        match self.create_database(name).await {
            Err(error) if error.to_string().contains("already exists") => Ok(()),
            other => other,
        }
    }

    /// Simulates a crash. Backend processes exit by themselves shortly afterwards.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Starts the server again, on the same port and data; stops it first if it runs.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        let options = (self.settings.as_slice(), self.env.as_slice());
        self.process =
            launch(&self.binaries, self.account, options, self.port.number(), &self.log, &self.place).await?;
        Ok(())
    }

    /// Fast shutdown: closes sessions and writes all data.
    pub async fn stop(&mut self) -> Result<()> {
        self.process.stop(STOP_LIMIT).await?;
        Ok(())
    }
}

fn place(data: &DataDir, account: Option<Account>) -> Result<Place> {
    match data {
        DataDir::Temporary => {
            let dir = open_temp_dir(&std::env::temp_dir())?;
            // The watcher process runs under this account and may have to remove the directory.
            account.map_or(Ok(()), |account| account.own(dir.path()))?;
            Ok(Place { data: dir.path().join("postgres"), temporary: Some(dir) })
        }
        DataDir::Persistent(dir) => {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
            let dir = dir.canonicalize()?;
            Ok(Place { data: persistent_dir(&dir, account)?, temporary: None })
        }
    }
}

fn persistent_dir(dir: &Path, account: Option<Account>) -> Result<PathBuf> {
    let pointer = dir.join(POINTER_FILE);
    if let Ok(path) = std::fs::read_to_string(&pointer) {
        let path = PathBuf::from(path.trim_end());
        if !path.is_dir() {
            bail!("the database directory {} is missing; run `make clean-data` and retry", path.display());
        }
        return Ok(path.join("postgres"));
    }
    let usual = dir.join("postgres");
    if account.is_none() || Account::reaches(&usual) {
        return Ok(usual);
    }
    let elsewhere = open_temp_dir(&lasting_temp_dir())?.keep();
    std::fs::write(&pointer, format!("{}\n", elsewhere.display()))?;
    Ok(elsewhere.join("postgres"))
}

/// A new directory that other accounts can enter but not write to.
fn open_temp_dir(parent: &Path) -> Result<TempDir> {
    let dir = tempfile::Builder::new().prefix("gapless-").tempdir_in(parent)?;
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755))?;
    Ok(dir)
}

/// Creates the data directory under a temporary name and renames it when complete, because an interrupted `initdb`
/// leaves a directory that looks valid.
async fn initdb(binaries: &PostgresBinaries, place: &Place, account: Option<Account>) -> Result<()> {
    let data = &place.data;
    let parent = data.parent().context("the data directory has no parent")?;
    remove_interrupted(parent)?;
    // A unique name: a process of an interrupted run may still write to the earlier directory.
    let made = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(parent)?;
    std::fs::set_permissions(made.path(), PermissionsExt::from_mode(0o700))?;
    let mut command = tokio::process::Command::new(binaries.initdb());
    command.arg("-D").arg(made.path()).args(["-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale"]);
    if place.temporary.is_some() {
        command.arg("--no-sync");
    }
    if let Some(account) = account {
        account.own(made.path())?;
        command.uid(account.uid).gid(account.gid).current_dir("/");
    }
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
    let output = output.with_context(|| format!("cannot run {}", binaries.initdb().display()))?;
    if !output.status.success() {
        bail!("initdb failed:\n{}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    if data.exists() {
        std::fs::remove_dir_all(data)?;
    }
    std::fs::rename(made.keep(), data).with_context(|| format!("cannot create {}", data.display()))
}

fn remove_interrupted(parent: &Path) -> Result<()> {
    for entry in std::fs::read_dir(parent)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            // Fails if a process of the interrupted run still writes files; the next start tries again.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// Starts the server and waits until it accepts commands.
async fn launch(
    binaries: &PostgresBinaries,
    account: Option<Account>,
    (settings, env): (&[String], &[(String, String)]),
    port: u16,
    log: &Path,
    place: &Place,
) -> Result<Process> {
    let data = place.data.to_str().context("the path of the data directory is not UTF-8")?;
    let port_setting = format!("port={port}");
    // No Unix socket: its path can be too long, and loopback is sufficient.
    let fixed = ["listen_addresses=127.0.0.1", "unix_socket_directories=", &port_setting];
    let deadline = Instant::now() + START_LIMIT;
    loop {
        let mut launch = Launch::new("PostgreSQL", binaries.postgres(), log).args(["-D", data]);
        for setting in fixed.into_iter().chain(settings.iter().map(String::as_str)) {
            launch = launch.args(["-c", setting]);
        }
        launch.env = env.to_vec();
        launch.account = account;
        launch.stop_signal = Signal::SIGINT;
        launch.remove_when_orphaned = place.temporary.as_ref().map(|dir| dir.path().to_owned());
        let mut process = launch.spawn()?;
        loop {
            if postgres_wire::ping(port, USER).await.is_ok() && process.exited()?.is_none() {
                return Ok(process);
            }
            if process.exited()?.is_some() {
                break;
            }
            if Instant::now() > deadline {
                bail!("PostgreSQL does not respond on port {port}:\n{}", process.log_tail(20));
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        let tail = process.log_tail(20);
        // Backends of a killed server hold its shared memory for a moment, and an orphaned server needs a moment to
        // shut down.
        if Instant::now() > deadline || !DATA_IN_USE.iter().any(|message| tail.contains(message)) {
            bail!("PostgreSQL did not start on port {port}:\n{tail}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

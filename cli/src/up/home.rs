//! The data directory of `gapless up`, locked so that only one run uses it at a time.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::api_address;
use crate::args::DEFAULT_DIR;
use crate::output::say;

/// Children of a killed run stop by themselves within ten seconds (see `shared/localnet/src/lifeline.rs`).
const ORPHANS_LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Home {
    dir: PathBuf,
    /// File lock; the kernel releases it when the process ends.
    _lock: File,
}

impl Home {
    pub(super) fn open(dir: &Path) -> Result<Home> {
        // Readable by other accounts, because PostgreSQL may run as another user; keys and logs are private.
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        let dir = dir.canonicalize()?;
        let lock = lock(&dir)?;
        let home = Home { dir, _lock: lock };
        for private in [home.keys(), home.logs()] {
            DirBuilder::new().recursive(true).mode(0o700).create(&private)?;
        }
        home.wait_for_orphans()?;
        Ok(home)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn keys(&self) -> PathBuf {
        self.dir.join("keys")
    }

    pub(super) fn password_file(&self) -> PathBuf {
        self.dir.join("keys.password")
    }

    /// Keys that encrypt the signing secrets of webhooks.
    pub(super) fn webhook_keys(&self) -> PathBuf {
        self.dir.join("webhook.keys")
    }

    pub(super) fn submitters_file(&self) -> PathBuf {
        self.dir.join("submitters")
    }

    pub(super) fn chain_state(&self) -> PathBuf {
        self.dir.join("anvil.json")
    }

    pub(super) fn config(&self) -> PathBuf {
        self.dir.join("gapless.toml")
    }

    pub(super) fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// Creates an empty log file for this run.
    pub(super) fn log(&self, name: &str) -> Result<PathBuf> {
        let path = self.logs().join(format!("{name}.log"));
        File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Whether commands in the working directory find it by themselves.
    pub(super) fn is_default(&self) -> bool {
        self.dir == Path::new(DEFAULT_DIR).canonicalize().unwrap_or_default()
    }

    /// The command that deletes all data, for messages.
    pub(super) fn clean_data(&self) -> String {
        match self.is_default() {
            true => "`make clean-data`".to_owned(),
            false => format!("`make clean-data DATA={}`", self.dir.display()),
        }
    }

    /// Records the port of the API, for commands in the same project directory.
    pub(super) fn note_api(&self, port: u16) -> Result<()> {
        let path = api_address::port_file(&self.dir);
        std::fs::write(&path, format!("{port}\n")).with_context(|| format!("cannot write {}", path.display()))
    }

    pub(super) fn forget_api(&self) -> Result<()> {
        let path = api_address::port_file(&self.dir);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    fn children_file(&self) -> PathBuf {
        self.dir.join("children")
    }

    /// Records a child process, so that the next run can wait for it if this run is killed.
    pub(super) fn note_child(&self, name: &str, pid: u32) -> Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(self.children_file())?;
        writeln!(file, "{pid} {} {name}", start_time(pid).unwrap_or_default())?;
        Ok(())
    }

    fn wait_for_orphans(&self) -> Result<()> {
        let recorded = std::fs::read_to_string(self.children_file()).unwrap_or_default();
        let deadline = Instant::now() + ORPHANS_LIMIT;
        for line in recorded.lines() {
            let mut words = line.splitn(3, ' ');
            let (Some(pid), Some(started)) = (words.next(), words.next()) else { continue };
            let Ok(number) = pid.parse() else { continue };
            let name = words.next().unwrap_or("a process");
            let mut reported = false;
            while start_time(number).is_some_and(|now| now == started) {
                if Instant::now() > deadline {
                    bail!("{name} of an earlier run is still running; run `kill -9 {pid}`");
                }
                if !std::mem::replace(&mut reported, true) {
                    say(&format!("waiting for {name} (process {pid}) of an earlier run to exit"));
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        File::create(self.children_file())?;
        Ok(())
    }
}

fn lock(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            file.read_to_string(&mut pid)?;
            bail!("{} is in use by process {}: `gapless up` is already running", dir.display(), pid.trim());
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("cannot lock {}", path.display()));
        }
    }
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())?;
    Ok(file)
}

/// Distinguishes a process from a later one with the same pid. `None`: it is not running, or there is no /proc.
fn start_time(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name in parentheses may contain spaces. State is field 3, start time is field 22.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" { None } else { fields.nth(18).map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_on_the_same_directory_fails_with_the_pid_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let first = Home::open(dir.path()).unwrap();
        let error = Home::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        Home::open(dir.path()).unwrap();
    }

    #[test]
    fn children_of_an_earlier_run_are_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let first = Home::open(dir.path()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("0.5").spawn().unwrap();
        first.note_child("sleep", child.id()).unwrap();
        drop(first);
        Home::open(dir.path()).unwrap();
        assert!(child.try_wait().unwrap().is_some());
    }
}

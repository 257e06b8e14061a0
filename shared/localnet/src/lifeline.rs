//! Child processes that stop when this process ends.
//!
//! Each child is started through `sh`, which forks a watcher and then replaces itself with the child (`exec`), so the
//! pid is the child's own. The watcher reads a pipe whose only writer is this process. When this process ends, even by
//! `kill -9`, the pipe closes and the watcher stops the child. The child leads its own process group: a Ctrl-C in the
//! terminal does not reach it, and the group id cannot be reused while the watcher lives, so the watcher never signals
//! an unrelated process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::unprivileged::Account;

/// `$1` is the stop signal for an orphan, `$2` a directory to remove afterwards (or empty), the rest is the command.
/// `read` returns when the pipe closes. The orphan has ten seconds to shut down before SIGKILL.
const WATCHED: &str = r#"
exec 3<&0
signal=$1 remove=$2
shift 2
(
  trap '' HUP INT TERM QUIT
  read -r _ <&3
  kill -s "$signal" $$ 2>/dev/null
  left=100
  while kill -0 $$ 2>/dev/null && [ "$left" -gt 0 ]; do sleep 0.1; left=$((left - 1)); done
  kill -s KILL $$ 2>/dev/null
  if [ -n "$remove" ]; then rm -rf -- "$remove"; fi
) >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null
"#;

const POLL: Duration = Duration::from_millis(20);

/// Options of a child process.
#[derive(Debug)]
pub struct Launch {
    /// For messages.
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Account to run as; only root can set it.
    pub account: Option<Account>,
    /// Standard output and error are appended here.
    pub log: PathBuf,
    /// Signal for a graceful shutdown.
    pub stop_signal: Signal,
    /// Removed if this process ends without stopping the child.
    pub remove_when_orphaned: Option<PathBuf>,
}

impl Launch {
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>, log: impl Into<PathBuf>) -> Launch {
        Launch {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            account: None,
            log: log.into(),
            stop_signal: Signal::SIGTERM,
            remove_when_orphaned: None,
        }
    }

    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Launch {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub fn spawn(self) -> Result<Process> {
        let log = open_log(&self.log)?;
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(WATCHED)
            .arg("sh")
            .arg(short_name(self.stop_signal))
            .arg(self.remove_when_orphaned.as_deref().unwrap_or(Path::new("")))
            .arg(&self.program)
            .args(&self.args)
            .envs(self.env)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log);
        if let Some(account) = self.account {
            command.uid(account.uid).gid(account.gid).current_dir("/");
        }
        let mut child =
            command.spawn().with_context(|| format!("cannot start {}", self.program.display()))?;
        let lifeline = child.stdin.take();
        Ok(Process { name: self.name, child, lifeline, log: self.log, stop_signal: self.stop_signal })
    }
}

fn open_log(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// `kill -s` of a POSIX shell expects the name without `SIG`.
fn short_name(signal: Signal) -> &'static str {
    signal.as_str().trim_start_matches("SIG")
}

/// A running child. Dropping it kills it; `stop` shuts it down gracefully.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    /// Write end of the watcher's pipe; kept open, never written.
    lifeline: Option<ChildStdin>,
    log: PathBuf,
    stop_signal: Signal,
}

impl Process {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    fn raw_pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("process ids fit in i32"))
    }

    /// Sends a signal, for example SIGSTOP or SIGCONT. Does nothing if the child has exited.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.exited()?.is_none() {
            kill(self.raw_pid(), signal).with_context(|| format!("cannot send {signal} to {}", self.name))?;
        }
        Ok(())
    }

    /// The exit status; `None` while the child runs.
    pub fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits up to `limit`; `None`: it is still running.
    pub async fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.exited()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Shuts the child down, or kills it after `limit`. Returns whether it exited within `limit`.
    pub async fn stop(&mut self, limit: Duration) -> Result<bool> {
        self.signal(self.stop_signal)?;
        let in_time = self.wait(limit).await?.is_some();
        self.kill9();
        Ok(in_time)
    }

    /// Sends SIGKILL and waits for the exit.
    pub fn kill9(&mut self) {
        // The group includes the watcher, which is no longer needed. After that the group id may be reused, so this is
        // done once. The pipe is closed only afterwards: otherwise the watcher could remove the directory first.
        if let Some(lifeline) = self.lifeline.take() {
            let _ = killpg(self.raw_pid(), Signal::SIGKILL);
            drop(lifeline);
        }
        let _ = self.child.wait();
    }

    /// The last lines of its log, for error messages.
    pub fn log_tail(&self, lines: usize) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(dir: &Path) -> Launch {
        Launch::new("sleeper", "sleep", dir.join("log")).args(["60"])
    }

    async fn until_it_is_sleep(process: &Process) {
        let command = || std::fs::read_to_string(format!("/proc/{}/comm", process.pid())).unwrap();
        while command().trim() != "sleep" {
            tokio::time::sleep(POLL).await;
        }
    }

    fn alive(pid: u32) -> bool {
        kill(Pid::from_raw(pid as i32), None).is_ok()
    }

    #[tokio::test]
    async fn the_pid_is_the_child_itself_and_a_signal_reaches_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = sleeper(dir.path()).spawn().unwrap();
        until_it_is_sleep(&process).await;
        assert!(process.stop(Duration::from_secs(5)).await.unwrap());
        assert!(!alive(process.pid()));
    }

    #[tokio::test]
    async fn a_closed_lifeline_ends_the_child_and_removes_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let mut launch = sleeper(dir.path());
        launch.remove_when_orphaned = Some(data.clone());
        let mut process = launch.spawn().unwrap();
        process.lifeline = None;
        let status = process.wait(Duration::from_secs(5)).await.unwrap();
        assert!(status.is_some(), "the child is still running");
        let deadline = Instant::now() + Duration::from_secs(5);
        while data.exists() {
            assert!(Instant::now() < deadline, "the directory is still there");
            tokio::time::sleep(POLL).await;
        }
    }

    /// A stopped server can be restarted on the same data.
    #[tokio::test]
    async fn a_child_that_is_stopped_keeps_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        for _ in 0..60 {
            let mut launch = sleeper(dir.path());
            launch.remove_when_orphaned = Some(data.clone());
            let mut process = launch.spawn().unwrap();
            until_it_is_sleep(&process).await;
            process.stop(Duration::from_secs(5)).await.unwrap();
            assert!(data.exists());
        }
    }

    #[test]
    fn dropping_it_kills_it() {
        let dir = tempfile::tempdir().unwrap();
        let process = sleeper(dir.path()).spawn().unwrap();
        let pid = process.pid();
        drop(process);
        assert!(!alive(pid));
    }
}

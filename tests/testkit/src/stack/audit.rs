//! The end of a test: the audit, then the shutdown of all processes.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use super::{Stack, TAIL, locked};
use crate::rows;

const WIDTH: usize = 320;

/// Result of a CLI run.
#[derive(Clone, Debug)]
pub struct CliOutput {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `gapless migrate` of this `gapless-stack`. It needs no configuration, so every version can do it.
pub(super) async fn migrate_by(program: &Path, database_url: &str) -> CliOutput {
    let mut command = Command::new(program);
    command.args(["cli", "migrate"]).env_remove("GAPLESS_CONFIG").env("DATABASE_URL", database_url);
    output(command).await
}

async fn output(mut command: Command) -> CliOutput {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.expect("the CLI runs");
    CliOutput {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Result of `gapless verify --json`.
#[derive(Clone, Debug)]
pub struct AuditResult {
    pub sound: bool,
    pub report: Value,
}

impl AuditResult {
    /// Names of the checks that found violations.
    pub fn broken(&self) -> Vec<String> {
        let chains = self.report["chains"].as_array().into_iter().flatten();
        let checks = chains.flat_map(|chain| chain["checks"].as_array().into_iter().flatten());
        let broken =
            checks.filter(|check| check["violations"].as_array().is_some_and(|found| !found.is_empty()));
        broken.map(|check| check["check"].as_str().unwrap_or("unnamed").to_owned()).collect()
    }
}

impl Stack {
    /// Runs the CLI with this stack's configuration and API.
    pub async fn cli(&self, args: &[&str]) -> CliOutput {
        self.cli_with(&[], args).await
    }

    /// Like `cli`, with additional environment variables, which may select another configuration.
    pub async fn cli_with(&self, env: &[(&str, &str)], args: &[&str]) -> CliOutput {
        let mut command = Command::new(&self.program);
        command.arg("cli").env("GAPLESS_CONFIG", &self.audit_config).args(args);
        let api = self.services().into_iter().find(|service| service.is_api() && service.is_running());
        if let Some(api) = api {
            command.env("GAPLESS_API", api.url()).env("GAPLESS_ADMIN_TOKEN", crate::service::ADMIN_TOKEN);
        }
        command.envs(env.iter().copied());
        output(command).await
    }

    /// Migrates the database with `gapless migrate` of this `gapless-stack`.
    pub async fn migrate_by(&self, program: &Path) -> CliOutput {
        migrate_by(program, self.database_url()).await
    }

    /// Creates an API key with these arguments. Returns the key and its id.
    pub async fn api_key(&self, args: &[&str]) -> (String, String) {
        let made = self.cli(&[&["--json", "api-keys", "create", "--name", "a client"], args].concat()).await;
        assert_eq!(made.code, 0, "{made:?}");
        let made: Value = serde_json::from_str(&made.stdout).expect("JSON was asked for");
        let text = |field: &str| made[field].as_str().expect("a key and its id").to_owned();
        (text("key"), text("keyId"))
    }

    /// Runs the audit. Exit code and report must agree.
    pub async fn verify(&self) -> AuditResult {
        let output = self.cli(&["--json", "verify", "--scan"]).await;
        let report: Value =
            serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("no report: {output:?}"));
        let sound = report["sound"] == Value::Bool(true);
        assert_eq!(output.code, if sound { 0 } else { 1 }, "{output:?}");
        AuditResult { sound, report }
    }

    /// Ends a test: the audit must pass, no accepted request may be lost, no process may have panicked.
    pub async fn finish(self) {
        let audit = self.verify().await;
        assert!(audit.sound, "gapless verify: {:#}", audit.report);
        self.check_nothing_lost().await;
        self.end().await;
    }

    /// Ends a test that damaged the data: the audit must report it in a check whose name contains `check`.
    pub async fn finish_unsound(self, check: &str) {
        let audit = self.verify().await;
        assert!(audit.broken().iter().any(|name| name.contains(check)), "{check}: {:#}", audit.report);
        self.end().await;
    }

    /// Ends a run that has its own checker. Returns the directory of configuration and logs if `keep`.
    pub async fn close(mut self, keep: bool) -> Option<PathBuf> {
        for service in self.services() {
            service.kill9();
        }
        for node in &self.nodes {
            node.stop().await;
        }
        self.db.close().await;
        self.finished = true;
        self.dir.take().filter(|_| keep).map(|dir| dir.keep())
    }

    async fn check_nothing_lost(&self) {
        let accepted = locked(&self.accepted).clone();
        let missing = rows::missing(&self.db, &accepted).await.expect("the database answers");
        assert!(missing.is_empty(), "accepted with 202 and lost: {missing:?}");
    }

    async fn end(mut self) {
        for service in self.services() {
            service.kill9();
            let log = service.log();
            let panicked: Vec<&str> = log.lines().filter(|line| line.contains("panicked at")).collect();
            assert!(panicked.is_empty(), "{} panicked: {panicked:#?}", service.name());
        }
        for node in &self.nodes {
            node.stop().await;
        }
        self.db.close().await;
        self.finished = true;
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        if !std::thread::panicking() {
            panic!("a test ended without stack.finish().await: no audit was run");
        }
        self.show_logs();
        if std::env::var_os("GAPLESS_TEST_KEEP").is_some()
            && let Some(dir) = self.dir.take()
        {
            print_to_stderr(&format!("configuration and logs: {}", dir.keep().display()));
        }
    }
}

impl Stack {
    fn show_logs(&self) {
        for service in self.services() {
            // The log of an exited process is rarely the reason of a failure.
            let lines = if service.is_running() { TAIL } else { TAIL / 4 };
            let tail: Vec<String> = service.tail(lines).lines().map(readable).collect();
            print_to_stderr(&format!("---- last log lines of {}:\n{}", service.name(), tail.join("\n")));
        }
    }
}

/// A JSON log line as readable text, cut to `WIDTH` characters.
fn readable(line: &str) -> String {
    let Ok(Value::Object(mut fields)) = serde_json::from_str::<Value>(line) else { return line.to_owned() };
    let mut take =
        |name: &str| fields.remove(name).and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
    let (time, level, message, _) = (take("timestamp"), take("level"), take("message"), take("target"));
    let time = time.split('T').nth(1).unwrap_or_default().to_owned();
    let rest = fields.iter().filter(|(name, _)| !matches!(name.as_str(), "span" | "trace" | "worker.id"));
    let rest: Vec<String> = rest.map(|(name, value)| format!("{name}={value}")).collect();
    format!("{time} {level} {message} {}", rest.join(" ")).chars().take(WIDTH).collect()
}

/// Prints to the captured output of the test.
#[allow(clippy::print_stderr)]
fn print_to_stderr(text: &str) {
    eprintln!("{text}");
}

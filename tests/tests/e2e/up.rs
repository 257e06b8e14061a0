//! `gapless up` repeatedly on the same data, also after its processes were killed. Scenario 115.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gapless_testkit::LIMIT;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::Connection;

/// A longer start would look like a hang. Idle machines need four seconds.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Data that cannot be used is reported without waiting for anything but the database.
const SENTENCE_LIMIT: Duration = Duration::from_secs(20);
/// The message of every start that cannot continue with the existing data.
const START_OVER: &str = "run `make clean-data";

/// A data directory and the programs, installed side by side.
struct Installation {
    dir: tempfile::TempDir,
}

/// How a run ended.
#[derive(Debug)]
struct Ended {
    success: bool,
    output: String,
    took: Duration,
}

impl Ended {
    fn confirmed(&self) -> bool {
        self.success && self.output.contains("CONFIRMED  3/3 confirmations")
    }

    /// Whether the last sentence gives the instruction to start over.
    fn advises_to_start_over(&self) -> bool {
        !self.success && self.output.trim_end().lines().last().is_some_and(|line| line.contains(START_OVER))
    }
}

impl Installation {
    fn new() -> Installation {
        // Beside the built programs: they are large, and a hard link needs the same file system.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let stack = env!("CARGO_BIN_EXE_gapless-stack");
        std::fs::hard_link(stack, dir.path().join("gapless")).unwrap();
        for part in ["api", "worker"] {
            let program = dir.path().join(format!("gapless-{part}"));
            std::fs::write(&program, format!("#!/bin/sh\nexec '{stack}' {part} \"$@\"\n")).unwrap();
            std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        Installation { dir }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn chain(&self) -> PathBuf {
        self.data().join("anvil.json")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("output")
    }

    fn output(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap()
    }

    /// As printed by the run.
    fn database_url(&self) -> String {
        let output = self.output();
        let url = output.split_whitespace().find(|word| word.starts_with("postgres://"));
        url.unwrap_or_else(|| panic!("no database in {output}")).to_owned()
    }

    fn start(&self, once: bool) -> Run<'_> {
        self.start_with(once, &[])
    }

    fn start_with(&self, once: bool, options: &[&str]) -> Run<'_> {
        let log = std::fs::File::create(self.log()).unwrap();
        let mut command = Command::new(self.dir.path().join("gapless"));
        command.args(["cli", "up", "--dir"]).arg(self.data()).args(once.then_some("--once")).args(options);
        // The sentence is the last line, without a backtrace after it.
        command.env_remove("RUST_BACKTRACE").env_remove("RUST_LIB_BACKTRACE");
        command.env_remove("DATABASE_URL").stdin(Stdio::null());
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Run { installation: self, child, begun: Instant::now() }
    }

    fn once(&self) -> Ended {
        self.start(true).end()
    }

    /// The process id of a process that the run has started.
    fn child(&self, name: &str) -> i32 {
        let children = std::fs::read_to_string(self.data().join("children")).unwrap();
        let line = children.lines().find(|line| line.ends_with(&format!(" {name}")));
        line.unwrap_or_else(|| panic!("no {name} in {children}")).split(' ').next().unwrap().parse().unwrap()
    }

    /// Runs `up` until it prints `text`, and kills a part of it, or all of it.
    fn kill_at(&self, text: &str, victim: Option<&str>) {
        let mut run = self.start(false);
        run.wait_for(text);
        let pid = victim.map_or(run.child.id() as i32, |name| self.child(name));
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        let ended = run.end();
        assert!(!ended.success, "{ended:?}");
        if let Some(name) = victim {
            assert!(ended.output.contains(&format!("{name} exited (signal: 9")), "{}", ended.output);
        }
    }

    /// As `make clean-data` does.
    fn clean(&self) {
        let data = self.data();
        if let Ok(elsewhere) = std::fs::read_to_string(data.join("postgres.path")) {
            std::fs::remove_dir_all(elsewhere.trim_end()).unwrap();
        }
        let _ = std::fs::remove_dir_all(data);
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        self.clean();
    }
}

struct Run<'a> {
    installation: &'a Installation,
    child: Child,
    begun: Instant,
}

impl Run<'_> {
    fn wait_for(&mut self, text: &str) {
        let deadline = Instant::now() + START_LIMIT;
        while !self.installation.output().contains(text) {
            assert!(self.child.try_wait().unwrap().is_none(), "it exited:\n{}", self.installation.output());
            assert!(Instant::now() < deadline, "no `{text}` in its output:\n{}", self.installation.output());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn end(mut self) -> Ended {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let output = self.installation.output();
                return Ended { success: status.success(), output, took: self.begun.elapsed() };
            }
            assert!(Instant::now() < deadline, "it still runs:\n{}", self.installation.output());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Scenario 115. Nothing is killed. A former defect: anvil made a second genesis block at each start, and eventually
/// served that one.
#[test]
fn eight_starts_in_a_row_are_confirmed() {
    let installation = Installation::new();
    for start in 1..=8 {
        let ended = installation.once();
        assert!(ended.confirmed(), "start {start}: {}", ended.output);
        eprintln!("start {start} took {:?}", ended.took);
    }
    let times = chain_times(&installation.chain());
    // A late block may have the same second as the next one.
    assert!(
        times.windows(2).all(|pair| pair[0] <= pair[1]),
        "no block is older than the one before: {times:?}"
    );
    let newest = *times.last().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(now.abs_diff(newest) < 2 * LIMIT.as_secs(), "blocks have the time of day: {newest} at {now}");
}

/// `gapless` with these arguments, in the project directory.
fn in_project(dir: &Path, words: &[&str]) -> (bool, String) {
    let mut command = Command::new(dir.join("gapless"));
    command.arg("cli").args(words).current_dir(dir).env_remove("GAPLESS_API").env_remove("RUST_BACKTRACE");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.success(), text)
}

/// Scenario 115. Ports that are asked for are used or refused, default ports that are in use are replaced with a
/// message, and commands in the same directory find the API. A file of a killed run is named in the error.
#[test]
fn ports_are_selected_or_replaced_and_commands_find_the_api() {
    let installation = Installation::new();
    let dir = installation.dir.path();
    std::os::unix::fs::symlink(installation.data(), dir.join(".gapless")).unwrap();
    // Whoever has it: it is in use.
    let _default = std::net::TcpListener::bind(("127.0.0.1", 9090));
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let taken = listener.local_addr().unwrap().port().to_string();
    let free = [(); 3].map(|()| std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap());
    let [api, anvil, postgres] = free.map(|free| free.local_addr().unwrap().port().to_string());

    let (success, text) = in_project(dir, &["up", "--once", "--api-port", &taken, "--dir", "data"]);
    assert!(!success && text.contains(&format!("--api-port: port {taken} is in use")), "{text}");

    let words = ["--api-port", &api, "--anvil-port", &anvil, "--postgres-port", &postgres];
    let mut run = installation.start_with(false, &words);
    run.wait_for("Ctrl-C");
    let output = installation.output();
    for shown in [
        format!("http://127.0.0.1:{api}/api/v1"),
        format!("http://127.0.0.1:{anvil}"),
        format!(":{postgres}/"),
        "port 9090 is in use: the worker uses ".to_owned(),
    ] {
        assert!(output.contains(&shown), "no {shown} in {output}");
    }
    let (success, text) = in_project(dir, &["submitters"]);
    assert!(success && text.contains("0x"), "{text}");
    let (success, text) = in_project(dir, &["--api", "http://127.0.0.1:9", "submitters"]);
    assert!(!success && text.contains("127.0.0.1:9") && !text.contains("api.port"), "{text}");

    kill(Pid::from_raw(run.child.id() as i32), Signal::SIGKILL).unwrap();
    assert!(!run.end().success);
    let deadline = Instant::now() + START_LIMIT;
    let error = loop {
        let (success, text) = in_project(dir, &["submitters"]);
        if !success && text.contains("cannot reach") {
            break text;
        }
        assert!(Instant::now() < deadline, "the API still answers: {text}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(error.contains(&format!("127.0.0.1:{api}")), "{error}");
    assert!(error.contains(".gapless/api.port") && error.contains("is `gapless up` running?"), "{error}");
    // A run that ends normally leaves no file.
    assert!(installation.once().confirmed());
    assert!(!installation.data().join("api.port").exists());
}

/// The times of the blocks in the state file, by number.
fn chain_times(path: &Path) -> Vec<u64> {
    let state: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let number = |hex: &serde_json::Value| {
        u64::from_str_radix(hex.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
    };
    let headers = state["blocks"].as_array().unwrap().iter().map(|block| &block["header"]);
    let mut blocks: Vec<(u64, u64)> =
        headers.map(|header| (number(&header["number"]), number(&header["timestamp"]))).collect();
    blocks.sort_unstable();
    let numbers: Vec<u64> = blocks.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>(), "each number once");
    blocks.into_iter().map(|(_, time)| time).collect()
}

/// Scenario 115. PostgreSQL loses nothing when it or `up` is killed, so the next start works.
#[test]
fn a_start_after_a_kill_of_postgres_or_of_up_is_confirmed() {
    let installation = Installation::new();
    for (victim, text) in
        [(Some("PostgreSQL"), "TRACKING"), (None, "QUEUED"), (Some("PostgreSQL"), "Ctrl-C"), (None, "Ctrl-C")]
    {
        installation.kill_at(text, victim);
        let ended = installation.once();
        assert!(ended.confirmed(), "after a kill of {victim:?} at {text}: {}", ended.output);
    }
}

/// Scenario 115. A killed anvil loses its newest blocks, and may have been writing its file.
#[test]
fn a_start_after_a_kill_of_anvil_is_confirmed_or_says_what_to_do() {
    let installation = Installation::new();
    for text in ["Ctrl-C", "TRACKING"] {
        installation.kill_at(text, Some("anvil"));
        let ended = installation.once();
        assert!(
            ended.confirmed() || ended.advises_to_start_over(),
            "after a kill at {text}: {}",
            ended.output
        );
        if !ended.success {
            installation.clean();
        }
    }
}

/// Scenario 115. Unusable data is reported at once, and stays unchanged until it is removed.
#[test]
fn data_that_does_not_fit_together_is_told_in_one_sentence() {
    let installation = Installation::new();
    assert!(installation.once().confirmed());
    let whole = std::fs::read_to_string(installation.chain()).unwrap();
    let half = &whole[..whole.len() / 2];
    // What earlier versions left: the genesis block of a later start.
    let mut twice: serde_json::Value = serde_json::from_str(&whole).unwrap();
    let blocks = twice["blocks"].as_array_mut().unwrap();
    let genesis = blocks.iter().find(|block| block["header"]["number"] == "0x0").unwrap().clone();
    blocks.push(genesis);
    for (state, text) in [(None, "block 0 of the chain is"), (Some(half), "state file is truncated")]
        .into_iter()
        .chain([(Some(twice.to_string().as_str()), "2 blocks have the number 0")])
    {
        match state {
            Some(text) => std::fs::write(installation.chain(), text).unwrap(),
            None => std::fs::remove_file(installation.chain()).unwrap(),
        }
        let ended = installation.once();
        assert!(ended.advises_to_start_over() && ended.output.contains(text), "{}", ended.output);
        assert!(!ended.output.contains("QUEUED"), "nothing was tried: {}", ended.output);
    }
    // The control: the data was the cause.
    std::fs::write(installation.chain(), whole).unwrap();
    assert!(installation.once().confirmed());
}

/// Scenario 115. Data of another schema: one whose migration has another text, and one that needs a newer program.
#[test]
fn data_of_another_version_is_told_in_one_sentence() {
    let installation = Installation::new();
    for change in [
        "UPDATE _sqlx_migrations SET checksum = sha384('an unreleased version') WHERE version = 1",
        "WITH later AS (
             INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (900, 'of a later version', TRUE, sha384('later'), 1)
         )
         UPDATE schema_support SET oldest_program = '99.0.0'",
    ] {
        let mut run = installation.start(false);
        run.wait_for("Ctrl-C");
        let url = installation.database_url();
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let mut database = sqlx::PgConnection::connect(&url).await.unwrap();
            assert_eq!(sqlx::query(change).execute(&mut database).await.unwrap().rows_affected(), 1);
            database.close().await.unwrap();
        });
        kill(Pid::from_raw(run.child.id() as i32), Signal::SIGTERM).unwrap();
        assert!(run.end().success);
        let ended = installation.once();
        assert!(ended.advises_to_start_over(), "{}", ended.output);
        assert!(ended.output.contains("another version of Gapless"), "{}", ended.output);
        assert!(ended.took < SENTENCE_LIMIT, "{:?}", ended.took);
        installation.clean();
    }
    // The control: without the data it starts.
    assert!(installation.once().confirmed());
}

/// Scenario 115. A chain that stops responding is reported, and waited for.
#[test]
fn a_start_that_stands_still_says_why_and_goes_on() {
    let installation = Installation::new();
    let mut run = installation.start(true);
    run.wait_for("test transaction");
    let anvil = Pid::from_raw(installation.child("anvil"));
    kill(anvil, Signal::SIGSTOP).unwrap();
    run.wait_for("no progress for");
    run.wait_for("the worker reports");
    // Doctor says which part of the stack it is.
    run.wait_for("gapless doctor: nodes: reachable");
    kill(anvil, Signal::SIGCONT).unwrap();
    let ended = run.end();
    assert!(ended.confirmed(), "{}", ended.output);
}

//! `gapless up` again and again on the same data, also after its parts were killed. Scenario 115.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gapless_tests::LIMIT;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A start that takes longer would look like one that hangs. Idle machines need four seconds.
const START_LIMIT: Duration = Duration::from_secs(60);
/// What every start says that cannot go on with the data it found.
const START_OVER: &str = "run `make clean-data";

/// A data directory and the programs to run on it, as they lie beside each other when they are installed.
struct Bench {
    dir: tempfile::TempDir,
}

/// How a run ended.
#[derive(Debug)]
struct Ended {
    success: bool,
    said: String,
    took: Duration,
}

impl Ended {
    fn confirmed(&self) -> bool {
        self.success && self.said.contains("CONFIRMED  3/3 confirmations")
    }

    /// One sentence, at the end, that says what to do.
    fn told_to_start_over(&self) -> bool {
        !self.success && self.said.trim_end().lines().last().is_some_and(|line| line.contains(START_OVER))
    }
}

impl Bench {
    fn new() -> Bench {
        // Beside the built programs: they are large, and a hard link needs the same file system.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let stack = env!("CARGO_BIN_EXE_gapless-stack");
        std::fs::hard_link(stack, dir.path().join("gapless")).unwrap();
        for part in ["api", "worker"] {
            let program = dir.path().join(format!("gapless-{part}"));
            std::fs::write(&program, format!("#!/bin/sh\nexec '{stack}' {part} \"$@\"\n")).unwrap();
            std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        Bench { dir }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn chain(&self) -> PathBuf {
        self.data().join("anvil.json")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("said")
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap()
    }

    fn start(&self, once: bool) -> Run<'_> {
        let log = std::fs::File::create(self.log()).unwrap();
        let mut command = Command::new(self.dir.path().join("gapless"));
        command.args(["cli", "up", "--dir"]).arg(self.data()).args(once.then_some("--once"));
        // The sentence is the last line, without a backtrace after it.
        command.env_remove("RUST_BACKTRACE").env_remove("RUST_LIB_BACKTRACE");
        command.env_remove("DATABASE_URL").stdin(Stdio::null());
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Run { bench: self, child, begun: Instant::now() }
    }

    fn once(&self) -> Ended {
        self.start(true).end()
    }

    /// The number of a process that the run has started.
    fn child(&self, name: &str) -> i32 {
        let children = std::fs::read_to_string(self.data().join("children")).unwrap();
        let line = children.lines().find(|line| line.ends_with(&format!(" {name}")));
        line.unwrap_or_else(|| panic!("no {name} in {children}")).split(' ').next().unwrap().parse().unwrap()
    }

    /// Runs `up` until it says `words`, and kills a part of it, or all of it, by force.
    fn kill_at(&self, words: &str, victim: Option<&str>) {
        let mut run = self.start(false);
        run.wait_for(words);
        let pid = victim.map_or(run.child.id() as i32, |name| self.child(name));
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        let ended = run.end();
        assert!(!ended.success, "{ended:?}");
        if let Some(name) = victim {
            assert!(ended.said.contains(&format!("{name} ended (signal: 9")), "{}", ended.said);
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

impl Drop for Bench {
    fn drop(&mut self) {
        self.clean();
    }
}

struct Run<'a> {
    bench: &'a Bench,
    child: Child,
    begun: Instant,
}

impl Run<'_> {
    fn wait_for(&mut self, words: &str) {
        let deadline = Instant::now() + START_LIMIT;
        while !self.bench.said().contains(words) {
            assert!(self.child.try_wait().unwrap().is_none(), "it ended:\n{}", self.bench.said());
            assert!(Instant::now() < deadline, "it does not say `{words}`:\n{}", self.bench.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn end(mut self) -> Ended {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let said = self.bench.said();
                return Ended { success: status.success(), said, took: self.begun.elapsed() };
            }
            assert!(Instant::now() < deadline, "it still runs:\n{}", self.bench.said());
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

/// Scenario 115. Nothing is killed. Anvil once made a second block 0 at each start, and sooner or later served that one.
#[test]
fn eight_starts_in_a_row_are_confirmed() {
    let bench = Bench::new();
    for start in 1..=8 {
        let ended = bench.once();
        assert!(ended.confirmed(), "start {start}: {}", ended.said);
        eprintln!("start {start} took {:?}", ended.took);
    }
    let times = chain_times(&bench.chain());
    // A block that comes late may share its second with the next.
    assert!(
        times.windows(2).all(|pair| pair[0] <= pair[1]),
        "no block is older than the one before: {times:?}"
    );
    let newest = *times.last().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(now.abs_diff(newest) < 2 * LIMIT.as_secs(), "blocks have the time of day: {newest} at {now}");
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

/// Scenario 115. PostgreSQL loses nothing when it or `up` is killed, so the next start simply works.
#[test]
fn a_start_after_a_kill_of_postgres_or_of_up_is_confirmed() {
    let bench = Bench::new();
    for (victim, words) in
        [(Some("PostgreSQL"), "TRACKING"), (None, "QUEUED"), (Some("PostgreSQL"), "Ctrl-C"), (None, "Ctrl-C")]
    {
        bench.kill_at(words, victim);
        let ended = bench.once();
        assert!(ended.confirmed(), "after a kill of {victim:?} at {words}: {}", ended.said);
    }
}

/// Scenario 115. A killed anvil loses its newest blocks, and may have been at its file.
#[test]
fn a_start_after_a_kill_of_anvil_is_confirmed_or_says_what_to_do() {
    let bench = Bench::new();
    for words in ["Ctrl-C", "TRACKING"] {
        bench.kill_at(words, Some("anvil"));
        let ended = bench.once();
        assert!(ended.confirmed() || ended.told_to_start_over(), "after a kill at {words}: {}", ended.said);
        if !ended.success {
            bench.clean();
        }
    }
}

/// Scenario 115. Data that cannot work is called that at once, and stays what it is until somebody removes it.
#[test]
fn data_that_does_not_fit_together_is_told_in_one_sentence() {
    let bench = Bench::new();
    assert!(bench.once().confirmed());
    let whole = std::fs::read_to_string(bench.chain()).unwrap();
    let half = &whole[..whole.len() / 2];
    // What earlier versions left behind: block 0 of a later start.
    let mut twice: serde_json::Value = serde_json::from_str(&whole).unwrap();
    let blocks = twice["blocks"].as_array_mut().unwrap();
    let genesis = blocks.iter().find(|block| block["header"]["number"] == "0x0").unwrap().clone();
    blocks.push(genesis);
    for (state, words) in [(None, "block 0 of the chain is"), (Some(half), "not written to its end")]
        .into_iter()
        .chain([(Some(twice.to_string().as_str()), "2 blocks have the number 0")])
    {
        match state {
            Some(text) => std::fs::write(bench.chain(), text).unwrap(),
            None => std::fs::remove_file(bench.chain()).unwrap(),
        }
        let ended = bench.once();
        assert!(ended.told_to_start_over() && ended.said.contains(words), "{}", ended.said);
        assert!(!ended.said.contains("QUEUED"), "nothing was tried: {}", ended.said);
    }
    // It was the data, and nothing else.
    std::fs::write(bench.chain(), whole).unwrap();
    assert!(bench.once().confirmed());
}

/// Scenario 115. A chain that stops answering is no reason to be silent, nor to give up.
#[test]
fn a_start_that_stands_still_says_why_and_goes_on() {
    let bench = Bench::new();
    let mut run = bench.start(true);
    run.wait_for("a first transaction");
    let anvil = Pid::from_raw(bench.child("anvil"));
    kill(anvil, Signal::SIGSTOP).unwrap();
    run.wait_for("nothing has changed for");
    run.wait_for("the worker reports");
    kill(anvil, Signal::SIGCONT).unwrap();
    let ended = run.end();
    assert!(ended.confirmed(), "{}", ended.said);
}

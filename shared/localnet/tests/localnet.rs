//! Starts the local servers: those installed on this machine, and those of the npm packages.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use gapless_localnet::{
    Anvil, AnvilOptions, AnvilProgram, DataDir, Mining, Postgres, PostgresBinaries, PostgresOptions,
    StateFile,
};
use serde_json::json;

fn silent(_: &str) {}

async fn check_postgres(binaries: &PostgresBinaries, options: PostgresOptions) {
    let mut postgres = Postgres::start(binaries, options).await.unwrap();
    postgres.create_database("one").await.unwrap();
    let error = postgres.create_database("one").await.unwrap_err().to_string();
    assert!(error.contains("already exists"), "{error}");
    postgres.ensure_database("one").await.unwrap();
    postgres.create_database("x; drop").await.unwrap_err();

    let port = postgres.port();
    postgres.kill9();
    postgres.create_database("two").await.unwrap_err();
    postgres.restart().await.unwrap();
    assert_eq!(postgres.port(), port);
    postgres.create_database("two").await.unwrap();
    // Data committed before the crash is still there.
    postgres.create_database("one").await.unwrap_err();
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn postgres_of_this_machine_or_npm_survives_kill_9_on_the_same_port_and_data() {
    check_postgres(&PostgresBinaries::obtain(silent).unwrap(), PostgresOptions::for_tests()).await;
}

#[tokio::test]
async fn persistent_data_is_found_by_the_next_start() {
    let binaries = PostgresBinaries::obtain(silent).unwrap();
    // Only the owner can enter this directory, so as root the data is stored elsewhere, as `postgres.path` says.
    let dir = tempfile::tempdir().unwrap();
    let mut first = Postgres::start(&binaries, PostgresOptions::durable(dir.path())).await.unwrap();
    first.create_database("kept").await.unwrap();
    first.stop().await.unwrap();
    let second = Postgres::start(&binaries, PostgresOptions::durable(dir.path())).await.unwrap();
    second.create_database("kept").await.unwrap_err();
    drop(second);
    if let Ok(path) = std::fs::read_to_string(dir.path().join("postgres.path")) {
        std::fs::remove_dir_all(path.trim_end()).unwrap();
    }
}

/// In a separate process, because the npm packages are selected by environment variables.
#[test]
fn the_npm_packages_work_without_anything_installed() {
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "in_a_process_with_the_npm_packages", "--nocapture"])
        .env("GAPLESS_PG", "embedded")
        .env("GAPLESS_ANVIL", "npm")
        .env("GAPLESS_TEST_NPM", "1")
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

#[tokio::test]
async fn in_a_process_with_the_npm_packages() {
    if std::env::var_os("GAPLESS_TEST_NPM").is_none() {
        return;
    }
    let binaries = PostgresBinaries::obtain(silent).unwrap();
    assert!(binaries.postgres().to_string_lossy().contains("node_modules"));
    check_postgres(&binaries, PostgresOptions::for_tests()).await;
    let anvil = Anvil::start(&AnvilProgram::obtain(silent).unwrap(), AnvilOptions::default()).await.unwrap();
    assert_eq!(anvil.rpc("eth_chainId", json!([])).await.unwrap(), json!("0x7a69"));
}

#[tokio::test]
async fn anvil_keeps_its_chain_over_a_restart_on_the_same_port() {
    let dir = tempfile::tempdir().unwrap();
    let options = AnvilOptions {
        chain_id: 4242,
        mining: Mining::Manual,
        state: Some(StateFile { path: dir.path().join("state.json"), every_secs: 3600 }),
        accounts: 0,
        gas_limit: Some(60_000_000),
        ..AnvilOptions::default()
    };
    let mut anvil = Anvil::start(&AnvilProgram::obtain(silent).unwrap(), options).await.unwrap();
    assert_eq!(anvil.rpc("eth_chainId", json!([])).await.unwrap(), json!("0x1092"));
    for _ in 0..3 {
        anvil.rpc("evm_mine", json!([])).await.unwrap();
    }
    let block = anvil.rpc("eth_getBlockByNumber", json!(["0x3", false])).await.unwrap();
    let genesis = anvil.rpc("eth_getBlockByNumber", json!(["0x0", false])).await.unwrap();
    let url = anvil.url();
    for _ in 0..6 {
        anvil.restart().await.unwrap();
        let now = anvil.rpc("eth_getBlockByNumber", json!(["0x0", false])).await.unwrap();
        assert_eq!(now["hash"], genesis["hash"], "block 0 stays the same");
    }
    assert_eq!(anvil.url(), url);
    let again = anvil.rpc("eth_getBlockByNumber", json!(["0x3", false])).await.unwrap();
    assert_eq!(again["hash"], block["hash"]);
    let error = anvil.rpc("no_such_method", json!([])).await.unwrap_err().to_string();
    assert!(error.contains("no_such_method"), "{error}");
}

/// A process killed by SIGKILL leaves no children or temporary data.
#[test]
fn servers_end_with_the_process_that_started_them() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "in_a_process_that_gets_killed", "--nocapture"])
        .env("GAPLESS_TEST_REPORT", &report)
        .spawn()
        .unwrap();
    let text = wait_for(|| std::fs::read_to_string(&report).ok().filter(|text| text.ends_with('\n')));
    child.kill().unwrap();
    child.wait().unwrap();
    let (pids, data) = text.trim_end().split_once(' ').unwrap();
    for pid in pids.split(',') {
        wait_for(|| (!running(pid)).then_some(()));
    }
    wait_for(|| (!Path::new(data).exists()).then_some(()));
}

#[tokio::test]
async fn in_a_process_that_gets_killed() {
    let Some(report) = std::env::var_os("GAPLESS_TEST_REPORT") else { return };
    let options = PostgresOptions { data: DataDir::Temporary, ..PostgresOptions::for_tests() };
    let postgres = Postgres::start(&PostgresBinaries::obtain(silent).unwrap(), options).await.unwrap();
    let anvil = Anvil::start(&AnvilProgram::obtain(silent).unwrap(), AnvilOptions::default()).await.unwrap();
    let text = format!("{},{} {}\n", postgres.pid(), anvil.pid(), postgres.data_dir().display());
    std::fs::write(report, text).unwrap();
    std::future::pending::<()>().await;
}

/// A zombie counts as ended.
fn running(pid: &str) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => !stat.contains(") Z "),
        Err(_) => false,
    }
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "timed out after a minute");
        std::thread::sleep(Duration::from_millis(50));
    }
}

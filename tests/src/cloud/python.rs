//! Python with what `tools/kms/requirements.txt` locks, in an environment of its own below `tools/kms`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tokio::sync::OnceCell;

/// 3.10 is the oldest that the locked versions run on.
const PROBE: &str = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))";

/// `tools/kms` of this repository.
pub(super) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/kms")
}

/// The interpreter; `None`, said loudly, on a machine without Python.
pub(super) async fn interpreter() -> Option<&'static PathBuf> {
    static FOUND: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    let find = || async { tokio::task::spawn_blocking(obtain).await.unwrap() };
    FOUND.get_or_init(find).await.as_ref()
}

fn obtain() -> Option<PathBuf> {
    let usable = Command::new("python3").args(["-c", PROBE]).output();
    if !usable.is_ok_and(|output| output.status.success()) {
        // Not by a macro: the output of tests that pass is not shown.
        let said =
            "\n*** NOT TESTED: AWS KMS. There is no Python 3.10 or newer with venv on this machine. ***\n\n";
        let _ = std::io::stderr().write_all(said.as_bytes());
        return None;
    }
    let dir = directory();
    let requirements = dir.join("requirements.txt");
    let environment = dir.join(".venv");
    let wanted = std::fs::read_to_string(&requirements).expect("tools/kms/requirements.txt");
    let installed = || std::fs::read_to_string(environment.join("installed.txt")).ok();
    // One installer at a time; a second process waits here and then finds the work done.
    let lock = File::open(&requirements).unwrap();
    lock.lock().expect("requirements.txt can be locked");
    // The interpreter it was made with may be gone.
    if installed().as_ref() != Some(&wanted) || !environment.join("bin/python").exists() {
        install(&environment, &requirements);
        // Last, so that what was broken off is done again.
        std::fs::write(environment.join("installed.txt"), wanted).unwrap();
    }
    Some(environment.join("bin/python"))
}

fn install(environment: &Path, requirements: &Path) {
    let _ = std::fs::remove_dir_all(environment);
    run(Command::new("python3").args(["-m", "venv"]).arg(environment))
        .unwrap_or_else(|said| panic!("{said}"));
    let install = || {
        run(Command::new(environment.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"])
            .args(["--require-hashes", "--no-deps", "--only-binary", ":all:", "--no-compile", "-r"])
            .arg(requirements))
    };
    // A registry may fail once.
    install().or_else(|_| install()).unwrap_or_else(|said| panic!("the tests need moto from PyPI: {said}"));
}

fn run(command: &mut Command) -> Result<(), String> {
    let Output { status, stderr, .. } = command.output().map_err(|error| error.to_string())?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {status}\n{}", String::from_utf8_lossy(&stderr))),
    }
}

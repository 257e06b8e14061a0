//! Fallback for machines without PostgreSQL or anvil: installs both as npm packages at the versions in `tools/`. The
//! tests install other node programs in the same way.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Directory of `package.json`, for a binary that runs outside the repository.
const TOOLS_DIR_VAR: &str = "GAPLESS_TOOLS";

/// The directory of a package of `tools/`.
pub(crate) fn package(package: &str, say: fn(&str)) -> Result<PathBuf> {
    installed(&tools_dir()?, package, say)
}

/// The directory of `package`; installs it if it is missing or not the version of `project`'s lock file. Install
/// scripts are disabled; callers do the necessary steps themselves.
pub fn installed(project: &Path, package: &str, say: fn(&str)) -> Result<PathBuf> {
    let dir = project.join("node_modules").join(package);
    let wanted = locked_version(project, package)?;
    if installed_version(project, package).as_ref() == Some(&wanted) {
        return Ok(dir);
    }
    // Only one process installs; others wait for this lock.
    let manifest = project.join("package.json");
    let manifest = File::open(&manifest).with_context(|| format!("cannot open {}", manifest.display()))?;
    manifest.lock().context("cannot lock package.json")?;
    if installed_version(project, package).as_ref() != Some(&wanted) {
        say(&format!("installing {package} {wanted} (npm ci, once)"));
        install(project)?;
    }
    if installed_version(project, package).as_ref() != Some(&wanted) {
        bail!("npm did not install {package} {wanted} for this platform");
    }
    Ok(dir)
}

/// The path of `tools/`.
pub fn tools_dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os(TOOLS_DIR_VAR) {
        return Ok(PathBuf::from(dir));
    }
    let starts = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    starts
        .iter()
        .flatten()
        .flat_map(|start| start.ancestors())
        .map(|dir| dir.join("tools"))
        .find(|dir| dir.join("package-lock.json").is_file())
        .with_context(|| format!("tools/package-lock.json not found; set {TOOLS_DIR_VAR} to its directory"))
}

fn locked_version(project: &Path, package: &str) -> Result<String> {
    let path = project.join("package-lock.json");
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let lock: Value =
        serde_json::from_slice(&text).with_context(|| format!("cannot parse {}", path.display()))?;
    let version = &lock["packages"][format!("node_modules/{package}")]["version"];
    version.as_str().map(str::to_owned).with_context(|| format!("{} has no {package}", path.display()))
}

/// `None` also during an installation, or after an interrupted one.
fn installed_version(project: &Path, package: &str) -> Option<String> {
    let modules = project.join("node_modules");
    // npm writes this file last.
    if !modules.join(".package-lock.json").is_file() {
        return None;
    }
    let dir = modules.join(package);
    let manifest: Value = serde_json::from_slice(&std::fs::read(dir.join("package.json")).ok()?).ok()?;
    manifest["version"].as_str().map(str::to_owned)
}

fn install(project: &Path) -> Result<()> {
    let output = Command::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
        .current_dir(project)
        .output()
        .context("cannot run npm; install Node.js 20 or newer, or install PostgreSQL 13+ and anvil")?;
    if !output.status.success() {
        bail!(
            "npm ci failed in {}:\n{}",
            project.display(),
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(())
}

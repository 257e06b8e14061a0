//! The fallback for machines without PostgreSQL or anvil: both as npm packages, at the versions in `tools/`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Names the directory of `package.json` when the binary runs outside of its repository.
const TOOLS_DIR_VAR: &str = "GAPLESS_TOOLS";

/// The directory of `package`, installed first if it is missing or of another version than the lock file says.
/// Install scripts never run: what they would do is done by whoever uses the package.
pub(super) fn package(package: &str, say: fn(&str)) -> Result<PathBuf> {
    let tools = tools_dir()?;
    let dir = tools.join("node_modules").join(package);
    let wanted = locked_version(&tools, package)?;
    if installed_version(&dir).as_ref() == Some(&wanted) {
        return Ok(dir);
    }
    // One installer at a time; a second process waits here and then finds the work done.
    let manifest = File::open(tools.join("package.json"))?;
    manifest.lock().context("cannot lock tools/package.json")?;
    if installed_version(&dir).as_ref() != Some(&wanted) {
        say(&format!("installing {package} {wanted} (npm ci, once)"));
        install(&tools)?;
    }
    if installed_version(&dir).as_ref() != Some(&wanted) {
        bail!("npm installed no {package} {wanted} for this platform");
    }
    Ok(dir)
}

fn tools_dir() -> Result<PathBuf> {
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
        .with_context(|| {
            format!("found no tools/package-lock.json above; set {TOOLS_DIR_VAR} to that directory")
        })
}

fn locked_version(tools: &Path, package: &str) -> Result<String> {
    let path = tools.join("package-lock.json");
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let lock: Value =
        serde_json::from_slice(&text).with_context(|| format!("cannot parse {}", path.display()))?;
    let version = &lock["packages"][format!("node_modules/{package}")]["version"];
    version.as_str().map(str::to_owned).with_context(|| format!("{} has no {package}", path.display()))
}

fn installed_version(dir: &Path) -> Option<String> {
    let manifest: Value = serde_json::from_slice(&std::fs::read(dir.join("package.json")).ok()?).ok()?;
    manifest["version"].as_str().map(str::to_owned)
}

fn install(tools: &Path) -> Result<()> {
    let output = Command::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
        .current_dir(tools)
        .output()
        .context("cannot run npm; install Node.js 20 or newer, or PostgreSQL 13+ and anvil themselves")?;
    if !output.status.success() {
        bail!(
            "npm ci failed in {}:\n{}",
            tools.display(),
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(())
}

//! `openapi.yaml` against a running API: requests made of the document by schemathesis, and answers compared with it.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::python::Tool;
use crate::stack::CliOutput;

/// 3.11 is the oldest that schemathesis runs on.
static TOOL: Tool = Tool::new("openapi", 11, "openapi.yaml against the API, by schemathesis");

#[derive(Debug)]
pub struct Schemathesis {
    python: &'static PathBuf,
}

impl Schemathesis {
    /// `None` on a machine without Python, which has been said loudly.
    pub async fn find() -> Option<Schemathesis> {
        Some(Schemathesis { python: TOOL.interpreter().await? })
    }

    /// Every check of every operation of `document` that `args` leave in, with this key. Its exit code is 0 if nothing
    /// was found; what was found is on its standard output, each with the curl command that shows it again.
    pub async fn run(&self, dir: &Path, document: &str, url: &str, key: &str, args: &[&str]) -> CliOutput {
        let written = dir.join("openapi.yaml");
        std::fs::write(&written, document).expect("the document can be written");
        let mut command = tokio::process::Command::new(self.python);
        command
            .args(["-m", "schemathesis.cli", "--config-file"])
            .arg(TOOL.directory().join("schemathesis.toml"));
        command.arg("run").arg(written).args(["--url", url, "--checks", "all", "--no-color"]);
        // Keys of the tests open nothing, and a curl command without one shows nothing.
        command.args(["--output-sanitize", "false"]).args(args);
        command.env("GAPLESS_KEY", key).current_dir(dir);
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.expect("Python runs");
        CliOutput {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

//! Runs schemathesis: generates requests from `openapi.yaml` and compares the responses of a running API with it.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::python::Tool;
use crate::stack::CliOutput;

/// schemathesis needs Python 3.11.
static TOOL: Tool = Tool::new("openapi", 11, "openapi.yaml against the API, by schemathesis");

#[derive(Debug)]
pub struct Schemathesis {
    python: &'static PathBuf,
}

impl Schemathesis {
    /// `None` if there is no Python; a warning was printed.
    pub async fn find() -> Option<Schemathesis> {
        Some(Schemathesis { python: TOOL.interpreter().await? })
    }

    /// Runs all checks on the operations of `document` that `args` select, with this API key. The exit code is 0 if
    /// nothing was found; findings are on standard output, each with a curl command to reproduce it.
    pub async fn run(&self, dir: &Path, document: &str, url: &str, key: &str, args: &[&str]) -> CliOutput {
        let written = dir.join("openapi.yaml");
        std::fs::write(&written, document).expect("the document can be written");
        let mut command = tokio::process::Command::new(self.python);
        command
            .args(["-m", "schemathesis.cli", "--config-file"])
            .arg(TOOL.directory().join("schemathesis.toml"));
        command.arg("run").arg(written).args(["--url", url, "--checks", "all", "--no-color"]);
        // Test keys are not secret, and a curl command without the key reproduces nothing.
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

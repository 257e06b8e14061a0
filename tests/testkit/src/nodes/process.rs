//! A node process that logs its port, and can be restarted on the same port.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use gapless_localnet::{Launch, Process};

/// Generous: Node.js and Go programs start slowly on a loaded machine.
const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
const LOOPBACK: &str = "127.0.0.1:";

/// How to start it.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) name: &'static str,
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    /// The port option; with 0 the program picks a free port and logs it.
    pub(super) port_option: &'static str,
    pub(super) env: Vec<(String, String)>,
    pub(super) log: PathBuf,
    /// Text of the log line that has the port.
    pub(super) listening: &'static str,
}

#[derive(Debug)]
pub(crate) struct NodeProcess {
    recipe: Recipe,
    port: u16,
    process: Process,
}

impl NodeProcess {
    pub(super) async fn start(recipe: Recipe) -> NodeProcess {
        let started = launch(&recipe, 0, Instant::now() + START_LIMIT).await;
        let (process, port) = started.unwrap_or_else(|log| panic!("{} does not start:\n{log}", recipe.name));
        NodeProcess { recipe, port, process }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{LOOPBACK}{}", self.port)
    }

    pub(crate) fn kill9(&mut self) {
        self.process.kill9();
    }

    pub(crate) async fn restart(&mut self) {
        self.process.stop(STOP_LIMIT).await.expect("the node can be stopped");
        let deadline = Instant::now() + START_LIMIT;
        loop {
            // An unrelated connection may use the port for a moment between stop and start.
            match launch(&self.recipe, self.port, deadline).await {
                Ok((process, _)) => {
                    self.process = process;
                    return;
                }
                Err(log) => assert!(
                    Instant::now() < deadline && log.to_lowercase().contains("address already in use"),
                    "{} does not start again:\n{log}",
                    self.recipe.name
                ),
            }
        }
    }
}

/// Returns the process and its port, or the end of its log if it exited.
async fn launch(recipe: &Recipe, port: u16, deadline: Instant) -> Result<(Process, u16), String> {
    // Emptied, so that it contains the port of this start only.
    std::fs::write(&recipe.log, "").expect("the log can be written");
    let mut launch = Launch::new(recipe.name, &recipe.program, &recipe.log).args(recipe.args.iter().cloned());
    launch = launch.args([recipe.port_option.to_owned(), port.to_string()]);
    launch.env = recipe.env.clone();
    let mut process = launch.spawn().map_err(|error| format!("{error:#}"))?;
    loop {
        let printed = String::from_utf8_lossy(&std::fs::read(&recipe.log).unwrap_or_default()).into_owned();
        if let Some(port) = listening_port(&printed, recipe.listening) {
            return Ok((process, port));
        }
        let ended = process.exited().expect("the process can be asked").is_some();
        if ended || Instant::now() > deadline {
            return Err(process.log_tail(20));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The port in the line that contains `marker`. A number at the very end may be incomplete and is ignored.
fn listening_port(printed: &str, marker: &str) -> Option<u16> {
    let plain = without_colours(printed);
    let line = plain.lines().find(|line| line.contains(marker))?;
    let (_, address) = line.split_once(LOOPBACK)?;
    let (digits, _) = address.split_at_checked(address.find(|c: char| !c.is_ascii_digit())?)?;
    digits.parse().ok()
}

/// Removes ANSI colour sequences (`ESC [ … letter`), which some programs also write to files if `CI` is set.
fn without_colours(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = after.split_once(|c: char| ('@'..='~').contains(&c)).map_or("", |(_, after)| after);
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const HARDHAT: &str = "Started HTTP and WebSocket JSON-RPC server at http://127.0.0.1:36761/";

    #[test]
    fn the_port_is_found_whether_the_line_is_coloured_or_not() {
        let marker = "JSON-RPC server";
        assert_eq!(listening_port(&format!("{HARDHAT}\n"), marker), Some(36761));
        assert_eq!(
            listening_port(&format!("\u{1b}[32m{HARDHAT}\u{1b}[39m\n\nAccounts\n"), marker),
            Some(36761)
        );
        let geth =
            "INFO [11-16|04:18:25.681] HTTP server started   endpoint=127.0.0.1:41234 auth=false prefix=\n";
        assert_eq!(listening_port(geth, "HTTP server started"), Some(41234));
        assert_eq!(listening_port("WARN 127.0.0.1:1 \nnothing else", marker), None);
    }

    #[test]
    fn an_incomplete_line_is_ignored() {
        for length in 0..HARDHAT.len() {
            assert_eq!(listening_port(&HARDHAT[..length], "JSON-RPC server"), None, "{}", &HARDHAT[..length]);
        }
    }

    #[test]
    fn only_colour_sequences_are_removed() {
        assert_eq!(without_colours("a\u{1b}[1;31mb\u{1b}[0mc[m"), "abc[m");
        assert_eq!(without_colours("cut\u{1b}[3"), "cut");
        assert_eq!(without_colours("plain"), "plain");
    }
}

//! `gapless doctor` on the stack, once for each time that nothing moves.

use std::cell::Cell;
use std::path::PathBuf;

use crate::doctor;
use crate::output::say;

#[derive(Debug)]
pub(super) struct Diagnosis {
    config: PathBuf,
    done: Cell<bool>,
}

impl Diagnosis {
    pub(super) fn new(config: PathBuf) -> Diagnosis {
        Diagnosis { config, done: Cell::new(false) }
    }

    /// Prints the problems that doctor finds, unless it has done so since the last progress.
    pub(super) async fn print_once(&self) {
        if self.done.replace(true) {
            return;
        }
        let problems = doctor::problems(&self.config).await;
        if problems.is_empty() {
            say("gapless doctor finds no problem");
        }
        for problem in problems {
            say(&format!("gapless doctor: {problem}"));
        }
    }

    /// There is progress: the next stall is examined again.
    pub(super) fn reset(&self) {
        self.done.set(false);
    }
}

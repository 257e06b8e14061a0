//! The log of a history: printed on failure, and compared in the test of determinism.

use std::sync::{Arc, Mutex};

#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(super) fn add(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

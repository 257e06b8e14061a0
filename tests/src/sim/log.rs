//! What happened in a history, in the order it happened: printed if it ends badly, compared if it is run twice.

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

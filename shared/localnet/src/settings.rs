//! Builds a TOML configuration file from dotted keys, for tests and benchmarks.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value};

#[derive(Clone, Debug, Default)]
pub struct Settings(Map<String, Value>);

impl Settings {
    /// `key` is a dotted path such as `nonce.max_in_flight`. Later values replace earlier ones.
    ///
    /// Panics if a part of `key` is not a table.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        let mut parts: Vec<&str> = key.split('.').collect();
        let last = parts.pop().expect("split returns at least one part");
        let mut table = &mut self.0;
        for part in parts {
            let entry = table.entry(part).or_insert_with(|| Value::Object(Map::new()));
            table = entry.as_object_mut().unwrap_or_else(|| panic!("`{part}` of `{key}` is not a table"));
        }
        table.insert(last.to_owned(), value.into());
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        let (first, rest) = key.split_once('.')?;
        rest.split('.').try_fold(self.0.get(first)?, |value, part| value.get(part))?.as_str()
    }

    pub fn write(&self, path: &Path) -> Result<PathBuf> {
        let text = toml::to_string(&self.0).context("cannot serialise the settings")?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_tables_and_later_values_win() {
        let mut settings = Settings::default();
        settings.set("nonce.max_in_flight", 1);
        settings.set("nonce.max_in_flight", 16);
        settings.set("rpc.urls", vec!["a", "b"]);
        assert_eq!(settings.text("nonce.max_in_flight"), None, "not a string");
        let text = toml::to_string(&settings.0).unwrap();
        assert_eq!(text, "[nonce]\nmax_in_flight = 16\n\n[rpc]\nurls = [\"a\", \"b\"]\n");
    }
}

//! The state file that preserves an anvil chain across restarts.
//!
//! Anvil writes it in place, so a kill can leave it truncated. This is detected here.

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Deserialize;

#[derive(Clone, Debug)]
pub struct StateFile {
    pub path: PathBuf,
    /// Write interval; it is also written on shutdown.
    pub every_secs: u64,
}

/// The file exists, but no chain can be loaded from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableState(String);

impl std::error::Error for UnusableState {}

impl std::fmt::Display for UnusableState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The part of the file that is read here.
#[derive(Deserialize)]
struct State {
    blocks: Vec<Block>,
}

#[derive(Deserialize)]
struct Block {
    header: Header,
}

#[derive(Deserialize)]
struct Header {
    number: String,
    timestamp: String,
}

impl StateFile {
    /// Timestamp of block 0. `None`: the file does not exist.
    pub(super) fn genesis_time(&self) -> Result<Option<u64>> {
        let unusable = |why: String| UnusableState(format!("{}: {why}", self.path.display()));
        let text = match std::fs::read(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.with_context(|| format!("cannot read {}", self.path.display()))?,
        };
        let state: State = serde_json::from_slice(&text)
            .map_err(|error| unusable(format!("the anvil state file is truncated ({error})")))?;
        let number = |hex: &str| u64::from_str_radix(hex.trim_start_matches("0x"), 16);
        let first: Vec<&Header> = state
            .blocks
            .iter()
            .map(|block| &block.header)
            .filter(|header| number(&header.number) == Ok(0))
            .collect();
        match first.as_slice() {
            [genesis] => Ok(Some(number(&genesis.timestamp).map_err(|error| unusable(error.to_string()))?)),
            several => Err(unusable(format!("{} blocks have the number 0", several.len())).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<u64>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        std::fs::write(&path, text).unwrap();
        StateFile { path, every_secs: 1 }.genesis_time()
    }

    fn state(blocks: &[(u64, u64)]) -> String {
        let block = |(number, time): &(u64, u64)| {
            format!(r#"{{"header":{{"number":"{number:#x}","timestamp":"{time:#x}"}}}}"#)
        };
        format!(r#"{{"blocks":[{}]}}"#, blocks.iter().map(block).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn the_time_of_block_0_is_found_in_any_order() {
        assert_eq!(read(&state(&[(2, 30), (0, 10), (1, 20)])).unwrap(), Some(10));
        let missing = StateFile { path: PathBuf::from("/no/such/file"), every_secs: 1 };
        assert_eq!(missing.genesis_time().unwrap(), None);
    }

    #[test]
    fn a_file_without_exactly_one_block_0_is_unusable() {
        let whole = state(&[(0, 10), (1, 20)]);
        for bad in ["", &whole[..whole.len() / 2], &state(&[(0, 10), (0, 11)]), &state(&[(1, 10)])] {
            assert!(read(bad).unwrap_err().is::<UnusableState>(), "{bad}");
        }
    }
}

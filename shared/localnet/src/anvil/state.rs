//! The state file that preserves an anvil chain across restarts.
//!
//! Anvil writes it in place, so a kill can leave it truncated. It also copies the blocks before the accounts, so after a
//! kill the newest transactions may be missing that the accounts already show. Both are detected here.

use std::collections::HashMap;
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
    #[serde(default)]
    accounts: HashMap<String, Account>,
    #[serde(default)]
    transactions: Vec<Transaction>,
}

#[derive(Deserialize)]
struct Account {
    nonce: u64,
    code: String,
}

#[derive(Deserialize)]
struct Transaction {
    info: TransactionInfo,
}

#[derive(Deserialize)]
struct TransactionInfo {
    from: String,
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
        if let Some(missing) = state.missing_transactions() {
            return Err(unusable(missing).into());
        }
        match first.as_slice() {
            [genesis] => Ok(Some(number(&genesis.timestamp).map_err(|error| unusable(error.to_string()))?)),
            several => Err(unusable(format!("{} blocks have the number 0", several.len())).into()),
        }
    }
}

impl State {
    /// The first account, by address, that has sent more transactions than the file has. Accounts with code are skipped:
    /// their nonces also count contracts that they created and delegations.
    fn missing_transactions(&self) -> Option<String> {
        let mut sent: HashMap<String, u64> = HashMap::new();
        for transaction in &self.transactions {
            *sent.entry(transaction.info.from.to_lowercase()).or_default() += 1;
        }
        let sent_by = |address: &str| sent.get(&address.to_lowercase()).copied().unwrap_or_default();
        let incomplete = |(address, account): &(&String, &Account)| {
            account.code == "0x" && account.nonce > sent_by(address)
        };
        let (address, account) =
            self.accounts.iter().filter(incomplete).min_by_key(|(address, _)| *address)?;
        let (nonce, sent) = (account.nonce, sent_by(address));
        Some(format!(
            "the anvil state file is incomplete ({address} has sent {nonce} transactions, the file has {sent})"
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    /// One transaction of `from`, and the given accounts: address, nonce and code.
    fn with_accounts(from: &str, accounts: &[(&str, u64, &str)]) -> Result<Option<u64>> {
        let mut file: serde_json::Value = serde_json::from_str(&state(&[(0, 10)])).unwrap();
        file["transactions"] = json!([{ "info": { "from": from, "nonce": 0 } }]);
        for (address, nonce, code) in accounts {
            file["accounts"][address] = json!({ "nonce": nonce, "code": code, "balance": "0x0" });
        }
        read(&file.to_string())
    }

    #[test]
    fn a_file_without_transactions_that_its_accounts_have_sent_is_unusable() {
        assert_eq!(
            with_accounts("0xAb", &[("0xab", 1, "0x"), ("0xcd", 0, "0x"), ("0xef", 7, "0x60")]).unwrap(),
            Some(10)
        );
        let error = with_accounts("0xab", &[("0xab", 2, "0x")]).unwrap_err();
        assert!(error.is::<UnusableState>());
        assert!(error.to_string().contains("0xab has sent 2 transactions, the file has 1"), "{error}");
        assert!(with_accounts("0xab", &[("0xcd", 1, "0x")]).unwrap_err().is::<UnusableState>());
    }

    #[test]
    fn a_file_without_exactly_one_block_0_is_unusable() {
        let whole = state(&[(0, 10), (1, 20)]);
        for bad in ["", &whole[..whole.len() / 2], &state(&[(0, 10), (0, 11)]), &state(&[(1, 10)])] {
            assert!(read(bad).unwrap_err().is::<UnusableState>(), "{bad}");
        }
    }
}

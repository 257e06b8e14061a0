//! The commands that ask somebody else and print the answer.

pub mod admin;
pub mod api_keys;
pub mod audit;
pub mod keys;
pub mod migrate;
pub mod revert;
pub mod status;
pub mod submit;
pub mod submitters;
pub mod tx_actions;
pub mod watch;

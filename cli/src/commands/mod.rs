//! Commands that send one request to the API or the database and print the result.

pub mod admin;
pub mod api_keys;
pub mod audit;
pub mod events;
pub mod keys;
pub mod migrate;
pub mod revert;
pub mod status;
pub mod submit;
pub mod submitters;
pub mod tx_actions;
pub mod waiting;
pub mod watch;
pub mod webhooks;

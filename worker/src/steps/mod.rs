//! The steps. Every state has exactly one that moves it on:
//!
//! | state | step |
//! |---|---|
//! | QUEUED | `prepare` |
//! | IN_FLIGHT, SUBMITTED, STUCK | `submit` (bytes to the node; `replace` makes others), until `track` hears of a block |
//! | IN_FLIGHT, held by a caller outside | `reserve`, until there is an answer or the hold ends |
//! | TRACKING | `track` |
//! | PROTECT | `protect` (watches), `operator` (releases) |
//!
//! `attribution` finds out who consumed a nonce, `pending_use` whether somebody is about to. `policy` says what may be signed at all. `shared_key` does for a key that others use as well what `protect` does for one that is
//! ours alone; `delegated` knows of accounts that may have one transaction on its way. `stuck` raises the alarm for what
//! stays unmined, and `diagnose` asks where it is. `recover` has what is open sent again after trouble with a node. `request` carries out what is asked about an intent: cancel it, speed it
//! up, send it again.

pub(crate) mod attribution;
pub(crate) mod delegated;
pub(crate) mod diagnose;
pub(crate) mod operator;
mod pending_use;
pub(crate) mod policy;
pub(crate) mod prepare;
pub(crate) mod protect;
pub(crate) mod recover;
pub(crate) mod replace;
pub(crate) mod request;
pub(crate) mod reserve;
pub(crate) mod shared_key;
pub(crate) mod stuck;
pub(crate) mod submit;
pub(crate) mod track;

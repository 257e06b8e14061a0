//! The steps of a lane. Each state has exactly one step that advances it:
//!
//! | state | step |
//! |---|---|
//! | QUEUED | `prepare` |
//! | IN_FLIGHT, SUBMITTED, STUCK | `submit` (sends the bytes; `replace` makes new ones), until `track` finds a receipt |
//! | IN_FLIGHT, nonce reserved by a client | `reserve`, until the client answers or the reservation expires |
//! | TRACKING | `track` |
//! | PROTECT | `protect` (watches), `operator` (releases) |
//!
//! `attribution` finds the transaction that consumed a nonce; `pending_use` detects an unmined external transaction.
//! `policy` decides what may be signed. `shared_key` replaces `protect` for keys that are also used externally.
//! `delegated` handles accounts that may have only one pending transaction. `stuck` raises the alarm for unmined
//! intents, and `diagnose` looks for them in the mempools. `recover` resends open intents after a node failure.
//! `request` executes client requests: cancel, speed up, rebroadcast. `late` ends queued intents that can no longer start.

pub(crate) mod attribution;
pub(crate) mod delegated;
pub(crate) mod diagnose;
pub(crate) mod late;
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

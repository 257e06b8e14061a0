//! What Gapless knows, as plain data and functions: no database, no network, no clock, no `async`.

pub mod abi;
pub mod amount;
pub mod event;
pub mod gas;
pub mod hex_text;
pub mod ids;
pub mod intent;
pub mod payload;
pub mod receipt;
pub mod state;
pub mod unsigned;

pub use event::{Event, EventKind};
pub use ids::{AttemptId, ChainId, FencingToken, NodeId, Nonce, SubmitterKey, TxId};
pub use intent::{RequestedAccess, RequestedTx};
pub use payload::{InvalidIntent, Payload, TxKind};
pub use receipt::{BlockRef, Receipt};
pub use state::TxState;
pub use unsigned::{Fees, SignedDraft, UnsignedTx};

pub use ethers_core::types::{Address, Bytes, H256, U256};

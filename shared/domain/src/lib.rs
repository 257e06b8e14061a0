//! Domain types and pure functions: no database, no network, no clock, no `async`.

pub mod abi;
pub mod amount;
pub mod api_key;
pub mod blocked;
pub mod bump;
pub mod event;
pub mod finality;
pub mod gas;
pub mod hex_text;
pub mod ids;
pub mod intent;
pub mod mempool;
mod nonce_bounds;
pub mod payload;
pub mod policy;
pub mod receipt;
pub mod reservation;
pub mod revert;
pub mod sanitize;
pub mod signature;
pub mod state;
pub mod stuck;
pub mod sub_state;
pub mod tx_error;
pub mod unsigned;
pub mod waiting;

pub use api_key::{ApiKeyId, ApiKeySecret, PresentedKey, Rights, Scope};
pub use blocked::BlockedReason;
pub use event::{Event, EventKind};
pub use finality::{Confirmation, FinalConfirmations, Finality};
pub use ids::{AttemptId, ChainId, FencingToken, Nonce, SubmitterKey, TxId, WorkerId};
pub use intent::{RequestedAccess, RequestedTx};
pub use nonce_bounds::{Below, CountAt, NonceBounds};
pub use payload::{InvalidIntent, Payload, Speed, TxKind};
pub use policy::Policy;
pub use receipt::{BlockRef, Receipt};
pub use reservation::{Answer, ReservationState, Via};
pub use revert::{Failure, Revert, RevertData, RevertKind};
pub use state::{Ending, TxState};
pub use sub_state::SubState;
pub use tx_error::{ErrorCode, TxError};
pub use unsigned::{Fees, SignedDraft, UnsignedTx};
pub use waiting::{WaitReason, Waiting};

pub use ethers_core::types::{Address, Bytes, H256, U256};

//! Everything that talks to a chain, behind one small port. Core code names no RPC library.

pub mod classify;
pub mod evm;
pub mod fees;
pub mod port;

pub use classify::{SubmitClass, SubmitOutcome};
pub use port::{BlockTag, BlockWithHashes, CallOutcome, ChainConnector, ConsumedNonce, FeeHistory, RpcError};

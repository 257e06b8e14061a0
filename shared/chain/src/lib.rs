//! Chain access behind one port. Core code does not depend on an RPC library.

pub mod classify;
pub mod evm;
pub mod fees;
#[cfg(feature = "fuzz")]
pub mod fuzz_entry;
pub mod port;

pub use classify::{ErrorPatterns, SubmitClass, SubmitOutcome, classify};
pub use evm::{BlockTime, EvmClient, EvmClientError, SingleNode, SyncProgress};
pub use fees::{BySpeed, FeeHistoryPolicy, FeePolicy, FeeSource, Market};
pub use port::{
    BlockId, BlockTag, BlockWithHashes, CallOutcome, ChainConnector, ChainIdentity, FeeHistory,
    MempoolInspector, MinedTx, RpcError, SenderInBlocks,
};

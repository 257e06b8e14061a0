//! The EVM adapter: JSON-RPC over HTTP, batched.

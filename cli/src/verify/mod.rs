//! The independent audit: what the database claims against what the chain shows.
//!
//! It reads and never writes, shares no code with the worker beyond names, and trusts neither side.

pub mod checks;
pub mod facts;
pub mod node;

//! All SQL. A file per concern; each statement beside the function that runs it.
//!
//! A worker's writes exist only as `FencedWrite`s, made from a `Lease` and applied behind the fence
//! (docs/adr/0002). There is no other way to spell one.

pub mod attempt;

pub use attempt::Attempt;

//! A PostgreSQL server and an anvil node on this machine, for `gapless up`, the tests and the benchmarks.
//!
//! Both listen on loopback and stop when the process that started them ends, even if it is killed. Not for
//! production.

mod anvil;
mod free_port;
mod lifeline;
pub mod npm;
mod postgres;
mod postgres_binaries;
mod postgres_wire;
mod settings;
mod unprivileged;

pub use anvil::{Anvil, AnvilOptions, AnvilProgram, AnvilRpc, Mining, StateFile, UnusableState};
pub use free_port::Port;
pub use lifeline::{Launch, Process};
pub use postgres::{DataDir, Postgres, PostgresOptions};
pub use postgres_binaries::PostgresBinaries;
pub use settings::Settings;
pub use unprivileged::Account;

//! The HTTP server of the API and of the worker's port: one accept loop with limits, and TLS. It knows no routes and no
//! configuration; the programs pass both.

mod body_limit;
mod connections;
mod per_address;
mod tls;

pub use body_limit::{BodyError, BodyLimit};
pub use connections::{Limits, serve};
pub use per_address::ClientConnection;
pub use tls::{Tls, TlsFiles};

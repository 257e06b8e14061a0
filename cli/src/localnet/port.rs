//! Ports nobody listens on. Between the choice and the use another process can take one: callers try again.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result};

/// A port the system considers free.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}

/// The port people expect, if it is free.
pub fn preferred_or_free(preferred: u16) -> Result<u16> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, preferred)) {
        Ok(_) => Ok(preferred),
        Err(_) => free_port(),
    }
}

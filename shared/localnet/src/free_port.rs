//! Ports for servers that may be restarted on the same port.
//!
//! A port of the ephemeral range (`bind(0)`, outgoing connections) can be taken between choice and use, or while a
//! server restarts. So ports are chosen below that range, and a file lock reserves a port among the processes of this
//! program until the `Port` is dropped. Other programs can still take it, so starting a server retries with another.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};

use anyhow::{Context, Result, bail};
use rand::Rng;

/// Lower ports belong to well-known services.
const LOWEST: u16 = 10_240;
/// The ephemeral range starts at 32768 on Linux, at 49152 on other systems.
const USUAL_END: u16 = 32_768;
const TRIES: u32 = 200;

/// A port on 127.0.0.1 that no other process of this program uses.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Locked while it is open. `None`: the port was configured explicitly.
    _claim: Option<File>,
}

impl Port {
    /// Any unused port.
    pub fn claim() -> Result<Port> {
        for _ in 0..TRIES {
            let number = rand::rng().random_range(LOWEST..end_of_range());
            let Some(claim) = lock(number)? else { continue };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Port { number, _claim: Some(claim) });
            }
        }
        bail!("no free port on 127.0.0.1 after {TRIES} attempts");
    }

    /// The given port if it is free, otherwise any unused port.
    pub fn preferred(number: u16) -> Result<Port> {
        Port::if_free(number)?.map_or_else(Port::claim, Ok)
    }

    /// The given port; `None` if it is in use or reserved.
    pub fn if_free(number: u16) -> Result<Option<Port>> {
        Ok(match lock(number)? {
            Some(claim) if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() => {
                Some(Port { number, _claim: Some(claim) })
            }
            _ => None,
        })
    }

    /// The given port, without a check.
    pub fn chosen(number: u16) -> Port {
        Port { number, _claim: None }
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}

/// First port of the ephemeral range.
fn end_of_range() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first = range.split_whitespace().next().and_then(|first| first.parse().ok());
    // Ignore a range that leaves too few ports below it.
    first.filter(|first| *first > 2 * LOWEST).unwrap_or(USUAL_END)
}

/// `None`: another process holds the lock. The kernel releases it when the file is closed.
fn lock(number: u16) -> Result<Option<File>> {
    let dir = std::env::temp_dir().join("gapless-ports");
    // Shared by all accounts of the machine, like the temporary directory itself.
    match DirBuilder::new().mode(0o1777).create(&dir) {
        Ok(()) => std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o1777))
            .with_context(|| format!("cannot set the permissions of {}", dir.display()))?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(|| format!("cannot create {}", dir.display())),
    }
    let path = dir.join(number.to_string());
    let file = match OpenOptions::new().create(true).append(true).mode(0o600).open(&path) {
        Ok(file) => file,
        // Owned by another account.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot open {}", path.display())),
    };
    Ok(file.try_lock().is_ok().then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_port_is_reserved_until_it_is_dropped() {
        let port = Port::claim().unwrap();
        assert!(lock(port.number()).unwrap().is_none());
        let number = port.number();
        drop(port);
        assert!(lock(number).unwrap().is_some());
    }

    #[test]
    fn ports_are_outside_the_range_of_outgoing_connections() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let end = end_of_range();
        assert!(listener.local_addr().unwrap().port() >= end);
        assert!((LOWEST..end).contains(&Port::claim().unwrap().number()));
    }

    #[test]
    fn a_preferred_port_that_is_taken_is_replaced() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let taken = listener.local_addr().unwrap().port();
        assert_ne!(Port::preferred(taken).unwrap().number(), taken);
        // Nothing listens on this port, but it is reserved.
        let claimed = Port::claim().unwrap();
        assert_ne!(Port::preferred(claimed.number()).unwrap().number(), claimed.number());
    }
}

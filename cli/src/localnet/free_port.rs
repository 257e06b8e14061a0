//! Ports for servers that may be stopped and started again on the same one.
//!
//! A port of the range from which the system serves `bind(0)` and outgoing connections can be gone between the choice
//! and the use, or while a server restarts. So ports are chosen below that range, and a locked file tells the other
//! processes of this program that one is taken, until the `Port` is dropped. A server of somebody else's can still
//! take one: whoever starts a server tries another.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};

use anyhow::{Context, Result, bail};
use rand::Rng;

/// Below are the ports of well-known services.
const LOWEST: u16 = 10_240;
/// Linux serves outgoing connections from 32768 on, other systems from 49152 on.
const USUAL_END: u16 = 32_768;
/// Enough to find one among thousands, of which a few dozen are taken.
const TRIES: u32 = 200;

/// A port on 127.0.0.1 that no other process of this program uses.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Locked as long as it is open. `None`: somebody chose the port by hand.
    _claim: Option<File>,
}

impl Port {
    /// Any port that nobody listens on.
    pub fn claim() -> Result<Port> {
        for _ in 0..TRIES {
            let number = rand::rng().random_range(LOWEST..end_of_range());
            let Some(claim) = lock(number)? else { continue };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Port { number, _claim: Some(claim) });
            }
        }
        bail!("no free port on 127.0.0.1 among {TRIES}");
    }

    /// The port people expect, if it is free.
    pub fn preferred(number: u16) -> Result<Port> {
        match lock(number)? {
            Some(claim) if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() => {
                Ok(Port { number, _claim: Some(claim) })
            }
            _ => Port::claim(),
        }
    }

    /// The one somebody chose, free or not.
    pub fn chosen(number: u16) -> Port {
        Port { number, _claim: None }
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}

/// The first port that the system hands out by itself.
fn end_of_range() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first = range.split_whitespace().next().and_then(|first| first.parse().ok());
    // A system that hands out nearly everything leaves nothing to choose from below.
    first.filter(|first| *first > 2 * LOWEST).unwrap_or(USUAL_END)
}

/// `None`: another process has it. The system drops the lock with the last handle of the file, however we end.
fn lock(number: u16) -> Result<Option<File>> {
    let dir = std::env::temp_dir().join("gapless-ports");
    // Shared by all accounts of the machine, like the directory it is in.
    match DirBuilder::new().mode(0o1777).create(&dir) {
        Ok(()) => std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o1777))
            .with_context(|| format!("cannot open {} to others", dir.display()))?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(|| format!("cannot create {}", dir.display())),
    }
    let path = dir.join(number.to_string());
    let file = match OpenOptions::new().create(true).append(true).mode(0o600).open(&path) {
        Ok(file) => file,
        // Another account's.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot open {}", path.display())),
    };
    Ok(file.try_lock().is_ok().then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_port_is_given_to_nobody_else_until_it_is_dropped() {
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
        // Nobody listens on this one, but another process is about to.
        let claimed = Port::claim().unwrap();
        assert_ne!(Port::preferred(claimed.number()).unwrap().number(), claimed.number());
    }
}

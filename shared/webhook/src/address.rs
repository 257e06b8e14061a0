//! Which addresses deliveries may go to.
//!
//! Users choose the URLs, so that without a check they could reach services of our own network (server-side request
//! forgery). Only public addresses are accepted, and those that the operator allows.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;

use crate::target::TargetUrl;

/// Why an address is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedReason {
    Unspecified,
    ThisNetwork,
    Loopback,
    Private,
    Shared,
    LinkLocal,
    UniqueLocal,
    SiteLocal,
    ProtocolAssignment,
    Documentation,
    Benchmarking,
    CloudPlatform,
    Multicast,
    Broadcast,
    /// Not assigned for public use.
    Reserved,
    /// Its translator and the IPv4 address behind it depend on the network that we are in.
    LocalTranslation,
    /// A tunnel through a third party, which decides where packets go.
    Teredo,
    Discard,
}

impl RefusedReason {
    pub fn as_str(self) -> &'static str {
        match self {
            RefusedReason::Unspecified => "unspecified address",
            RefusedReason::ThisNetwork => "address of this network",
            RefusedReason::Loopback => "loopback address",
            RefusedReason::Private => "private address",
            RefusedReason::Shared => "shared address of a provider's network",
            RefusedReason::LinkLocal => "link-local address",
            RefusedReason::UniqueLocal => "unique local address",
            RefusedReason::SiteLocal => "site-local address",
            RefusedReason::ProtocolAssignment => "address for protocol assignments",
            RefusedReason::Documentation => "address for documentation",
            RefusedReason::Benchmarking => "address for benchmarks",
            RefusedReason::CloudPlatform => "address of a cloud platform's internal service",
            RefusedReason::Multicast => "multicast address",
            RefusedReason::Broadcast => "broadcast address",
            RefusedReason::Reserved => "reserved address",
            RefusedReason::LocalTranslation => "address of a local NAT64 network",
            RefusedReason::Teredo => "Teredo address",
            RefusedReason::Discard => "discard address",
        }
    }
}

impl fmt::Display for RefusedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

/// The first four groups; the others are zero.
const fn v6(a: u16, b: u16, c: u16, d: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0), prefix)
}

/// The special-purpose registry of IANA without what is reachable for all. The first match counts.
const REFUSED_V4: [(Ipv4Net, RefusedReason); 18] = [
    (v4(0, 0, 0, 0, 32), RefusedReason::Unspecified),
    (v4(0, 0, 0, 0, 8), RefusedReason::ThisNetwork),
    (v4(10, 0, 0, 0, 8), RefusedReason::Private),
    (v4(100, 64, 0, 0, 10), RefusedReason::Shared),
    (v4(127, 0, 0, 0, 8), RefusedReason::Loopback),
    // The wire server of Azure: a public address that inside Azure is a service of the host.
    (v4(168, 63, 129, 16, 32), RefusedReason::CloudPlatform),
    // Has the metadata service of most clouds, 169.254.169.254.
    (v4(169, 254, 0, 0, 16), RefusedReason::LinkLocal),
    (v4(172, 16, 0, 0, 12), RefusedReason::Private),
    (v4(192, 0, 0, 0, 24), RefusedReason::ProtocolAssignment),
    (v4(192, 0, 2, 0, 24), RefusedReason::Documentation),
    // Was the relay of 6to4.
    (v4(192, 88, 99, 0, 24), RefusedReason::Reserved),
    (v4(192, 168, 0, 0, 16), RefusedReason::Private),
    (v4(198, 18, 0, 0, 15), RefusedReason::Benchmarking),
    (v4(198, 51, 100, 0, 24), RefusedReason::Documentation),
    (v4(203, 0, 113, 0, 24), RefusedReason::Documentation),
    (v4(224, 0, 0, 0, 4), RefusedReason::Multicast),
    (v4(255, 255, 255, 255, 32), RefusedReason::Broadcast),
    (v4(240, 0, 0, 0, 4), RefusedReason::Reserved),
];

const REFUSED_V6: [(Ipv6Net, RefusedReason); 13] = [
    (v6(0, 0, 0, 0, 128), RefusedReason::Unspecified),
    (Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128), RefusedReason::Loopback),
    (v6(0x64, 0xff9b, 1, 0, 48), RefusedReason::LocalTranslation),
    (v6(0x100, 0, 0, 0, 64), RefusedReason::Discard),
    (v6(0x2001, 0, 0, 0, 32), RefusedReason::Teredo),
    (v6(0x2001, 2, 0, 0, 48), RefusedReason::Benchmarking),
    (v6(0x2001, 0, 0, 0, 23), RefusedReason::ProtocolAssignment),
    (v6(0x2001, 0xdb8, 0, 0, 32), RefusedReason::Documentation),
    (v6(0x3fff, 0, 0, 0, 20), RefusedReason::Documentation),
    (v6(0xfc00, 0, 0, 0, 7), RefusedReason::UniqueLocal),
    (v6(0xfe80, 0, 0, 0, 10), RefusedReason::LinkLocal),
    (v6(0xfec0, 0, 0, 0, 10), RefusedReason::SiteLocal),
    (v6(0xff00, 0, 0, 0, 8), RefusedReason::Multicast),
];

/// All that IANA has assigned for public use so far.
const GLOBAL_UNICAST: Ipv6Net = v6(0x2000, 0, 0, 0, 3);
const SIX_TO_FOUR: Ipv6Net = v6(0x2002, 0, 0, 0, 16);

/// Forms with an IPv4 address in the last 32 bits: IPv4-compatible, IPv4-mapped, IPv4-translated, NAT64.
const EMBEDDING: [Ipv6Net; 4] = [
    v6(0, 0, 0, 0, 96),
    Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96),
    Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96),
    v6(0x64, 0xff9b, 0, 0, 96),
];

/// An address that deliveries must not go to.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{address} is not allowed: {reason}")]
pub struct RefusedAddress {
    pub address: IpAddr,
    pub reason: RefusedReason,
}

/// Why an entry of `events.webhook.allow` is invalid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidAllow {
    #[error("`{0}` is neither an address nor a network such as 10.0.0.0/8")]
    Syntax(String),
    /// The entry allows more than it seems to.
    #[error("`{entry}` has address bits after its prefix; write {network}")]
    HostBits { entry: String, network: IpNet },
}

/// Public addresses, and those that the operator allows. The default allows no others.
#[derive(Clone, Debug, Default)]
pub struct AddressPolicy {
    allowed: Vec<IpNet>,
}

impl AddressPolicy {
    /// Takes the entries of `events.webhook.allow`: addresses and networks.
    pub fn parse<T: AsRef<str>>(entries: &[T]) -> Result<AddressPolicy, InvalidAllow> {
        let allowed: Result<_, _> = entries.iter().map(|entry| parse_network(entry.as_ref())).collect();
        Ok(AddressPolicy { allowed: allowed? })
    }

    pub fn check(&self, address: IpAddr) -> Result<(), RefusedAddress> {
        match self.refused(address) {
            Some(reason) => Err(RefusedAddress { address, reason }),
            None => Ok(()),
        }
    }

    /// Checks a URL whose host is an address. A name passes: the sender checks what it resolves to.
    pub fn check_literal(&self, target: &TargetUrl) -> Result<(), RefusedAddress> {
        target.literal_address().map_or(Ok(()), |address| self.check(address))
    }

    fn refused(&self, address: IpAddr) -> Option<RefusedReason> {
        if self.allowed.iter().any(|network| network.contains(&address)) {
            return None;
        }
        match address {
            IpAddr::V4(address) => {
                REFUSED_V4.iter().find(|(network, _)| network.contains(&address)).map(|(_, reason)| *reason)
            }
            IpAddr::V6(address) => self.refused_v6(address),
        }
    }

    fn refused_v6(&self, address: Ipv6Addr) -> Option<RefusedReason> {
        let listed = REFUSED_V6.iter().find(|(network, _)| network.contains(&address));
        if let Some((_, reason)) = listed {
            return Some(*reason);
        }
        if let Some(embedded) = embedded(address) {
            return self.refused(embedded.into());
        }
        (!GLOBAL_UNICAST.contains(&address)).then_some(RefusedReason::Reserved)
    }
}

/// The IPv4 address that packets to this address are sent to in the end.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = address.to_bits();
    let low = if SIX_TO_FOUR.contains(&address) {
        bits >> 80
    } else if EMBEDDING.iter().any(|network| network.contains(&address)) {
        bits
    } else {
        return None;
    };
    // The higher bits are the prefix.
    Some(Ipv4Addr::from_bits(low as u32))
}

fn parse_network(entry: &str) -> Result<IpNet, InvalidAllow> {
    let network: IpNet = entry
        .parse()
        .or_else(|_| entry.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| InvalidAllow::Syntax(entry.to_owned()))?;
    if network.trunc() != network {
        return Err(InvalidAllow::HostBits { entry: entry.to_owned(), network: network.trunc() });
    }
    Ok(network)
}

#[cfg(test)]
#[path = "address_tests.rs"]
mod tests;

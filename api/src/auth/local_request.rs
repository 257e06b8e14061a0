//! Checks that a request without a key comes from this machine's user, and not from a web page in their browser.
//!
//! A page can make its own name resolve to 127.0.0.1 (DNS rebinding). The browser then sends its requests here, with
//! the page's name in `Host`. Requests across sites have the page's `Origin`.

use std::net::{Ipv4Addr, Ipv6Addr};

use poem::Request;
use poem::http::header;

use crate::error::ApiError;

/// Refuses a `Host` or `Origin` that is not a loopback name or address, and a missing `Host`.
pub(super) fn check_local(request: &Request) -> Result<(), ApiError> {
    // The authority of an absolute target takes precedence over `Host`.
    if request.uri().authority().is_some_and(|authority| !is_local_host(authority.as_str())) {
        return Err(ApiError::HostNotLocal);
    }
    let mut hosts = request.headers().get_all(header::HOST).iter().peekable();
    if hosts.peek().is_none() || !hosts.all(|host| host.to_str().is_ok_and(is_local_host)) {
        return Err(ApiError::HostNotLocal);
    }
    let mut origins = request.headers().get_all(header::ORIGIN).iter();
    if !origins.all(|origin| origin.to_str().is_ok_and(is_local_origin)) {
        return Err(ApiError::OriginNotLocal);
    }
    Ok(())
}

fn is_local_origin(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    host.is_some_and(is_local_host)
}

/// `localhost`, 127.0.0.0/8 or `[::1]`, with or without a port.
fn is_local_host(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let Some((address, port)) = rest.split_once(']') else { return false };
            if address.parse() != Ok(Ipv6Addr::LOCALHOST) {
                return false;
            }
            ("localhost", if port.is_empty() { None } else { port.strip_prefix(':').or(Some("")) })
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    let is_loopback = host.eq_ignore_ascii_case("localhost")
        || host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback());
    is_loopback && port.is_none_or(is_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_and_addresses_are_local() {
        for local in ["localhost", "LocalHost:80", "127.0.0.1", "127.255.1.2:65535", "[::1]", "[::1]:8080"] {
            assert!(is_local_host(local), "{local}");
            assert!(is_local_origin(&format!("http://{local}")), "{local}");
        }
        for other in [
            "",
            ":80",
            "localhost:",
            "localhost:x",
            "localhost:65536",
            "localhost:+1",
            "localhost:80:80",
            "localhost.",
            "localhost.example",
            "example.localhost",
            "user@localhost",
            "127.0.0.1.example",
            "127.1",
            "128.0.0.1",
            "0.0.0.0",
            "::1",
            "[::1",
            "[::1]x",
            "[::1]80",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[localhost]",
            "localhost/",
        ] {
            assert!(!is_local_host(other), "{other}");
        }
        for other in ["null", "localhost", "file://localhost", "http://example", "http://localhost/", ""] {
            assert!(!is_local_origin(other), "{other}");
        }
    }
}

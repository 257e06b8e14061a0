//! The URL of a webhook.
//!
//! The path and the query may contain a token of the receiver, so that only scheme, host and port are printed.

use std::fmt;
use std::net::IpAddr;

use thiserror::Error;
use url::{Host, Url};

/// Common limit of servers and proxies.
const MAX_BYTES: usize = 2048;

/// Why a text is not the URL of a webhook. Never contains the text.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidTarget {
    #[error("the URL has more than {MAX_BYTES} bytes")]
    TooLong,
    #[error("the URL is invalid: {0}")]
    Syntax(url::ParseError),
    #[error("the URL must begin with http:// or https://")]
    Scheme,
    #[error("the URL has no host")]
    NoHost,
    #[error("the URL must not have a user name or password; the signature authenticates deliveries")]
    Credentials,
    #[error("the URL must not have a fragment (#)")]
    Fragment,
}

/// A URL that deliveries can be sent to. Its host may still be refused by the address policy.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TargetUrl(Url);

impl TargetUrl {
    pub fn parse(text: &str) -> Result<TargetUrl, InvalidTarget> {
        if text.len() > MAX_BYTES {
            return Err(InvalidTarget::TooLong);
        }
        let url = Url::parse(text).map_err(|error| match error {
            url::ParseError::EmptyHost => InvalidTarget::NoHost,
            other => InvalidTarget::Syntax(other),
        })?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(InvalidTarget::Scheme);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(InvalidTarget::Credentials);
        }
        if url.fragment().is_some() {
            return Err(InvalidTarget::Fragment);
        }
        if url.host().is_none() {
            return Err(InvalidTarget::NoHost);
        }
        // Escaping made it longer.
        if url.as_str().len() > MAX_BYTES {
            return Err(InvalidTarget::TooLong);
        }
        Ok(TargetUrl(url))
    }

    /// The whole URL in its normal form, for storage. Do not log it.
    pub fn expose(&self) -> &str {
        self.0.as_str()
    }

    /// The address, if the host is one. `2130706433` and `0x7f.1` are addresses too: both are 127.0.0.1.
    pub fn literal_address(&self) -> Option<IpAddr> {
        match self.0.host()? {
            Host::Ipv4(address) => Some(address.into()),
            Host::Ipv6(address) => Some(address.into()),
            Host::Domain(_) => None,
        }
    }

    pub(crate) fn url(&self) -> &Url {
        &self.0
    }
}

/// Scheme, host and port.
impl fmt::Display for TargetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.origin().ascii_serialization())
    }
}

impl fmt::Debug for TargetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TargetUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_and_https_urls_are_accepted() {
        for (text, shown) in [
            ("https://example.com/hooks/1?token=abc", "https://example.com"),
            ("http://example.com:8080", "http://example.com:8080"),
            ("https://example.com:443/", "https://example.com"),
            ("HTTPS://EXAMPLE.com/A", "https://example.com"),
            ("https://bücher.example/", "https://xn--bcher-kva.example"),
            ("http://[2606:4700::1111]:81/x", "http://[2606:4700::1111]:81"),
        ] {
            let target = TargetUrl::parse(text).unwrap();
            assert_eq!(target.to_string(), shown);
            assert_eq!(format!("{target:?}"), format!("TargetUrl({shown})"));
            assert_eq!(TargetUrl::parse(target.expose()), Ok(target));
        }
    }

    #[test]
    fn other_urls_are_refused_without_printing_them() {
        let long = format!("https://example.com/{}", "a".repeat(2048));
        let escaped = format!("https://example.com/hunter2{}", "ü".repeat(600));
        for (text, expected) in [
            (long.as_str(), InvalidTarget::TooLong),
            (&escaped, InvalidTarget::TooLong),
            ("hunter2", InvalidTarget::Syntax(url::ParseError::RelativeUrlWithoutBase)),
            ("http://a b.example/", InvalidTarget::Syntax(url::ParseError::IdnaError)),
            ("http://example.com:99999/", InvalidTarget::Syntax(url::ParseError::InvalidPort)),
            ("http://1.2.3.256/", InvalidTarget::Syntax(url::ParseError::InvalidIpv4Address)),
            ("http://[fe80::1%25eth0]/", InvalidTarget::Syntax(url::ParseError::InvalidIpv6Address)),
            ("https://", InvalidTarget::NoHost),
            ("https://?hunter2", InvalidTarget::NoHost),
            ("ftp://example.com/", InvalidTarget::Scheme),
            ("file:///etc/passwd", InvalidTarget::Scheme),
            ("unix:/run/socket", InvalidTarget::Scheme),
            ("https://user@example.com/", InvalidTarget::Credentials),
            ("https://user:hunter2@example.com/", InvalidTarget::Credentials),
            ("https://:hunter2@example.com/", InvalidTarget::Credentials),
            ("https://example.com/#hunter2", InvalidTarget::Fragment),
            ("https://example.com/#", InvalidTarget::Fragment),
        ] {
            let error = TargetUrl::parse(text).unwrap_err();
            assert_eq!(error, expected, "{text}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn every_spelling_of_an_address_is_recognised() {
        for (text, address) in [
            ("http://2130706433/", Some("127.0.0.1")),
            ("http://0x7f.1/", Some("127.0.0.1")),
            ("http://0177.0.0.01/", Some("127.0.0.1")),
            ("http://127.1/", Some("127.0.0.1")),
            ("http://127.0.0.1./", Some("127.0.0.1")),
            ("http://%31%32%37.0.0.1/", Some("127.0.0.1")),
            ("http://１２７.0.0.1/", Some("127.0.0.1")),
            ("http://0/", Some("0.0.0.0")),
            ("http://[::1]/", Some("::1")),
            ("http://[::ffff:127.0.0.1]/", Some("::ffff:127.0.0.1")),
            ("http://[0:0:0:0:0:ffff:7f00:1]/", Some("::ffff:127.0.0.1")),
            ("http://localhost/", None),
            ("http://127.0.0.1.nip.io/", None),
        ] {
            let address = address.map(|text| text.parse().unwrap());
            assert_eq!(TargetUrl::parse(text).unwrap().literal_address(), address, "{text}");
        }
    }
}

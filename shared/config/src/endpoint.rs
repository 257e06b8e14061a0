//! Checks that secrets are sent only over TLS or to a loopback address.

use url::Url;

/// Why a secret must not be sent to this URL; `None` if it may.
pub fn exposes_secrets(url: &str) -> Option<&'static str> {
    let Ok(parsed) = Url::parse(url) else { return Some("is not a URL") };
    match (parsed.scheme(), parsed.host_str()) {
        ("https", Some(_)) => None,
        ("http", Some(host)) if is_loopback(host) => None,
        ("http", Some(_)) => {
            Some("secrets would be sent there unencrypted; use https, or a loopback address")
        }
        _ => Some("is not an http or https URL"),
    }
}

/// Scheme, host and port, if the URL is plain HTTP to another machine.
pub(super) fn origin_if_unencrypted(url: &str) -> Option<String> {
    let url = Url::parse(url).ok().filter(|url| url.scheme() == "http")?;
    let host = url.host_str().filter(|host| !is_loopback(host))?;
    Some(format!("http://{host}:{}", url.port_or_known_default()?))
}

pub fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_sent_only_over_tls_or_to_loopback() {
        for safe in ["https://kms.example", "http://127.0.0.1:1", "http://[::1]:1/x", "http://localhost"] {
            assert_eq!(exposes_secrets(safe), None, "{safe}");
        }
        for unsafe_one in
            ["http://kms.example", "http://10.0.0.1", "http://localhost.example", "ws://127.0.0.1", "kms", ""]
        {
            assert!(exposes_secrets(unsafe_one).is_some(), "{unsafe_one}");
        }
    }
}

//! Extra CA certificates for TLS connections.

use std::path::Path;

use anyhow::Result;
use gapless_http_client::read_certificates;
use reqwest::ClientBuilder;

/// Adds the certificates of the PEM file. `None`: only the system's certificates.
pub(crate) fn trust(builder: ClientBuilder, file: Option<&Path>) -> Result<ClientBuilder> {
    let Some(path) = file else { return Ok(builder) };
    Ok(builder.tls_certs_merge(read_certificates(path).map_err(anyhow::Error::msg)?))
}

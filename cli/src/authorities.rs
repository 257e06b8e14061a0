//! Extra CA certificates for TLS connections.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use reqwest::{Certificate, ClientBuilder};

/// Adds the certificates of the PEM file. `None`: only the system's certificates.
pub(crate) fn trust(builder: ClientBuilder, file: Option<&Path>) -> Result<ClientBuilder> {
    let Some(path) = file else { return Ok(builder) };
    let pem = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let found = Certificate::from_pem_bundle(&pem).unwrap_or_default();
    ensure!(!found.is_empty(), "{} contains no PEM certificate", path.display());
    Ok(builder.tls_certs_merge(found))
}

//! Certificate authorities beside those of the system, for servers of one's own.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use reqwest::{Certificate, ClientBuilder};

/// `file` is PEM. `None`: those of the system alone.
pub(crate) fn trust(builder: ClientBuilder, file: Option<&Path>) -> Result<ClientBuilder> {
    let Some(path) = file else { return Ok(builder) };
    let pem = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let found = Certificate::from_pem_bundle(&pem).unwrap_or_default();
    ensure!(!found.is_empty(), "{} holds no certificate in PEM", path.display());
    Ok(builder.tls_certs_merge(found))
}

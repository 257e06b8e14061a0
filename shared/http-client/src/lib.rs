//! HTTP clients: one choice of TLS cryptography, and extra CA certificates.

use std::path::Path;

use reqwest::{Certificate, Client, ClientBuilder};
use rustls::crypto::ring;

/// Every client must be built from this: without a TLS provider, building one panics. The provider is ring, as for the
/// database, unless the program that links Gapless has installed another.
pub fn client_builder() -> ClientBuilder {
    install_tls_provider();
    Client::builder()
}

/// For libraries that build their own clients.
pub fn install_tls_provider() {
    // Fails if one is installed already.
    let _ = ring::default_provider().install_default();
}

/// The certificates of a PEM file, at least one. The error names the file.
pub fn read_certificates(path: &Path) -> Result<Vec<Certificate>, String> {
    let at = |problem: String| format!("{}: {problem}", path.display());
    let pem = std::fs::read(path).map_err(|error| at(error.to_string()))?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(at("contains no PEM certificate".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_can_be_built_repeatedly() {
        for _ in 0..2 {
            assert!(client_builder().build().is_ok());
        }
    }

    #[test]
    fn a_file_without_certificates_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let error = read_certificates(&path).unwrap_err();
        assert!(error.starts_with(path.to_str().unwrap()), "{error}");
        std::fs::write(&path, "nothing").unwrap();
        let error = read_certificates(&path).unwrap_err();
        assert!(error.ends_with("ca.pem: contains no PEM certificate"), "{error}");
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&path, made.cert.pem().repeat(2)).unwrap();
        assert_eq!(read_certificates(&path).unwrap().len(), 2);
    }
}

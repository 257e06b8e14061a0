//! The address of the API if none is given: that of `gapless up` in the same project directory, or the default port.
//!
//! `up` writes only the port into its data directory: a file in a directory of somebody else must not direct an API key to
//! another machine.

use std::path::{Path, PathBuf};

use crate::args::DEFAULT_DIR;

pub(crate) const DEFAULT_API_PORT: u16 = 8080;

/// A base URL, and the file it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiAddress {
    pub(crate) url: String,
    pub(crate) file: Option<PathBuf>,
}

/// `given`: the option or the environment variable, which takes precedence.
pub(crate) fn resolve(given: Option<&str>, project: &Path) -> ApiAddress {
    if let Some(url) = given {
        return ApiAddress { url: url.to_owned(), file: None };
    }
    let file = port_file(&project.join(DEFAULT_DIR));
    let noted = std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u16>().ok());
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    match noted {
        Some(port) => ApiAddress { url: url(port), file: Some(file) },
        None => ApiAddress { url: url(DEFAULT_API_PORT), file: None },
    }
}

pub(crate) fn port_file(dir: &Path) -> PathBuf {
    dir.join("api.port")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_given_address_precedes_the_file_and_the_file_precedes_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let default = ApiAddress { url: "http://127.0.0.1:8080".into(), file: None };
        assert_eq!(resolve(None, dir.path()), default);
        let file = port_file(&dir.path().join(DEFAULT_DIR));
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "4711\n").unwrap();
        let noted = ApiAddress { url: "http://127.0.0.1:4711".into(), file: Some(file.clone()) };
        assert_eq!(resolve(None, dir.path()), noted);
        assert_eq!(resolve(Some("https://api"), dir.path()).url, "https://api");
        for other in ["", "evil.example.org:80", "80@evil.example.org"] {
            std::fs::write(&file, other).unwrap();
            assert_eq!(resolve(None, dir.path()), default, "{other}");
        }
    }
}

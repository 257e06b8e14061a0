//! Checks that the sample configuration files are valid.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use gapless_config::Config;

fn at_root(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(name)
}

#[test]
fn the_sample_configuration_is_accepted_and_shows_the_defaults() {
    let sample = Config::load(Some(&at_root("gapless.example.toml"))).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let bare = dir.path().join("bare.toml");
    let text = "database.url = \"postgres://gapless@localhost/gapless\"\n\
                [chain.mainnet]\nid = 1\nrpc.urls = [\"http://localhost:8545\"]\n";
    std::fs::write(&bare, text).unwrap();
    let defaults = Config::load(Some(&bare)).unwrap();
    assert_eq!(format!("{sample:#?}"), format!("{defaults:#?}"));
}

#[test]
fn the_configuration_of_the_containers_is_accepted() {
    Config::load(Some(&at_root("deploy/compose.toml"))).unwrap();
}

//! The configuration: it loads as for the programs, and its insecure settings.

use std::path::Path;

use gapless_config::Config;
use gapless_store::database_warnings;

use super::report::{Area, Check, Subject};

pub(super) fn check(path: Option<&Path>) -> (Vec<Check>, Option<Config>) {
    let name = path.map_or("environment variables".to_owned(), |path| path.display().to_string());
    let subject = Subject::new(Area::Configuration, name);
    let config = match Config::load(path) {
        Ok(config) => config,
        Err(error) => {
            let advice = match path {
                Some(_) => {
                    "correct it (docs/reference/configuration.md); neither API nor worker starts with it"
                }
                None => "name the configuration file with --config or GAPLESS_CONFIG",
            };
            return (vec![subject.problem("file", error.to_string(), advice)], None);
        }
    };
    let chains: Vec<String> =
        config.chains.values().map(|chain| format!("{} ({})", chain.name, chain.id)).collect();
    let mut checks = vec![subject.ok("file", format!("valid; chains: {}", chains.join(", ")))];
    let warnings = database_warnings(&config.database.url).into_iter().chain(config.security_warnings());
    checks.extend(warnings.map(|warning| {
        subject.warning("security", warning, "secure it, or accept it knowingly (docs/operate/access.md#tls)")
    }));
    (checks, Some(config))
}

#[cfg(test)]
mod tests {
    use super::super::report::Report;
    use super::*;

    #[test]
    fn an_unknown_key_and_a_missing_file_are_problems_without_values() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gapless.toml");
        let (checks, config) = check(Some(&path));
        assert!(config.is_none() && !Report { checks }.is_sound());
        std::fs::write(&path, "database.url = \"postgres://u:hunter2@localhost/d\"\napi.bnd = \"x\"")
            .unwrap();
        let (checks, config) = check(Some(&path));
        assert!(config.is_none());
        let problems = Report { checks }.problems().concat();
        assert!(problems.contains("api.bnd: unknown key") && !problems.contains("hunter2"), "{problems}");
    }

    #[test]
    fn an_insecure_setting_is_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gapless.toml");
        let text = "database.url = \"postgres://u:hunter2@db/d?sslmode=disable\"\n[chain.a]\nid = 1\nrpc.urls = [\"http://node:1/hunter2\"]";
        std::fs::write(&path, text).unwrap();
        let (checks, config) = check(Some(&path));
        assert!(config.is_some());
        assert_eq!(checks.iter().filter(|check| check.name == "security").count(), 2, "{checks:?}");
        assert!(!format!("{checks:?}").contains("hunter2"));
        assert!(Report { checks }.is_sound());
    }
}

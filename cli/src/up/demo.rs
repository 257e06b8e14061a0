//! The demo submitters: keys created once, in a keystore like that of a real deployment.

use anyhow::{Context, Result};
use gapless_config::Secret;
use gapless_signer::keystore;
use uuid::Uuid;

use super::home::Home;
use super::settings::write_private;

const SUBMITTERS: usize = 3;

/// Returns their addresses; creates missing keys.
pub(super) fn submitters(home: &Home) -> Result<Vec<String>> {
    let list = home.submitters_file();
    let known = std::fs::read_to_string(&list).unwrap_or_default();
    let mut addresses: Vec<String> = known.lines().map(str::to_owned).collect();
    if addresses.len() < SUBMITTERS {
        let password = password(home)?;
        while addresses.len() < SUBMITTERS {
            let (address, _) =
                keystore::create(&home.keys(), &password).context("cannot create a demo key")?;
            addresses.push(format!("{address:#x}"));
        }
        write_private(&list, &(addresses.join("\n") + "\n"))?;
    }
    Ok(addresses)
}

fn password(home: &Home) -> Result<Secret> {
    let path = home.password_file();
    if !path.exists() {
        // A version 4 UUID has 122 random bits from the system; two make a strong password.
        write_private(&path, &format!("{}{}\n", Uuid::new_v4().simple(), Uuid::new_v4().simple()))?;
    }
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Secret::new(text.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_submitters_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(dir.path()).unwrap();
        let first = submitters(&home).unwrap();
        assert_eq!(first.len(), SUBMITTERS);
        assert_eq!(submitters(&home).unwrap(), first);
    }
}

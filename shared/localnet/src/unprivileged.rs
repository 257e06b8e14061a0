//! PostgreSQL refuses to run as root, so root runs it as `nobody`, which needs access to programs and data.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::unistd::{Gid, Uid, User, chown, geteuid};

/// Account to run a child process as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
}

impl Account {
    /// The account for servers that refuse root; `None` if this process is not root.
    pub fn for_servers() -> Result<Option<Account>> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        let nobody = User::from_name("nobody").context("cannot look up the user `nobody`")?;
        match nobody {
            Some(user) => Ok(Some(Account { uid: user.uid.as_raw(), gid: user.gid.as_raw() })),
            None => bail!(
                "PostgreSQL refuses to run as root and there is no user `nobody`; run as a non-root user"
            ),
        }
    }

    /// Whether all parent directories of `path` are searchable by every account.
    pub fn reaches(path: &Path) -> bool {
        let Ok(path) = std::path::absolute(path) else { return false };
        path.ancestors().skip(1).all(|dir| match std::fs::metadata(dir) {
            Ok(meta) => meta.mode() & 0o001 != 0,
            // Does not exist yet: it will be created with the default mode.
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        })
    }

    pub fn own(&self, path: &Path) -> Result<()> {
        chown(path, Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
            .with_context(|| format!("cannot change the owner of {} for PostgreSQL", path.display()))
    }
}

/// A directory that this account can use, preferably one that survives a reboot.
pub(crate) fn lasting_temp_dir() -> PathBuf {
    let var_tmp = PathBuf::from("/var/tmp");
    if var_tmp.is_dir() { var_tmp } else { std::env::temp_dir() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_path_below_a_private_directory_is_not_reachable() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("closed/below");
        std::fs::create_dir_all(&below).unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::set_permissions(dir.path().join("closed"), PermissionsExt::from_mode(0o755)).unwrap();
        assert!(Account::reaches(&below));
        assert!(Account::reaches(&below.join("not/there/yet")));
        std::fs::set_permissions(dir.path().join("closed"), PermissionsExt::from_mode(0o700)).unwrap();
        assert!(!Account::reaches(&below));
    }
}

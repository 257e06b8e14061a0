//! Files that hold secrets: who else can read them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Whether every user of this machine can read the file. Its group may: that is how a key is given to a service. A file that
/// cannot be asked is reported where it is read.
///
/// A reason to warn and not to refuse: mounts of containers show their files so, to nobody but the container.
pub fn is_open_to_all(path: &Path) -> bool {
    const OTHERS_READ: u32 = 0o004;
    std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & OTHERS_READ != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_neither_the_owner_nor_the_group() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (mode, open) in [(0o600, false), (0o640, false), (0o644, true), (0o604, true)] {
            std::fs::set_permissions(file.path(), PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(is_open_to_all(file.path()), open, "{mode:o}");
        }
        assert!(!is_open_to_all(Path::new("/no/such/file")));
    }
}

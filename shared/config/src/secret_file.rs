//! Permission check for files with secrets.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Whether all users of this machine can read the file. Group access is allowed: services get keys that way. False
/// for a file whose metadata cannot be read; the code that opens it reports the error.
///
/// Callers warn and do not refuse: container mounts often are world-readable, but only inside the container.
pub fn is_world_readable(path: &Path) -> bool {
    const OTHERS_READ: u32 = 0o004;
    std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & OTHERS_READ != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_access_for_others_counts() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (mode, open) in [(0o600, false), (0o640, false), (0o644, true), (0o604, true)] {
            std::fs::set_permissions(file.path(), PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(is_world_readable(file.path()), open, "{mode:o}");
        }
        assert!(!is_world_readable(Path::new("/no/such/file")));
    }
}

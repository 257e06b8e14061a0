//! The wall clock of this process, moved by whoever runs it: a file holds by how many seconds it is off.
//!
//! A symbol of the program comes before that of libc, so this is what `SystemTime` and everything above it reads. The
//! monotonic clock stays as it is, as on a machine whose time is set by hand. Linux only; elsewhere nothing is moved.
#![cfg_attr(target_os = "linux", allow(unsafe_code))]

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Names the file.
const FILE_VAR: &str = "GAPLESS_TEST_CLOCK";
const LOOK_EVERY: Duration = Duration::from_millis(20);

static OFF_BY_S: AtomicI64 = AtomicI64::new(0);

/// Takes over the time of the C library. The workspace has no other unsafe code; docs/adr/0022 says why here.
///
/// # Safety
///
/// As of `clock_gettime`: `time` points to a `timespec` that may be written.
#[cfg(target_os = "linux")]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn clock_gettime(
    clock: nix::libc::clockid_t,
    time: *mut nix::libc::timespec,
) -> nix::libc::c_int {
    use nix::libc;
    // SAFETY: the kernel gets what the caller passed, and checks it.
    let answer = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
    if answer == 0 && matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE) {
        // SAFETY: the kernel has just written there.
        unsafe { (*time).tv_sec += OFF_BY_S.load(Ordering::Relaxed) };
    }
    if answer == 0 { 0 } else { -1 }
}

/// Follows the file as long as the process lives, if one is named. Returns once it was read.
pub(crate) fn follow() {
    let Some(file) = std::env::var_os(FILE_VAR).map(PathBuf::from) else { return };
    let look = move || {
        // Half a write is no number, or a smaller one for a moment: a clock may jump like that, too.
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        OFF_BY_S.store(text.trim().parse().unwrap_or(0), Ordering::Relaxed);
    };
    look();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(LOOK_EVERY);
            look();
        }
    });
}

//! Shifts the wall clock of this process by the number of seconds in a file.
//!
//! A symbol of the program takes precedence over that of libc, so `SystemTime` reads this function. The monotonic
//! clock is not shifted. Linux only; on other systems the clock is unchanged.
#![cfg_attr(target_os = "linux", allow(unsafe_code))]

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Path of the file.
const FILE_VAR: &str = "GAPLESS_TEST_CLOCK";
const READ_INTERVAL: Duration = Duration::from_millis(20);

static OFF_BY_S: AtomicI64 = AtomicI64::new(0);

/// Replaces the function of the C library. The only unsafe code of the workspace; docs/adr/0022 gives the reason.
///
/// # Safety
///
/// As for `clock_gettime`: `time` must point to a writable `timespec`.
#[cfg(target_os = "linux")]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn clock_gettime(
    clock: nix::libc::clockid_t,
    time: *mut nix::libc::timespec,
) -> nix::libc::c_int {
    use nix::libc;
    // SAFETY: the kernel receives the caller's arguments and checks them.
    let answer = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
    if answer == 0 && matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE) {
        // SAFETY: the kernel has just written there.
        unsafe { (*time).tv_sec += OFF_BY_S.load(Ordering::Relaxed) };
    }
    if answer == 0 { 0 } else { -1 }
}

/// Starts a thread that polls the file, if one is set. Returns after the first read.
pub(crate) fn follow() {
    let Some(file) = std::env::var_os(FILE_VAR).map(PathBuf::from) else { return };
    let read = move || {
        // A partial write reads as 0 or as a smaller number for a moment, which is a valid clock jump.
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        OFF_BY_S.store(text.trim().parse().unwrap_or(0), Ordering::Relaxed);
    };
    read();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(READ_INTERVAL);
            read();
        }
    });
}

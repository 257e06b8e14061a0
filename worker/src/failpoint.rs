//! Named points at which a test may kill the process, numbered in the order a transaction meets them.
//!
//! Compiled in only with the feature `failpoints`, which no product build turns on. `GAPLESS_FAILPOINT=sent` (or
//! `sent:3` for the third time) makes the process end there as if by `kill -9`. `GAPLESS_FAILPOINT_SIGNER` names a file:
//! while it exists the signer is away, which a key in memory never is by itself.

/// Every point, in order. The crash tests visit each.
pub const POINTS: [&str; 9] = [
    "claimed",   // the lease is ours, nothing was read
    "prepared",  // gas, price and balance are known; nothing is signed
    "signed",    // bytes exist in memory only
    "committed", // nonce and bytes are on disk; nothing was sent
    "sent",      // the node has answered; SUBMITTED is not written
    "submitted", // SUBMITTED is on disk
    "included",  // the receipt is in memory only
    "tracking",  // the receipt is on disk
    "final",     // deep enough; the final state is not written
];

/// Those that only a nonce held for a caller outside meets, in order.
pub const RESERVATION_POINTS: [&str; 3] = [
    "reserved", // nonce and placeholder are on disk, and the caller may see the nonce; nothing was sent
    "answered", // the caller's answer was read; nothing is signed
    "released", // the nonce is given up on disk; its placeholder was not sent
];

/// Those that only a request about an intent meets.
pub const REQUEST_POINTS: [&str; 1] = [
    "asked", // a speed-up was seen; its attempt is not on disk
];

#[cfg(feature = "failpoints")]
pub(crate) fn hit(point: &'static str) {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};
    static HITS: AtomicU32 = AtomicU32::new(0);
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    let known = [POINTS.as_slice(), &RESERVATION_POINTS, &REQUEST_POINTS];
    debug_assert!(known.iter().any(|points| points.contains(&point)));
    let Ok(wanted) = std::env::var("GAPLESS_FAILPOINT") else { return };
    let (name, nth) = wanted.split_once(':').unwrap_or((wanted.as_str(), "1"));
    if name != point || HITS.fetch_add(1, Ordering::SeqCst) + 1 < nth.parse().unwrap_or(1) {
        return;
    }
    // Whoever comes second waits here for ever: the process is gone before the guard could drop.
    let _guard = ONE_AT_A_TIME.lock();
    tracing::warn!(point, "failpoint: killing this process");
    gapless::observe::flush_logs(); // tests look for the line
    let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
    loop {
        std::thread::park();
    }
}

#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub(crate) fn hit(_: &'static str) {}

#[cfg(feature = "failpoints")]
pub(crate) fn signer_is_away() -> bool {
    std::env::var_os("GAPLESS_FAILPOINT_SIGNER").is_some_and(|file| std::path::Path::new(&file).exists())
}

#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub(crate) fn signer_is_away() -> bool {
    false
}

// error: E0277 the trait bound `Lease: Clone` is not satisfied
use gapless_store::Lease;

pub fn copy(lease: &Lease) {
    // right: let _ = lease;
    let _ = Lease::clone(lease);
}

// error: E0277 the trait bound `gapless::store::Lease: Clone` is not satisfied
use gapless::store::Lease;

pub fn copy(lease: &Lease) {
    // right: let _ = lease;
    let _ = Lease::clone(lease);
}

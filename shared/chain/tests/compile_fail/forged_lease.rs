// error: cannot construct `Lease` with struct literal syntax due to private fields
use gapless_domain::{FencingToken, SubmitterKey};
use gapless_store::Lease;

pub fn forge(key: SubmitterKey, claimed: Lease) -> Lease {
    // right: claimed
    Lease { key, token: FencingToken(7) }
}

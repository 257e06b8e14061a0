// error: cannot construct `gapless::store::Lease` with struct literal syntax due to private fields
use gapless::domain::{FencingToken, SubmitterKey};
use gapless::store::Lease;

pub fn forge(key: SubmitterKey, claimed: Lease) -> Lease {
    // right: claimed
    Lease { key, token: FencingToken(7) }
}

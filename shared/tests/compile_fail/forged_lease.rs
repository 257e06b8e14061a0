use gapless::domain::{FencingToken, SubmitterKey};
use gapless::store::Lease;

fn forge(key: SubmitterKey) -> Lease {
    Lease { key, token: FencingToken(7) }
}

fn main() {}

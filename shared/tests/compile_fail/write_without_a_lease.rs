// error: E0308 mismatched types
use gapless::domain::SubmitterKey;
use gapless::store::{FencedWrite, Lease};

pub fn write(key: SubmitterKey, lease: &Lease) -> FencedWrite {
    // right: FencedWrite::new(lease)
    FencedWrite::new(&key)
}

// error: E0308 mismatched types
use gapless_domain::SubmitterKey;
use gapless_store::{FencedWrite, Lease};

pub fn write(key: SubmitterKey, lease: &Lease) -> FencedWrite {
    // right: FencedWrite::new(lease)
    FencedWrite::new(&key)
}

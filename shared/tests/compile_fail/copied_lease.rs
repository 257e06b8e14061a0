use gapless::store::Lease;

fn copy(lease: &Lease) -> Lease {
    Lease::clone(lease)
}

fn main() {}

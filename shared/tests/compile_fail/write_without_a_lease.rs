use gapless::domain::SubmitterKey;
use gapless::store::FencedWrite;

fn write(key: SubmitterKey) -> FencedWrite {
    FencedWrite::new(&key)
}

fn main() {}

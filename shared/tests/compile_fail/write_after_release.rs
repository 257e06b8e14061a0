use gapless::store::{FencedWrite, Lease, Store};

async fn late(store: &Store, lease: Lease) {
    let _ = store.release(vec![lease]).await;
    let write = FencedWrite::new(&lease);
    let _ = store.apply(&[write]).await;
}

fn main() {}

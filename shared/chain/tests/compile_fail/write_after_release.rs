// error: E0382 borrow of moved value: `lease`
use gapless_store::{FencedWrite, Lease, Store};

pub async fn late(store: &Store, lease: Lease) {
    // right: let _ = store.release(Vec::new()).await;
    let _ = store.release(vec![lease]).await;
    let write = FencedWrite::new(&lease);
    let _ = store.apply(&[write]).await;
}

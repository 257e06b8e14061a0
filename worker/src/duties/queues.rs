//! How much waits in the queues inside this process, as a gauge. Looked at by the clock, so that a queue that stands still shows.

use std::sync::Arc;
use std::time::Duration;

use gapless::observe::metrics as m;
use tokio_util::sync::CancellationToken;

use crate::fleet::Fleet;

const EVERY: Duration = Duration::from_secs(1);

pub(super) async fn run(fleet: Arc<Fleet>, stop: CancellationToken) {
    loop {
        for (queue, depth) in fleet.queue_depths() {
            metrics::gauge!(m::INTERNAL_QUEUE_DEPTH, "queue" => queue).set(depth as f64);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

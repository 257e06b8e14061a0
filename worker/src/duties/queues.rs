//! Depth of the internal queues of this process, as a gauge. Sampled periodically, so that a stalled queue is visible.

use std::sync::Arc;
use std::time::Duration;

use gapless_telemetry::metrics as m;
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

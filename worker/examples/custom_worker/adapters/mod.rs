//! Registers the adapters of this program under the names used in the configuration.

mod policies;
mod zero_price;

use std::sync::Arc;

use gapless_worker::WorkerBuilder;

pub(crate) fn with_adapters(worker: WorkerBuilder) -> WorkerBuilder {
    worker
        .chain("zero_price", |chain| Ok(Arc::new(zero_price::ZeroPrice::new(chain)?)))
        .fee_policy("free", Arc::new(policies::Free))
        .gas_bump_policy("steep", Arc::new(policies::Steep))
        .stuck_policy("patient", Arc::new(policies::Patient))
}

//! Logs, trace context and metrics, the same in every process. Nothing here decides what is worth telling.

mod log_queue;
mod logging;
pub mod metrics;
mod trace;

pub use logging::{LogGuard, LoggingError, flush_logs, init_logging};
pub use metrics::{MetricsHandle, install_metrics};
pub use trace::TraceContext;

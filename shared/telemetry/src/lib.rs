//! Logging, trace context and metrics, shared by all processes.

mod initial_counters;
mod log_queue;
mod logging;
pub mod metrics;
pub mod shutdown;
mod trace;

pub use initial_counters::{Label, Program, register_counter};
pub use logging::{LogGuard, LoggingError, flush_logs, init_logging};
pub use metrics::{MetricsHandle, install_metrics};
pub use trace::TraceContext;

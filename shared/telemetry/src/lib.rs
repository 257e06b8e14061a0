//! Logs, metrics and traces, the same in all processes.

mod initial_counters;
mod json_line;
mod log_queue;
mod logging;
pub mod metrics;
mod otlp;
pub mod shutdown;
mod trace;

pub use initial_counters::{Label, Program, register_counter};
pub use logging::{TelemetryError, TelemetryGuard, flush_logs, init_telemetry};
pub use metrics::{MetricsHandle, install_metrics};
pub use trace::{TraceContext, child_span, name_request, step_span};

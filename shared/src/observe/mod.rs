//! Logs, traces, metrics.

//! Events: whether they are recorded, the sequencer that orders them, and the log that consumers read.
//!
//! A state change writes its events to `outbox_event` in its own commit. The sequencer moves them to `event_log`, where
//! each has a position; consumers read the log by a cursor (docs/adr/0044).

mod log;
mod recording;
mod sequencer;
mod status;

pub use log::{EventCursor, EventFilter, EventPage, InvalidCursor, LoggedEvent, ResetReason};
pub use recording::Recording;
pub use sequencer::{LogHead, OutboxFloor, Sequenced};
pub use status::EventLogStatus;

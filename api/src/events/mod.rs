//! Event streams. One reader of the log per process, whatever the number of streams: `gapless_events::EventFeed` keeps the
//! newest events in memory, `stream` sends each client what its filter matches.

mod open;
mod stream;

pub(crate) use open::EventStreams;
pub(crate) use stream::{Start, StreamRequest, open_stream};

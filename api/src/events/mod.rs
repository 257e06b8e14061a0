//! Event streams. One reader of the log per process, whatever the number of streams: `feed` keeps the newest events in
//! memory, `stream` sends each client what its filter matches.

mod feed;
mod stream;

pub(crate) use feed::EventFeed;
pub(crate) use stream::{Start, StreamRequest, open_stream};

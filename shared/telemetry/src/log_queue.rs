//! A queue in front of the log output, so that logging never blocks.
//!
//! A separate thread writes the queued lines in large writes. If the reader of the log is slow, the queue fills up and
//! further lines are dropped and counted, because a blocked log must not stop the service.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

use super::metrics::LOG_LINES_DROPPED_TOTAL;

/// Lines are collected for this long after a write, so that many lines become few writes. `kill -9` can lose this much.
const COLLECT: Duration = Duration::from_millis(5);
/// A larger buffer is shrunk to this size after a write.
const RETAINED_BYTES: usize = 1 << 20;

#[derive(Clone, Debug)]
pub(super) struct LogQueue {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    limit_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<u8>,
    /// Number of lines dropped since the start.
    dropped: u64,
    writing: bool,
    /// A flush is waiting, so write at once.
    flushing: bool,
}

impl LogQueue {
    /// Starts the thread, which runs until the process ends.
    pub(super) fn start(out: impl Write + Send + 'static, limit_bytes: usize) -> io::Result<LogQueue> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), limit_bytes });
        let queue = LogQueue { shared };
        let thread = queue.clone();
        std::thread::Builder::new().name("log".into()).spawn(move || thread.run(out))?;
        Ok(queue)
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.shared.state.lock();
        if state.lines.len() + line.len() > self.shared.limit_bytes {
            state.dropped += 1;
            drop(state);
            metrics::counter!(LOG_LINES_DROPPED_TOTAL).increment(1);
            return;
        }
        let first = state.lines.is_empty();
        state.lines.extend_from_slice(line);
        drop(state);
        if first {
            self.shared.changed.notify_all();
        }
    }

    /// Waits until all lines are written. False: timeout, because the reader is too slow.
    pub(super) fn flush(&self, timeout: Duration) -> bool {
        let mut state = self.shared.state.lock();
        state.flushing = true;
        self.shared.changed.notify_all();
        let busy = |state: &mut State| state.writing || !state.lines.is_empty();
        !self.shared.changed.wait_while_for(&mut state, busy, timeout).timed_out()
    }

    fn run(self, mut out: impl Write) {
        let mut lines = Vec::new();
        let mut reported = 0;
        loop {
            let mut state = self.shared.state.lock();
            self.shared.changed.wait_while(&mut state, |state| state.lines.is_empty());
            std::mem::swap(&mut lines, &mut state.lines);
            state.writing = true;
            drop(state);
            // An error of the log itself cannot be reported.
            let _ = out.write_all(&lines).and_then(|()| out.flush());
            lines.clear();
            lines.shrink_to(RETAINED_BYTES);
            let mut state = self.shared.state.lock();
            state.writing = false;
            let dropped = state.dropped - std::mem::replace(&mut reported, state.dropped);
            let flushing = std::mem::take(&mut state.flushing);
            drop(state);
            self.shared.changed.notify_all();
            if dropped > 0 {
                tracing::warn!(lines = dropped, "log lines dropped: the reader of the log is too slow");
            }
            if !flushing {
                let mut state = self.shared.state.lock();
                self.shared.changed.wait_while_for(&mut state, |state| !state.flushing, COLLECT);
            }
        }
    }
}

/// The subscriber writes each line with one call.
#[derive(Debug)]
pub(super) struct Line<'a>(&'a LogQueue);

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn line(number: usize) -> String {
        format!("{number:099}\n")
    }

    #[test]
    fn a_flush_writes_all_lines_in_order() {
        let (reader, writer) = io::pipe().unwrap();
        let queue = LogQueue::start(writer, 1 << 20).unwrap();
        let reading = std::thread::spawn(move || {
            BufReader::new(reader).lines().take(1_000).collect::<Result<Vec<_>, _>>().unwrap()
        });
        for number in 0..1_000 {
            queue.make_writer().write_all(line(number).as_bytes()).unwrap();
        }
        assert!(queue.flush(LONG));
        let expected: Vec<String> = (0..1_000).map(|number| line(number).trim_end().to_owned()).collect();
        assert_eq!(reading.join().unwrap(), expected);
    }

    /// An unread pipe takes 64 KiB and the queue its limit; the rest of a megabyte is dropped without blocking.
    #[test]
    fn a_blocked_reader_does_not_block_logging() {
        let (reader, writer) = io::pipe().unwrap();
        let queue = LogQueue::start(writer, 200_000).unwrap();
        for number in 0..10_000 {
            queue.make_writer().write_all(line(number).as_bytes()).unwrap();
        }
        assert!(!queue.flush(Duration::from_millis(1)), "the pipe is full");
        let mut lines = BufReader::new(reader).lines();
        let first = lines.next().unwrap().unwrap();
        assert_eq!(first, line(0).trim_end(), "queued lines are not lost");
        let reading = std::thread::spawn(move || {
            lines.map_while(Result::ok).take_while(|line| !line.contains("end")).count()
        });
        assert!(queue.flush(LONG), "writing continues when the pipe is read");
        let dropped = queue.shared.state.lock().dropped;
        assert!(dropped > 0);
        queue.make_writer().write_all(b"end\n").unwrap();
        assert_eq!(reading.join().unwrap() as u64 + 1 + dropped, 10_000, "each line is written or counted");
    }
}

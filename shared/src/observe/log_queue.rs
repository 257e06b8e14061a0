//! A queue before the log's output: whoever logs never waits for whoever reads.
//!
//! A thread of its own writes what has gathered, many lines at a time. If the reader is slow the queue fills, and then
//! lines are dropped and counted: a log that nobody reads must not stop a service.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

use super::metrics::LOG_LINES_DROPPED_TOTAL;

/// Lines gather for this long after a write, so that a flood is a few large writes. What a `kill -9` can take with it.
const GATHER: Duration = Duration::from_millis(5);
/// A buffer that grew beyond this in a flood is given back.
const KEEP_BYTES: usize = 1 << 20;

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
    /// Lines, ever.
    dropped: u64,
    writing: bool,
    /// Somebody waits for the queue to be empty.
    hurry: bool,
}

impl LogQueue {
    /// Starts the thread. It ends with the process.
    pub(super) fn start(out: impl Write + Send + 'static, limit_bytes: usize) -> io::Result<LogQueue> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), limit_bytes });
        let queue = LogQueue { shared };
        let thread = queue.clone();
        std::thread::Builder::new().name("log".into()).spawn(move || thread.run(out))?;
        Ok(queue)
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.lock();
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

    /// Waits until everything is written. False if `patience` ran out first: the reader is too slow.
    pub(super) fn flush(&self, patience: Duration) -> bool {
        let mut state = self.lock();
        state.hurry = true;
        self.shared.changed.notify_all();
        let busy = |state: &mut State| state.writing || !state.lines.is_empty();
        let (state, waited) = self
            .shared
            .changed
            .wait_timeout_while(state, patience, busy)
            .unwrap_or_else(PoisonError::into_inner);
        drop(state);
        !waited.timed_out()
    }

    fn run(self, mut out: impl Write) {
        let mut lines = Vec::new();
        let mut told = 0;
        loop {
            let mut state = self.wait_while(self.lock(), |state| state.lines.is_empty());
            std::mem::swap(&mut lines, &mut state.lines);
            state.writing = true;
            drop(state);
            // Nobody is left to be told if the log itself cannot be written.
            let _ = out.write_all(&lines).and_then(|()| out.flush());
            lines.clear();
            lines.shrink_to(KEEP_BYTES);
            let mut state = self.lock();
            state.writing = false;
            let dropped = state.dropped - std::mem::replace(&mut told, state.dropped);
            let hurry = std::mem::take(&mut state.hurry);
            drop(state);
            self.shared.changed.notify_all();
            if dropped > 0 {
                tracing::warn!(
                    lines = dropped,
                    "lines of this log were dropped: whoever reads it is too slow"
                );
            }
            if !hurry {
                let (state, changed) = (self.lock(), &self.shared.changed);
                drop(changed.wait_timeout_while(state, GATHER, |state| !state.hurry));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is valid after every statement.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while<'a>(
        &self,
        state: MutexGuard<'a, State>,
        condition: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        self.shared.changed.wait_while(state, condition).unwrap_or_else(PoisonError::into_inner)
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
    fn what_was_logged_is_written_in_order_and_whole_by_a_flush() {
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

    /// A pipe that nobody reads takes 64 KiB, the queue its limit; the rest of a megabyte is dropped and nobody waits.
    #[test]
    fn a_reader_that_does_not_read_stops_nobody() {
        let (reader, writer) = io::pipe().unwrap();
        let queue = LogQueue::start(writer, 200_000).unwrap();
        for number in 0..10_000 {
            queue.make_writer().write_all(line(number).as_bytes()).unwrap();
        }
        assert!(!queue.flush(Duration::from_millis(1)), "the pipe is full");
        let mut lines = BufReader::new(reader).lines();
        let first = lines.next().unwrap().unwrap();
        assert_eq!(first, line(0).trim_end(), "what was taken is not lost");
        let reading = std::thread::spawn(move || {
            lines.map_while(Result::ok).take_while(|line| !line.contains("end")).count()
        });
        assert!(queue.flush(LONG), "it goes on when somebody reads");
        let dropped = queue.lock().dropped;
        assert!(dropped > 0);
        queue.make_writer().write_all(b"end\n").unwrap();
        assert_eq!(reading.join().unwrap() as u64 + 1 + dropped, 10_000, "each line is written or counted");
    }
}

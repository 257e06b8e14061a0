//! `gapless events --follow`: prints a stream of events and connects again when it is lost.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use reqwest::Response;
use reqwest::header::HeaderValue;
use serde_json::Value;

use super::{filter, line};
use crate::api::{Api, EventFilter, STREAM_READ_TIMEOUT, is_refusal};
use crate::args::ReadEvents;
use crate::output;
use crate::sse::{Message, Parser};

/// Pause before the second connection, unless the server states another.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// It doubles up to this with each failure.
const MAX_PAUSE: Duration = Duration::from_secs(5);

pub(super) async fn run(api: &Api, args: &ReadEvents, json: bool) -> Result<ExitCode> {
    let mut follower = Follower::new(args);
    let end = tokio::select! {
        end = follower.follow(api, |event| line::print(event, json), output::say) => end?,
        interrupt = tokio::signal::ctrl_c() => interrupt.map(|()| End::Finished)?,
    };
    match &follower.cursor {
        Some(cursor) if end == End::Finished => output::say(&format!("to go on, use --after {cursor}")),
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Why it ends without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All events that were asked for, or an interrupt.
    Finished,
    /// Nobody reads the output any more.
    Unread,
}

/// Why one connection ends.
#[derive(Debug)]
enum Connection {
    Ended(End),
    Lost(String),
}

struct Follower {
    filter: EventFilter,
    after: Option<String>,
    /// Events that are left to print; `None`: no limit.
    left: Option<u32>,
    /// After the last message.
    cursor: Option<String>,
    /// A connection was open before.
    was_open: bool,
    first_pause: Duration,
    /// Before the next connection.
    pause: Duration,
    /// The lost connection was reported, and no message came since.
    is_reported: bool,
}

impl Follower {
    fn new(args: &ReadEvents) -> Follower {
        Follower {
            filter: filter(args),
            after: args.after.clone(),
            left: args.limit,
            cursor: None,
            was_open: false,
            first_pause: FIRST_PAUSE,
            pause: FIRST_PAUSE,
            is_reported: false,
        }
    }

    /// Prints events with `print` and messages for the user with `say`. An error if the first connection fails or a
    /// later one is refused.
    async fn follow(
        &mut self,
        api: &Api,
        mut print: impl FnMut(&Value) -> io::Result<()>,
        mut say: impl FnMut(&str),
    ) -> Result<End> {
        loop {
            let opened = api.event_stream(&self.filter, self.after.as_deref(), self.cursor.as_deref()).await;
            let lost = match opened {
                Ok(response) => {
                    self.was_open = true;
                    match self.read(response, &mut print, &mut say).await? {
                        Connection::Ended(end) => return Ok(end),
                        Connection::Lost(why) => why,
                    }
                }
                Err(error) if !self.was_open || is_refusal(&error) => return Err(error),
                Err(error) => format!("{error:#}"),
            };
            if !std::mem::replace(&mut self.is_reported, true) {
                say(&format!("{lost}; reconnecting"));
            }
            tokio::time::sleep(self.pause).await;
            self.pause = (self.pause * 2).min(MAX_PAUSE);
        }
    }

    async fn read(
        &mut self,
        mut response: Response,
        print: &mut impl FnMut(&Value) -> io::Result<()>,
        say: &mut impl FnMut(&str),
    ) -> Result<Connection> {
        let mut parser = Parser::default();
        loop {
            let part = match response.chunk().await {
                Ok(Some(part)) => part,
                Ok(None) => return Ok(Connection::Lost("the API ended the event stream".to_owned())),
                Err(error) => return Ok(Connection::Lost(lost(error))),
            };
            for message in parser.push(&part)? {
                if let Some(end) = self.take(message, print, say)? {
                    return Ok(Connection::Ended(end));
                }
            }
        }
    }

    /// Prints an event, and then notes its cursor. Returns why nothing more is to be read.
    fn take(
        &mut self,
        message: Message,
        print: &mut impl FnMut(&Value) -> io::Result<()>,
        say: &mut impl FnMut(&str),
    ) -> Result<Option<End>> {
        if let Some(retry) = message.retry {
            self.first_pause = retry.min(MAX_PAUSE);
        }
        self.pause = self.first_pause;
        self.is_reported = false;
        match (message.kind.as_deref(), &message.data) {
            (None | Some("message"), Some(data)) => {
                let event = serde_json::from_str(data).context("the API sent an event that is not JSON")?;
                if print(&event).is_err() {
                    return Ok(Some(End::Unread));
                }
                self.left = self.left.map(|left| left.saturating_sub(1));
            }
            (Some("reset"), Some(data)) => say(&reset(data)),
            // Only the position, or a kind of a later version.
            _ => {}
        }
        if let Some(id) = message.id {
            // It is sent back in a header.
            HeaderValue::from_str(&id).context("the API sent an invalid cursor")?;
            self.cursor = Some(id).filter(|id| !id.is_empty());
        }
        Ok((self.left == Some(0)).then_some(End::Finished))
    }
}

fn lost(error: reqwest::Error) -> String {
    match error.is_timeout() {
        true => format!("the API sent nothing for {} s", STREAM_READ_TIMEOUT.as_secs()),
        false => {
            let error = anyhow::Error::new(error.without_url());
            format!("the connection to the API was lost: {error:#}")
        }
    }
}

/// What happened to the cursor, and what to do.
fn reset(data: &str) -> String {
    let data: Value = serde_json::from_str(data).unwrap_or_default();
    let why = match data["reason"].as_str() {
        Some("retention") => "events after the last cursor are older than events.retention and were deleted",
        Some("epoch") => {
            "the database was restored or failed over, or an operator ran `gapless events reset`: events may be missing \
             and others come again"
        }
        _ => "events may be missing",
    };
    format!("RESET: {why}. Read the state of your transactions. Going on with the oldest event.")
}

#[cfg(test)]
mod tests;

//! `gapless events` without `--follow`: the events of the log, oldest first.

use std::process::ExitCode;

use anyhow::{Context, Result};
use gapless_store::events::EventCursor;
use serde_json::Value;

use super::{filter, line};
use crate::api::{Api, EventFilter, is_refusal};
use crate::args::ReadEvents;
use crate::output;

const DEFAULT_LIMIT: u32 = 50;
/// Largest page of the API.
const MAX_PAGE: u32 = 200;

pub(super) async fn run(api: &Api, args: &ReadEvents, json: bool) -> Result<ExitCode> {
    let limit = args.limit.unwrap_or(DEFAULT_LIMIT);
    let mut pages = Pages::new(args.after.as_deref().unwrap_or("start"), limit);
    // Events that are written meanwhile must not keep it from ending.
    let end = Page::new(&api.events(&EventFilter::default(), "end", 1).await?)?.next;
    let filter = filter(args);
    while let Some(size) = pages.next_size() {
        let answer = api.events(&filter, &pages.cursor, size).await;
        let page = Page::new(&answer.map_err(|error| pages.interrupted(error))?)?;
        for event in &page.events {
            // Nobody reads the output any more.
            if line::print(event, json).is_err() {
                return Ok(ExitCode::SUCCESS);
            }
        }
        pages.taken(page, &end);
    }
    if !pages.is_end {
        output::say(&format!("there are more events: --after {}", pages.cursor));
    } else if pages.printed == 0 {
        output::say("no events; `gapless events status` shows whether they are recorded");
    }
    Ok(ExitCode::SUCCESS)
}

/// A response of the API.
struct Page {
    events: Vec<Value>,
    next: String,
}

impl Page {
    fn new(answer: &Value) -> Result<Page> {
        let events = answer["items"].as_array().context("the response has no list of events")?.clone();
        let next = answer["nextCursor"].as_str().context("the response has no cursor")?.to_owned();
        Ok(Page { events, next })
    }
}

/// What was read, and where to go on.
struct Pages {
    limit: u32,
    printed: u32,
    cursor: String,
    is_end: bool,
}

impl Pages {
    fn new(after: &str, limit: u32) -> Pages {
        Pages { limit, printed: 0, cursor: after.to_owned(), is_end: false }
    }

    /// Size of the next page; `None`: all was read.
    fn next_size(&self) -> Option<u32> {
        let left = self.limit.saturating_sub(self.printed);
        (left > 0 && !self.is_end).then_some(left.min(MAX_PAGE))
    }

    /// A page of which nothing matches may be empty and still advance.
    fn taken(&mut self, page: Page, end: &str) {
        self.printed += u32::try_from(page.events.len()).unwrap_or(u32::MAX);
        let stands_still = page.events.is_empty() && page.next == self.cursor;
        self.cursor = page.next;
        self.is_end = stands_still || reaches(&self.cursor, end);
    }

    /// How to go on after an error that may pass.
    fn interrupted(&self, error: anyhow::Error) -> anyhow::Error {
        match self.printed > 0 && !is_refusal(&error) {
            true => error.context(format!("interrupted; to go on, use --after {}", self.cursor)),
            false => error,
        }
    }
}

/// False if they cannot be compared: then an empty page is the end.
fn reaches(cursor: &str, end: &str) -> bool {
    match (cursor.parse::<EventCursor>(), end.parse::<EventCursor>()) {
        (Ok(cursor), Ok(end)) => cursor.epoch == end.epoch && cursor.position >= end.position,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn page(events: usize, next: &str) -> Page {
        let items = vec![json!({}); events];
        Page::new(&json!({ "items": items, "nextCursor": next })).unwrap()
    }

    #[test]
    fn reading_ends_at_the_limit() {
        let mut pages = Pages::new("start", 250);
        assert_eq!(pages.next_size(), Some(200));
        pages.taken(page(200, "aaaaaaaa.200"), "aaaaaaaa.900");
        assert_eq!(pages.next_size(), Some(50));
        pages.taken(page(50, "aaaaaaaa.250"), "aaaaaaaa.900");
        assert_eq!(pages.next_size(), None);
        assert!(!pages.is_end);
    }

    #[test]
    fn reading_ends_where_the_log_ended_at_the_beginning() {
        let mut pages = Pages::new("aaaaaaaa.4", 50);
        pages.taken(page(0, "aaaaaaaa.20004"), "aaaaaaaa.20010");
        assert_eq!(pages.next_size(), Some(50), "an empty page that advances");
        pages.taken(page(1, "aaaaaaaa.20017"), "aaaaaaaa.20010");
        assert_eq!(pages.next_size(), None);
        assert_eq!((pages.printed, pages.is_end), (1, true));
    }

    #[test]
    fn an_empty_page_that_does_not_advance_is_the_end() {
        let mut pages = Pages::new("bbbbbbbb.7", 50);
        pages.taken(page(0, "bbbbbbbb.7"), "aaaaaaaa.9");
        assert!(pages.is_end);
    }

    #[test]
    fn an_error_that_may_pass_says_how_to_go_on() {
        let mut pages = Pages::new("start", 500);
        let problem = |status: u16| {
            serde_json::from_value::<crate::api::Problem>(json!({ "status": status, "title": "t" })).unwrap()
        };
        assert_eq!(pages.interrupted(problem(503).into()).to_string(), "503 t");
        pages.taken(page(200, "aaaaaaaa.200"), "aaaaaaaa.900");
        let shown = format!("{:#}", pages.interrupted(problem(503).into()));
        assert_eq!(shown, "interrupted; to go on, use --after aaaaaaaa.200: 503 t");
        assert_eq!(pages.interrupted(problem(410).into()).to_string(), "410 t");
    }
}

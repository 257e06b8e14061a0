//! `GET /api/v1/events`: a page of the event log, or a stream.

use gapless_events::{EVENT_TYPES, cloud_event};
use gapless_http::ClientConnection;
use gapless_store::events::{EventCursor, EventFilter, EventPage};
use gapless_telemetry::metrics::EVENT_RESETS_TOTAL;
use poem::http::header;
use poem::web::Data;
use poem::{Body, IntoResponse, Request, Response};
use poem_openapi::param::{Header, Query};
use poem_openapi::registry::{
    MetaMediaType, MetaResponse, MetaResponses, MetaSchema, MetaSchemaRef, Registry,
};
use poem_openapi::types::Type;
use poem_openapi::{ApiResponse, OpenApi};
use tokio::time::{Duration, Instant};
use uuid::Uuid;

use super::Tag;
use super::list::page_size;
use crate::app::{App, SharedApp};
use crate::auth::{Caller, Read};
use crate::error::{ApiError, Failure, OnEvents};
use crate::events::{Start, StreamRequest, open_stream};

/// Media type of streams.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";
/// Name of the schema of a page, which `document` adds with the schemas of the events.
pub(crate) const PAGE_SCHEMA: &str = "EventPage";
/// How long a page is searched for in a log of which little matches. Then it is returned as it is, with a cursor.
const SEARCH_TIME: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Events;

#[OpenApi]
impl Events {
    /// Read or stream events
    ///
    /// With `Accept: text/event-stream` an endless stream of server-sent events: `id` is the cursor, `data` is an event as
    /// in the list. After a disconnect, send the last `id` as `Last-Event-ID` (browsers do) or `after`. A stream without
    /// either begins with the next event. A message of the type `reset` says that events are missing; its data is
    /// `{"reason", "cursor"}`, and the stream goes on with the oldest event. Otherwise a page of events, oldest first; at
    /// the end of the log it is empty and its `nextCursor` stays the same.
    ///
    /// Events arrive at least once: ignore an `id` that you have seen. Those of a submitter are in the order in which they
    /// happened; among submitters the order is arbitrary. Only events of submitters that the key may use.
    #[oai(path = "/api/v1/events", method = "get", operation_id = "listEvents", tag = "Tag::Events")]
    #[allow(clippy::too_many_arguments)] // one per documented parameter
    async fn events(
        &self,
        app: Data<&SharedApp>,
        request: &Request,
        caller: Caller<Read>,
        /// Where to begin: the cursor of an event or of a page, `start` (oldest event) or `end` (next event). Default:
        /// `start` for a page, `end` for a stream.
        after: Query<Option<String>>,
        /// As `after`, which is ignored if both are given.
        #[oai(name = "Last-Event-ID")]
        last_event_id: Header<Option<String>>,
        /// Required with `submitter` if the server serves several chains.
        #[oai(name = "chainId")]
        chain_id: Query<Option<u64>>,
        submitter: Query<Option<String>>,
        #[oai(name = "txId")] tx_id: Query<Option<Uuid>>,
        /// Types, separated by commas: `tx.confirmed,tx.failed`.
        #[oai(name = "type")]
        kinds: Query<Option<String>>,
        /// Page size, 1 to 200. Default: 50. Not for streams.
        limit: Query<Option<u32>>,
    ) -> Result<EventsResponse, Failure<OnEvents>> {
        let submitter = submitter.0.map(|address| app.chains.submitter(chain_id.0, &address)).transpose()?;
        let submitter = submitter.map(|key| caller.own(key)).transpose()?;
        let filter = EventFilter {
            chain_id: chain_id.0.map(|id| app.chains.pick(Some(id))).transpose()?,
            submitter,
            // `caller.own` has checked the given submitter.
            among: if submitter.is_some() { None } else { caller.submitters() },
            tx_id: tx_id.0.map(gapless_domain::TxId),
            kinds: kinds.0.map(|text| types(&text)).transpose()?,
            only_without_submitter: false,
        };
        let limit = page_size(limit.0)?;
        let is_stream = wants_stream(request);
        let after = after.0.map(|text| start("after", &text)).transpose()?;
        let last_event_id = last_event_id.0.map(|text| start("Last-Event-ID", &text)).transpose()?;
        let default = if is_stream { Start::Now } else { Start::Oldest };
        let start = last_event_id.or(after).unwrap_or(default);
        if is_stream {
            let connection = request.data::<ClientConnection>().cloned();
            let request = StreamRequest { caller, start, filter, connection };
            return Ok(EventsResponse::Stream(open_stream(&app, request).await?));
        }
        Ok(EventsResponse::Page(page(&app, start, &filter, limit).await?))
    }
}

fn wants_stream(request: &Request) -> bool {
    let accepted = request.headers().get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted
        .flat_map(|value| value.split(','))
        .any(|range| range.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(EVENT_STREAM))
}

fn start(name: &str, text: &str) -> Result<Start, ApiError> {
    match text {
        "start" => Ok(Start::Oldest),
        "end" => Ok(Start::Now),
        cursor => cursor
            .parse()
            .map(Start::After)
            .map_err(|_| ApiError::invalid(name, "must be the cursor of an event or a page, start or end")),
    }
}

fn types(text: &str) -> Result<Vec<String>, ApiError> {
    let names = EVENT_TYPES.map(|kind| kind.name);
    let given: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    match given.iter().find(|name| !names.contains(&name.as_str())) {
        None => Ok(given),
        Some(_) => {
            Err(ApiError::invalid("type", format!("must be of {}, separated by commas", names.join(", "))))
        }
    }
}

/// Events of the log, until the page is full or the log ends.
async fn page(app: &App, start: Start, filter: &EventFilter, limit: u32) -> Result<String, ApiError> {
    let mut cursor = match start {
        Start::After(cursor) => cursor,
        start => start.cursor(&app.store.event_head().await?),
    };
    let (mut events, until) = (Vec::new(), Instant::now() + SEARCH_TIME);
    loop {
        let left = limit - u32::try_from(events.len()).unwrap_or(limit);
        let EventPage { head, reset, events: found, read_to } =
            app.store.read_events(&cursor, filter, left).await?;
        if let Some(reason) = reset {
            metrics::counter!(EVENT_RESETS_TOTAL, "reason" => reason.as_str()).increment(1);
            return Err(ApiError::EventsReset { reason, cursor: head.start() });
        }
        events.extend(found);
        cursor = EventCursor { position: read_to, epoch: head.epoch };
        if events.len() >= limit as usize || read_to >= head.position || Instant::now() >= until {
            break;
        }
    }
    let items: Vec<String> = events.iter().map(cloud_event).collect();
    Ok(format!("{{\"items\":[{}],\"nextCursor\":\"{cursor}\"}}", items.join(",")))
}

#[derive(Debug)]
pub(crate) enum EventsResponse {
    /// JSON.
    Page(String),
    Stream(Body),
}

impl IntoResponse for EventsResponse {
    fn into_response(self) -> Response {
        match self {
            EventsResponse::Page(text) => Response::builder().content_type("application/json").body(text),
            EventsResponse::Stream(body) => Response::builder()
                .content_type(EVENT_STREAM)
                .header(header::CACHE_CONTROL, "no-store")
                // A proxy must pass on each event at once.
                .header("X-Accel-Buffering", "no")
                // The connection has given up its slot.
                .header(header::CONNECTION, "close")
                .body(body),
        }
    }
}

impl ApiResponse for EventsResponse {
    fn meta() -> MetaResponses {
        let media = |content_type, schema| MetaMediaType { content_type, schema };
        let page = MetaSchemaRef::Reference(PAGE_SCHEMA.to_owned());
        MetaResponses {
            responses: vec![MetaResponse {
                description: "A page of events, or a stream of them.",
                status: Some(200),
                status_range: None,
                content: vec![media("application/json", page), media(EVENT_STREAM, String::schema_ref())],
                headers: vec![],
            }],
        }
    }

    /// `document` replaces it.
    fn register(registry: &mut Registry) {
        registry.schemas.insert(PAGE_SCHEMA.to_owned(), MetaSchema::new("object"));
    }
}

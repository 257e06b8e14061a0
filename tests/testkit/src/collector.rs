//! An OpenTelemetry collector: accepts OTLP over HTTP and keeps the spans.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value as AnyValue};
use parking_lot::Mutex;
use prost::Message;
use serde_json::{Value, json};

use crate::eventually::eventually;
use crate::plain_http::{self, Request};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedSpan {
    /// `service.name` of the process.
    pub service: String,
    pub name: String,
    /// Ids in hex; `parent` is empty for a root.
    pub trace_id: String,
    pub span_id: String,
    pub parent: String,
    /// Nanoseconds since 1970.
    pub start: u64,
    pub end: u64,
    pub attributes: BTreeMap<String, String>,
    /// Span ids.
    pub links: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Collector {
    url: String,
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    away: AtomicBool,
    spans: Mutex<Vec<ExportedSpan>>,
    /// All bodies so far.
    bodies: Mutex<Vec<u8>>,
}

impl Collector {
    pub async fn start() -> Collector {
        let inner = Arc::new(Inner::default());
        let url = plain_http::serve(inner.clone(), Inner::respond).await;
        Collector { url, inner }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Responds with 503 to everything while it is away.
    pub fn set_away(&self, away: bool) {
        self.inner.away.store(away, Ordering::Relaxed);
    }

    pub fn spans(&self) -> Vec<ExportedSpan> {
        self.inner.spans.lock().clone()
    }

    /// Everything that was sent, as bytes.
    pub fn bodies(&self) -> Vec<u8> {
        self.inner.bodies.lock().clone()
    }

    /// Waits until the spans of a trace satisfy the condition.
    pub async fn wait_for(
        &self,
        trace_id: &str,
        what: &str,
        condition: impl Fn(&[ExportedSpan]) -> bool,
    ) -> Vec<ExportedSpan> {
        eventually(&format!("the collector has {what}"), async || {
            let mut spans = self.spans();
            spans.retain(|span| span.trace_id == trace_id);
            spans.sort_by_key(|span| span.start);
            if condition(&spans) { Ok(spans) } else { Err(spans) }
        })
        .await
    }
}

impl Inner {
    async fn respond(self: Arc<Inner>, request: Request) -> (u16, Value) {
        let away = self.away.load(Ordering::Relaxed);
        let status = match request.line.as_str() {
            "POST /v1/traces" if !away => self.accept(&request.body),
            "POST /v1/traces" => 503,
            _ => 404,
        };
        (status, json!({}))
    }

    fn accept(&self, body: &[u8]) -> u16 {
        let Ok(request) = ExportTraceServiceRequest::decode(body) else { return 400 };
        self.bodies.lock().extend_from_slice(body);
        let mut spans = self.spans.lock();
        for resource in request.resource_spans {
            let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
            let service = attributes_of(attributes).remove("service.name").unwrap_or_default();
            let found = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            spans.extend(found.map(|span| ExportedSpan {
                service: service.clone(),
                name: span.name,
                trace_id: hex::encode(span.trace_id),
                span_id: hex::encode(span.span_id),
                parent: hex::encode(span.parent_span_id),
                start: span.start_time_unix_nano,
                end: span.end_time_unix_nano,
                attributes: attributes_of(span.attributes),
                links: span.links.into_iter().map(|link| hex::encode(link.span_id)).collect(),
            }));
        }
        200
    }
}

fn attributes_of(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: AnyValue| match value {
        AnyValue::StringValue(text) => text,
        AnyValue::IntValue(number) => number.to_string(),
        AnyValue::BoolValue(value) => value.to_string(),
        other => format!("{other:?}"),
    };
    let value = |one: KeyValue| Some((one.key, text(one.value?.value?)));
    attributes.into_iter().filter_map(value).collect()
}

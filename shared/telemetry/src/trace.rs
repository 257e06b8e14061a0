//! Trace context (W3C): leads from the client's `traceparent` to every step of its transaction, in logs and in spans.
//!
//! The context of the request is stored with the intent. Every worker that continues the intent starts its spans from
//! it, so that one trace contains all of them, whichever process died in between.

use std::collections::HashMap;
use std::fmt;

use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanContext, TraceContextExt, TraceFlags, TraceState};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::otlp::is_exporting;

/// A trace id and the id of the parent span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext(SpanContext);

impl TraceContext {
    /// The context of a request: continues the client's trace if the header is valid, otherwise starts one. An invalid
    /// header is not an error. `span` becomes a part of that trace; it has the empty field `otel.kind`.
    pub fn of_request(span: &Span, header: Option<&str>) -> TraceContext {
        let parent = header.and_then(TraceContext::parse);
        if is_exporting() {
            span.record("otel.kind", "server");
            if let Some(parent) = &parent {
                parent.set_parent_of(span);
            }
            let own = span.context().span().span_context().clone();
            if own.is_valid() {
                return TraceContext(own);
            }
        }
        let ids = RandomIdGenerator::default();
        let (trace_id, flags) = match parent {
            Some(TraceContext(parent)) => (parent.trace_id(), parent.trace_flags()),
            None => (ids.new_trace_id(), TraceFlags::SAMPLED),
        };
        TraceContext(SpanContext::new(trace_id, ids.new_span_id(), flags, false, TraceState::NONE))
    }

    /// Reads a `traceparent`.
    fn parse(text: &str) -> Option<TraceContext> {
        let carrier = HashMap::from([("traceparent".to_owned(), text.to_owned())]);
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
        let found = context.span().span_context().clone();
        found.is_valid().then_some(TraceContext(found))
    }

    /// Must be called before the span is entered.
    fn set_parent_of(&self, span: &Span) {
        // Fails only if the span is not exported.
        let _ = span.set_parent(Context::new().with_remote_span_context(self.0.clone()));
    }

    pub fn trace_id(&self) -> String {
        self.0.trace_id().to_string()
    }
}

/// The format of the `traceparent` header and of `managed_tx.trace_context`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.0.trace_id(), self.0.span_id(), self.0.trace_flags())
    }
}

/// The name under which a request's span is exported: few values, unlike its path.
pub fn name_request(span: &Span, route: &'static str) {
    if is_exporting() {
        span.context().span().update_name(route);
    }
}

/// A span of one step of an intent, in the trace of the request that created it. It links to the lane's span, which must
/// be the current one. Costs nothing while nothing is exported.
///
/// `stored`: the trace context stored with the intent. The fields `state`, `tx.hash` and `answer` can be recorded.
pub fn step_span(name: &'static str, stored: Option<&str>, tx_id: &dyn fmt::Display) -> Span {
    if !is_exporting() {
        return Span::none();
    }
    let Some(parent) = stored.and_then(TraceContext::parse) else { return Span::none() };
    let span = tracing::info_span!(target: STEP_TARGET, parent: None, "step", otel.name = name, tx.id = %tx_id,
        state = Empty, tx.hash = Empty, answer = Empty);
    parent.set_parent_of(&span);
    let lane = Span::current().context();
    let lane = lane.span().span_context().clone();
    if lane.is_valid() {
        span.add_link(lane);
    }
    span
}

/// A part of the current span. Costs nothing while nothing is exported.
pub fn child_span(name: &'static str) -> Span {
    tracing::info_span!(target: STEP_TARGET, "step", otel.name = name)
}

/// Target of the spans of steps. They are exported and not shown in the log.
pub(super) const STEP_TARGET: &str = "gapless_step";

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_header_survives_and_the_request_stays_in_its_trace() {
        let context = TraceContext::parse(HEADER).unwrap();
        assert_eq!(context.to_string(), HEADER);
        let own = TraceContext::of_request(&Span::none(), Some(HEADER));
        assert_eq!(own.trace_id(), context.trace_id());
        assert_ne!(own, context);
    }

    #[test]
    fn a_client_that_does_not_sample_is_respected() {
        let header = HEADER.replace("-01", "-00");
        assert!(TraceContext::of_request(&Span::none(), Some(&header)).to_string().ends_with("-00"));
    }

    #[test]
    fn a_bad_header_starts_a_new_trace() {
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
        let new = TraceContext::of_request(&Span::none(), Some("nonsense"));
        assert_eq!(TraceContext::parse(&new.to_string()).unwrap().to_string(), new.to_string());
    }

    #[test]
    fn without_an_export_a_step_has_no_span() {
        assert!(step_span("prepare", Some(HEADER), &"tx").is_none());
    }
}

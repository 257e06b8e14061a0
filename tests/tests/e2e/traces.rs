//! Traces: one trace has every step of a transaction, and the export delays nothing.

use gapless_testkit::{
    Address, Collector, ExportedSpan, Mining, Stack, TxId, TxState, eventually, payload, trace_picture,
};
use serde_json::json;

use crate::stack;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";

/// Creates a transaction with a `traceparent`.
async fn create_traced(stack: &Stack, flags: &str) -> TxId {
    let client = stack.client();
    let body = json!({
        "submitter": stack.submitter(0).text(),
        "requestId": "traced",
        "payload": payload(Address::repeat_byte(0xe5), 1),
    });
    let request = client
        .request(reqwest::Method::POST, "/api/v1/tx")
        .header("traceparent", format!("00-{TRACE}-{CLIENT}-{flags}"))
        .json(&body);
    let answer = client.ask(request).await;
    stack.record_accepted(&answer);
    assert_eq!(answer.status, 202, "{}", answer.body);
    answer.tx_id().parse().unwrap()
}

fn named<'a>(spans: &'a [ExportedSpan], name: &str) -> Vec<&'a ExportedSpan> {
    spans.iter().filter(|span| span.name == name).collect()
}

fn committed(spans: &[ExportedSpan], state: &str) -> bool {
    named(spans, "commit").iter().any(|span| span.attributes["state"] == state)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_has_every_step_from_the_request_to_the_final_commit() {
    let collector = Collector::start().await;
    let stack = stack()
        .confirmations(2)
        .mining(Mining::Interval(1.0))
        .set("traces.otlp_url", collector.url())
        .set("worker.id", "the-one")
        .up()
        .await;
    let tx_id = create_traced(&stack, "01").await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    let whole = |spans: &[ExportedSpan]| {
        committed(spans, "CONFIRMED")
            && !named(spans, "createTx").is_empty()
            && !named(spans, "TRACKING").is_empty()
    };
    let spans = collector.wait_for(TRACE, "the request and the last commit", whole).await;

    let request = named(&spans, "createTx")[0];
    assert_eq!((request.service.as_str(), request.parent.as_str()), ("gapless-api", CLIENT));
    assert_eq!(request.attributes["http.response.status_code"], "202");
    let insert = named(&spans, "insert")[0];
    assert_eq!(insert.parent, request.span_id);
    let prepare = named(&spans, "prepare")[0];
    assert_eq!(named(&spans, "sign")[0].parent, prepare.span_id);
    assert!(committed(&spans, "IN_FLIGHT") && committed(&spans, "TRACKING"), "{spans:#?}");
    assert_eq!(named(&spans, "send")[0].attributes["answer"], "accepted");
    for name in ["prepare", "commit", "send", "IN_FLIGHT", "SUBMITTED", "TRACKING"] {
        let found = named(&spans, name);
        assert!(!found.is_empty(), "{name}");
        for span in found {
            assert_eq!(
                (span.service.as_str(), span.parent.as_str()),
                ("gapless-worker", request.span_id.as_str())
            );
            assert_eq!(span.attributes["tx.id"], tx_id.to_string());
            assert_eq!(span.links.len(), 1, "the lane: {span:?}");
        }
    }

    // The lane ends when it has nothing to do; its span is a trace of its own.
    let lane = eventually("the lane's span", async || {
        let spans = collector.spans();
        spans.iter().find(|span| span.span_id == prepare.links[0]).cloned().ok_or(spans.len())
    })
    .await;
    assert_eq!((lane.name.as_str(), lane.parent.as_str()), ("lane", ""));
    assert_eq!(lane.attributes["submitter"], stack.submitter(0).text());
    assert_eq!(
        (lane.attributes["worker.id"].as_str(), lane.attributes["fencing_token"].as_str()),
        ("the-one", "1")
    );

    let secret = stack.submitter(0).key_hex();
    let bodies = String::from_utf8_lossy(&collector.bodies()).into_owned();
    assert!(bodies.contains(&tx_id.to_string()) && !bodies.contains(&secret) && !bodies.contains("nonce"));
    if let Ok(path) = std::env::var("GAPLESS_TRACE_PICTURE") {
        std::fs::write(
            path,
            trace_picture("One transaction, blocks every second, two confirmations", &spans),
        )
        .unwrap();
    }
    stack.finish().await;
}

/// Its context is stored with the intent, so the next worker continues the trace.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_takes_over_continues_the_trace() {
    let collector = Collector::start().await;
    let stack =
        stack().short_lease().mining(Mining::Manual).set("traces.otlp_url", collector.url()).start().await;
    stack.start_api().await;
    let first = stack.start_worker().await;
    let tx_id = create_traced(&stack, "01").await;
    stack.wait_for(tx_id, TxState::Submitted).await;
    let owner = stack.lease(stack.submitter(0)).await.unwrap().owner;
    first.kill9();
    stack.start_worker().await;
    stack.wait_owned(stack.submitter(0), owner.as_deref()).await;
    stack.anvil().mine(1).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    let spans = collector.wait_for(TRACE, "the last commit", |spans| committed(spans, "CONFIRMED")).await;
    assert!(!named(&spans, "TRACKING").is_empty(), "{spans:#?}");
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_delays_nothing_and_is_reported_once() {
    let collector = Collector::start().await;
    collector.set_away(true);
    let stack = stack().set("traces.otlp_url", collector.url()).up().await;
    let first = stack.create(stack.submitter(0), "first", &payload(Address::repeat_byte(0xe6), 1)).await;
    stack.wait_for(first, TxState::Confirmed).await;
    let worker = stack.workers().remove(0);
    let line = worker.wait_for_log("spans could not be exported; retrying").await;
    assert!(line.contains("HTTP 503"), "{line}");
    collector.set_away(false);
    let second = stack.create(stack.submitter(0), "second", &payload(Address::repeat_byte(0xe6), 1)).await;
    stack.wait_for(second, TxState::Confirmed).await;
    worker.wait_for_log("spans are exported again").await;
    let reports = worker.log_lines();
    let reports = reports.iter().filter(|line| line["message"] == "spans could not be exported; retrying");
    assert_eq!(reports.count(), 1);
    stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_sample_its_trace_has_no_spans_exported() {
    let collector = Collector::start().await;
    let stack = stack().set("traces.otlp_url", collector.url()).up().await;
    let tx_id = create_traced(&stack, "00").await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    // A sampled request after it: once its spans are there, those of the first would be too.
    let sampled = stack.create(stack.submitter(0), "sampled", &payload(Address::repeat_byte(0xe7), 1)).await;
    stack.wait_for(sampled, TxState::Confirmed).await;
    let (tx_id, sampled) = (tx_id.to_string(), sampled.to_string());
    let spans = eventually("the spans of the sampled transaction", async || {
        let spans = collector.spans();
        let last = |span: &ExportedSpan| {
            span.attributes.get("tx.id") == Some(&sampled)
                && span.attributes.get("state").is_some_and(|state| state == "CONFIRMED")
        };
        if spans.iter().any(last) { Ok(spans) } else { Err(spans.len()) }
    })
    .await;
    assert!(spans.iter().all(|span| span.trace_id != TRACE && span.attributes.get("tx.id") != Some(&tx_id)));
    stack.finish().await;
}

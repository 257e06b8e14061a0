//! Every rule about events finds its violation.

use super::*;

fn logged(position: i64, request: &str, kind: &str, hash: Option<&str>) -> LoggedEvent {
    LoggedEvent {
        position,
        id: format!("e{position}"),
        submitter: Some(OURS.into()),
        tx_id: Some(format!("t-{request}")),
        kind: kind.into(),
        tx_hash: hash.map(str::to_owned),
    }
}

fn receive(event: &LoggedEvent) -> ReceivedEvent {
    ReceivedEvent {
        id: event.id.clone(),
        kind: event.kind.clone(),
        sequence: event.position,
        content: format!("{event:?}"),
    }
}

/// Two confirmed requests, all of whose events were received.
fn with_events() -> Evidence {
    let mut evidence = sound();
    let logged = vec![
        logged(1, "first", "tx.accepted", None),
        logged(2, "first", "tx.submitted", Some("h-first")),
        logged(3, "second", "tx.accepted", None),
        logged(4, "first", "tx.confirmed", Some("h-first")),
        logged(5, "second", "tx.submitted", Some("h-second")),
        logged(6, "second", "tx.confirmed", Some("h-second")),
    ];
    let received: Vec<_> = logged.iter().map(receive).collect();
    let consumers =
        ["stream", "webhook"].map(|name| Consumer { name, received: received.clone(), resets: 0 }).to_vec();
    evidence.events = Some(EventEvidence { logged, consumers, left: 0 });
    evidence
}

fn broken_by(change: impl FnOnce(&mut EventEvidence)) -> Vec<Rule> {
    let mut evidence = with_events();
    change(evidence.events.as_mut().unwrap());
    rules(&evidence)
}

#[test]
fn a_complete_log_that_was_received_breaks_no_rule_even_with_repetitions() {
    assert_eq!(broken_by(|_| {}), []);
    let twice = |events: &mut EventEvidence| {
        let again = events.consumers[1].received.clone();
        events.consumers[1].received.extend(again);
    };
    assert_eq!(broken_by(twice), []);
}

/// A consumer whose cursor is the id of the outbox does not see what became visible later with a lower id.
#[test]
fn an_event_that_was_not_received_is_found() {
    for consumer in [0, 1] {
        assert_eq!(
            broken_by(|events| drop(events.consumers[consumer].received.remove(3))),
            [Rule::EventLoss]
        );
        assert_eq!(broken_by(|events| events.consumers[consumer].resets = 1), [Rule::EventLoss]);
    }
    assert_eq!(broken_by(|events| events.left = 1), [Rule::EventLoss]);
}

#[test]
fn a_change_without_its_event_is_found() {
    let remove = |position: i64| {
        move |events: &mut EventEvidence| {
            events.logged.retain(|event| event.position != position);
            for consumer in &mut events.consumers {
                consumer.received.retain(|event| event.sequence != position);
            }
        }
    };
    assert_eq!(broken_by(remove(1)), [Rule::EventLoss], "accepted");
    assert_eq!(broken_by(remove(6)), [Rule::EventLoss], "final");
}

#[test]
fn a_second_final_event_and_one_after_the_final_one_are_found() {
    let add = |kind: &'static str| {
        move |events: &mut EventEvidence| {
            let event = logged(7, "second", kind, Some("h-second"));
            for consumer in &mut events.consumers {
                consumer.received.push(receive(&event));
            }
            events.logged.push(event);
        }
    };
    assert_eq!(broken_by(add("tx.confirmed")), [Rule::EventLoss]);
    assert_eq!(broken_by(add("tx.receipt_updated")), [Rule::EventLoss]);
}

/// As the order of transaction ids can be.
#[test]
fn another_order_is_found() {
    assert_eq!(broken_by(|events| events.consumers[1].received.swap(3, 4)), [Rule::EventOrder]);
}

#[test]
fn what_did_not_happen_is_found() {
    assert_eq!(
        broken_by(|events| events.consumers[0].received.push(receive(&logged(
            9,
            "first",
            "tx.failed",
            None
        )))),
        [Rule::EventUntrue]
    );
    assert_eq!(broken_by(|events| events.logged[1].tx_hash = Some("h-other".into())), [Rule::EventUntrue]);
    assert_eq!(
        broken_by(|events| {
            let mut again = events.consumers[1].received[0].clone();
            again.content = "other".into();
            events.consumers[1].received.push(again);
        }),
        [Rule::EventUntrue],
        "one id, two contents"
    );
}

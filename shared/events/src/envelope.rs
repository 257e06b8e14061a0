//! The text of an event for consumers: CloudEvents 1.0 in JSON, the same in every outlet.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use gapless_domain::{WebhookId, redact_nonces};
use gapless_store::events::LoggedEvent;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use uuid::Uuid;

#[derive(serde::Serialize)]
struct Envelope<'a, D> {
    specversion: &'static str,
    id: Uuid,
    source: String,
    r#type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a str>,
    time: String,
    datacontenttype: &'static str,
    /// Absent if the event has no position in the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<String>,
    data: D,
}

impl<'a, D> Envelope<'a, D> {
    fn new(id: Uuid, source: String, r#type: &'a str, time: DateTime<Utc>, data: D) -> Envelope<'a, D> {
        let time = time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
        let (specversion, datacontenttype) = ("1.0", "application/json");
        Envelope {
            specversion,
            id,
            source,
            r#type,
            subject: None,
            time,
            datacontenttype,
            sequence: None,
            data,
        }
    }
}

/// The members that every event of the log has, and its own as they are stored: they are not parsed.
struct Data<'a> {
    event: &'a LoggedEvent,
    tx_id: Option<&'a str>,
    own: BTreeMap<String, &'a RawValue>,
}

impl Serialize for Data<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut members = serializer.serialize_map(None)?;
        if let Some(submitter) = self.event.submitter {
            members.serialize_entry("chainId", &submitter.chain_id.0)?;
            members.serialize_entry("submitter", &submitter.address_text())?;
        }
        if let Some(tx_id) = self.tx_id {
            members.serialize_entry("txId", tx_id)?;
        }
        if let Some(request_id) = &self.event.request_id {
            members.serialize_entry("requestId", request_id)?;
        }
        for (name, value) in &self.own {
            match name.as_str() {
                // The envelope has it.
                "type" => {}
                // Reasons are also written for operators.
                "reason" => match text_of(value) {
                    Some(reason) => members.serialize_entry(name, &redact_nonces(&reason))?,
                    None => members.serialize_entry(name, value)?,
                },
                _ => members.serialize_entry(name, value)?,
            }
        }
        members.end()
    }
}

/// `None`: it is not a string.
fn text_of(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

/// The event as one line of JSON.
pub fn cloud_event(event: &LoggedEvent) -> String {
    let subject = event.tx_id.map(|tx_id| tx_id.to_string());
    let own: BTreeMap<String, &RawValue> = serde_json::from_str(event.data.get()).unwrap_or_default();
    let source = match event.submitter {
        Some(key) => format!("/chains/{}/submitters/{}", key.chain_id, key.address_text()),
        // Only events of webhooks have no submitter. Their data has the id.
        None => webhook_source(&own.get("webhookId").and_then(|id| text_of(id)).unwrap_or_default()),
    };
    let data = Data { event, tx_id: subject.as_deref(), own };
    let envelope = Envelope::new(event.id, source, &event.kind, event.created_at, data);
    text(&Envelope {
        subject: subject.as_deref(),
        sequence: Some(format!("{:019}", event.position)),
        ..envelope
    })
}

/// The text of a notice, one of `NOTICE_TYPES`. `members`: those of its data except `webhookId`.
pub fn notice(
    kind: &str,
    id: Uuid,
    webhook_id: WebhookId,
    members: Map<String, Value>,
    time: DateTime<Utc>,
) -> String {
    let webhook_id = webhook_id.to_string();
    let source = webhook_source(&webhook_id);
    let mut data = Map::new();
    data.insert("webhookId".into(), webhook_id.into());
    data.extend(members);
    text(&Envelope::new(id, source, kind, time, data))
}

fn webhook_source(webhook_id: &str) -> String {
    format!("/webhooks/{webhook_id}")
}

fn text(envelope: &Envelope<'_, impl Serialize>) -> String {
    // Unwrap safety: plain data with string keys.
    serde_json::to_string(envelope).expect("an event serialises")
}

#[cfg(test)]
mod tests {
    use gapless_domain::finality::Confirmation;
    use gapless_domain::{Address, ChainId, ErrorCode, EventKind, H256, SubmitterKey, TxId};

    use super::*;
    use crate::schema::{EVENT_TYPES, EventType, NOTICE_TYPES, schemas};

    const WEBHOOK: WebhookId = WebhookId(Uuid::from_u128(2));

    /// One of each kind of events of submitters. A kind without one does not compile.
    fn samples() -> Vec<EventKind> {
        let (tx_hash, reason, code) = (H256::repeat_byte(7), "next nonce 4711".to_owned(), ErrorCode::Stuck);
        let blocks = vec![Confirmation { number: 9, hash: H256::repeat_byte(8) }];
        let all = vec![
            EventKind::Accepted,
            EventKind::Submitted { tx_hash },
            EventKind::ReceiptUpdated { tx_hash, block_number: 9, succeeded: true },
            EventKind::Reorged { tx_hash, block_number: 9, new_fork: true },
            EventKind::Confirmations { blocks: blocks.clone(), new_fork: false },
            EventKind::Confirmed { tx_hash, block_number: 9, confirmations: 1, blocks, new_fork: true },
            EventKind::Failed { code, reason: reason.clone() },
            EventKind::Cancelled { code, reason: reason.clone() },
            EventKind::Stuck { code, reason: reason.clone() },
            EventKind::Protected { reason: reason.clone(), tx_hash: Some(tx_hash) },
            EventKind::Protected { reason: reason.clone(), tx_hash: None },
            EventKind::Suspect { reason: reason.clone() },
            EventKind::SuspectCleared { reason: reason.clone() },
            EventKind::Blocked { waits_for: "funds", code, reason: reason.clone() },
            EventKind::Unblocked { reason: reason.clone() },
            EventKind::Released { reason },
            EventKind::External { how: "displaced", count: 2 },
        ];
        for kind in &all {
            match kind {
                EventKind::Accepted
                | EventKind::Submitted { .. }
                | EventKind::ReceiptUpdated { .. }
                | EventKind::Reorged { .. }
                | EventKind::Confirmations { .. }
                | EventKind::Confirmed { .. }
                | EventKind::Failed { .. }
                | EventKind::Cancelled { .. }
                | EventKind::Stuck { .. }
                | EventKind::Protected { .. }
                | EventKind::Suspect { .. }
                | EventKind::SuspectCleared { .. }
                | EventKind::Blocked { .. }
                | EventKind::Unblocked { .. }
                | EventKind::Released { .. }
                | EventKind::External { .. } => {}
            }
        }
        all
    }

    fn logged(kind: &EventKind) -> LoggedEvent {
        let of_tx = kind.name().starts_with("tx.");
        LoggedEvent {
            position: 42,
            id: Uuid::from_u128(1),
            submitter: Some(SubmitterKey { chain_id: ChainId(31337), address: Address::repeat_byte(0xab) }),
            // Not random: a test searches for digits.
            tx_id: of_tx.then(|| TxId(uuid::Uuid::from_u128(2))),
            request_id: of_tx.then(|| "order-1".to_owned()),
            kind: kind.name().to_owned(),
            data: serde_json::value::to_raw_value(kind).unwrap(),
            created_at: time(),
        }
    }

    fn time() -> DateTime<Utc> {
        DateTime::from_timestamp_millis(1_700_000_000_123).unwrap()
    }

    /// As the store writes it.
    fn webhook_disabled(last_error: Option<&str>) -> LoggedEvent {
        let mut data = serde_json::json!({
            "type": "webhook.disabled", "webhookId": WEBHOOK.to_string(), "reason": "gone",
        });
        if let Some(error) = last_error {
            data["lastError"] = error.into();
        }
        LoggedEvent {
            submitter: None,
            tx_id: None,
            request_id: None,
            kind: "webhook.disabled".to_owned(),
            data: serde_json::value::to_raw_value(&data).unwrap(),
            ..logged(&EventKind::Accepted)
        }
    }

    /// One of each type in the log.
    fn all_logged() -> Vec<LoggedEvent> {
        let of_submitters = samples();
        let of_webhooks = [webhook_disabled(Some("HTTP 410")), webhook_disabled(None)];
        of_submitters.iter().map(logged).chain(of_webhooks).collect()
    }

    /// What of `value` does not fit the schema. Supports what the schemas use.
    fn misfits(schema: &Value, value: &Value, at: &str, all: &Map<String, Value>) -> Vec<String> {
        if let Some(target) = schema["$ref"].as_str() {
            let name = target.rsplit('/').next().unwrap();
            return match name {
                // Defined by openapi.yaml.
                "Hash" | "Address" => {
                    let length = if name == "Hash" { 66 } else { 42 };
                    let fits =
                        value.as_str().is_some_and(|text| text.len() == length && text.starts_with("0x"));
                    if fits { vec![] } else { vec![format!("{at}: {value} is no {name}")] }
                }
                "RequestId" => {
                    if value.is_string() {
                        vec![]
                    } else {
                        vec![format!("{at}: no text")]
                    }
                }
                _ => misfits(&all[name], value, at, all),
            };
        }
        let fits = match schema["type"].as_str().unwrap() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "integer" => value.is_u64(),
            "boolean" => value.is_boolean(),
            other => panic!("{other}"),
        };
        let mut found = if fits { vec![] } else { vec![format!("{at}: {value}")] };
        if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
            found.push(format!("{at}: {value} is not listed"));
        }
        for item in value.as_array().into_iter().flatten() {
            found.extend(misfits(&schema["items"], item, at, all));
        }
        let members = value.as_object().cloned().unwrap_or_default();
        for (name, member) in &members {
            match schema["properties"].get(name) {
                Some(schema) => found.extend(misfits(schema, member, &format!("{at}.{name}"), all)),
                None => found.push(format!("{at}.{name}: not in the schema")),
            }
        }
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !members.contains_key(name) {
                found.push(format!("{at}.{name}: missing"));
            }
        }
        found
    }

    fn of_name(name: &str) -> EventType {
        *EVENT_TYPES.iter().find(|kind| kind.name == name).unwrap_or_else(|| panic!("{name} has no schema"))
    }

    #[test]
    fn every_event_fits_its_schema() {
        let all = schemas();
        for logged in all_logged() {
            let event: Value = serde_json::from_str(&cloud_event(&logged)).unwrap();
            let schema = &all[of_name(&logged.kind).schema];
            assert_eq!(misfits(schema, &event, &logged.kind, &all), Vec::<String>::new());
        }
        let known: Vec<String> = all_logged().into_iter().map(|event| event.kind).collect();
        for kind in EVENT_TYPES {
            assert!(known.iter().any(|name| name == kind.name), "{}: no event has this type", kind.name);
        }
    }

    /// The control of the test above.
    #[test]
    fn what_does_not_fit_is_reported() {
        let all = schemas();
        let mut event: Value = serde_json::from_str(&cloud_event(&logged(&samples()[1]))).unwrap();
        event["data"]["txHash"] = 7.into();
        event["data"]["extra"] = 1.into();
        event["type"] = "tx.failed".into();
        event.as_object_mut().unwrap().remove("id");
        assert_eq!(misfits(&all["TxSubmittedEvent"], &event, "x", &all).len(), 4);
    }

    #[test]
    fn no_event_has_a_nonce() {
        for logged in all_logged() {
            let event: Value = serde_json::from_str(&cloud_event(&logged)).unwrap();
            assert!(!event.to_string().contains("4711"), "{event}");
            assert!(event["data"].as_object().unwrap().keys().all(|name| !name.contains("nonce")), "{event}");
        }
    }

    #[test]
    fn an_event_is_cloudevents_in_json() {
        let event = logged(&EventKind::Accepted);
        let tx_id = event.tx_id.unwrap().to_string();
        let address = format!("0x{}", "ab".repeat(20));
        let expected = serde_json::json!({
            "specversion": "1.0",
            "id": "00000000-0000-0000-0000-000000000001",
            "source": format!("/chains/31337/submitters/{address}"),
            "type": "tx.accepted",
            "subject": tx_id,
            "time": "2023-11-14T22:13:20.123Z",
            "datacontenttype": "application/json",
            "sequence": "0000000000000000042",
            "data": { "chainId": 31337, "submitter": address, "txId": tx_id, "requestId": "order-1" },
        });
        assert_eq!(serde_json::from_str::<Value>(&cloud_event(&event)).unwrap(), expected);
    }

    #[test]
    fn an_event_of_a_webhook_has_no_submitter() {
        let expected = serde_json::json!({
            "specversion": "1.0",
            "id": "00000000-0000-0000-0000-000000000001",
            "source": "/webhooks/00000000-0000-0000-0000-000000000002",
            "type": "webhook.disabled",
            "time": "2023-11-14T22:13:20.123Z",
            "datacontenttype": "application/json",
            "sequence": "0000000000000000042",
            "data": { "webhookId": WEBHOOK.to_string(), "reason": "gone", "lastError": "HTTP 410" },
        });
        let text = cloud_event(&webhook_disabled(Some("HTTP 410")));
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }

    #[test]
    fn a_notice_is_an_event_without_a_sequence() {
        let members: [Value; 2] =
            [serde_json::json!({}), serde_json::json!({ "reason": "retention", "cursor": "5f3a9c21.42" })];
        for (kind, members) in NOTICE_TYPES.iter().zip(members) {
            let mut data = members.as_object().unwrap().clone();
            let text = notice(kind.name, Uuid::from_u128(1), WEBHOOK, data.clone(), time());
            let event: Value = serde_json::from_str(&text).unwrap();
            data.insert("webhookId".into(), WEBHOOK.to_string().into());
            assert_eq!(
                event,
                serde_json::json!({
                    "specversion": "1.0",
                    "id": "00000000-0000-0000-0000-000000000001",
                    "source": "/webhooks/00000000-0000-0000-0000-000000000002",
                    "type": kind.name,
                    "time": "2023-11-14T22:13:20.123Z",
                    "datacontenttype": "application/json",
                    "data": data,
                })
            );
            assert_eq!(
                misfits(&kind.data_schema(), &event["data"], kind.name, &schemas()),
                Vec::<String>::new()
            );
            assert!(EVENT_TYPES.iter().all(|logged| logged.name != kind.name), "{}", kind.name);
        }
    }
}

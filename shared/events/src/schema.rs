//! JSON Schemas of the events, for openapi.yaml and the documentation.

use serde_json::{Map, Value, json};

/// A member of the data of an event.
#[derive(Clone, Copy, Debug)]
struct Member {
    name: &'static str,
    schema: Schema,
    required: bool,
    description: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum Schema {
    /// A schema of openapi.yaml.
    Named(&'static str),
    Text,
    Uuid,
    Integer,
    Boolean,
    Blocks,
}

/// A type of events.
#[derive(Clone, Copy, Debug)]
pub struct EventType {
    /// For example `tx.confirmed`.
    pub name: &'static str,
    /// Name of its schema, for example `TxConfirmedEvent`. Those of notices are not in openapi.yaml, which describes what
    /// the API answers.
    pub schema: &'static str,
    pub description: &'static str,
    members: &'static [Member],
}

const fn member(name: &'static str, schema: Schema, description: &'static str) -> Member {
    Member { name, schema, required: true, description }
}

const CODE: Member = member("code", Schema::Text, "Stable error code.");
const REASON: Member = member("reason", Schema::Text, "Why, for people. The text may change.");
const TX_HASH: Member = member("txHash", Schema::Named("Hash"), "Hash of the transaction on the chain.");
const BLOCK_NUMBER: Member = member("blockNumber", Schema::Integer, "Block in which it was mined.");

const WEBHOOK_ID: Member = member("webhookId", Schema::Uuid, "The webhook.");

/// All types of events in the log.
pub const EVENT_TYPES: [EventType; 17] = [
    EventType {
        name: "tx.accepted",
        schema: "TxAcceptedEvent",
        description: "A request was accepted and stored.",
        members: &[],
    },
    EventType {
        name: "tx.submitted",
        schema: "TxSubmittedEvent",
        description: "A node accepted the signed transaction. A replacement with other fees is another event.",
        members: &[TX_HASH],
    },
    EventType {
        name: "tx.receipt_updated",
        schema: "TxReceiptUpdatedEvent",
        description: "The transaction was mined. Not final: its block may be replaced.",
        members: &[
            TX_HASH,
            BLOCK_NUMBER,
            member("succeeded", Schema::Boolean, "False: the transaction reverted in this block."),
        ],
    },
    EventType {
        name: "tx.reorged",
        schema: "TxReorgedEvent",
        description: "The block of the transaction was replaced. The same bytes are sent again if necessary.",
        members: &[
            TX_HASH,
            BLOCK_NUMBER,
            member(
                "newFork",
                Schema::Boolean,
                "Always true: confirmations that were reported before are void.",
            ),
        ],
    },
    EventType {
        name: "tx.confirmations",
        schema: "TxConfirmationsEvent",
        description: "Blocks confirm the transaction.",
        members: &[
            member(
                "blocks",
                Schema::Blocks,
                "The confirming blocks, lowest first, with that of the transaction.",
            ),
            member(
                "newFork",
                Schema::Boolean,
                "True: `blocks` is the full list and replaces all earlier ones. False: append `blocks` to them.",
            ),
        ],
    },
    EventType {
        name: "tx.confirmed",
        schema: "TxConfirmedEvent",
        description: "Final: the transaction was executed and has the required confirmations.",
        members: &[
            TX_HASH,
            BLOCK_NUMBER,
            member("confirmations", Schema::Integer, "Number of confirming blocks."),
            member("blocks", Schema::Blocks, "The full list of confirming blocks, as far as they are known."),
            member("newFork", Schema::Boolean, "Always true: `blocks` replaces all earlier ones."),
        ],
    },
    EventType {
        name: "tx.failed",
        schema: "TxFailedEvent",
        description: "Final: the transaction reverted on the chain, or was refused before it had a nonce.",
        members: &[CODE, REASON],
    },
    EventType {
        name: "tx.cancelled",
        schema: "TxCancelledEvent",
        description: "Final: the request was cancelled, or its deadline passed.",
        members: &[CODE, REASON],
    },
    EventType {
        name: "tx.stuck",
        schema: "TxStuckEvent",
        description: "The transaction was not mined in time. It is still being sent.",
        members: &[CODE, REASON],
    },
    EventType {
        name: "submitter.protected",
        schema: "SubmitterProtectedEvent",
        description: "The key was used outside Gapless. The submitter stops until an operator acts.",
        members: &[REASON, Member { required: false, ..TX_HASH }],
    },
    EventType {
        name: "submitter.suspect",
        schema: "SubmitterSuspectEvent",
        description: "A nonce was consumed, and no node shows by which transaction. Sending pauses until one does.",
        members: &[REASON],
    },
    EventType {
        name: "submitter.suspect_cleared",
        schema: "SubmitterSuspectClearedEvent",
        description: "The transaction that consumed the nonce was found.",
        members: &[REASON],
    },
    EventType {
        name: "submitter.blocked",
        schema: "SubmitterBlockedEvent",
        description: "The next transaction of the submitter cannot be sent yet.",
        members: &[
            member("waitsFor", Schema::Text, "What it waits for: `funds`, `fee`, `node` or `signer`."),
            CODE,
            REASON,
        ],
    },
    EventType {
        name: "submitter.unblocked",
        schema: "SubmitterUnblockedEvent",
        description: "The blocked transaction is sent, or has ended.",
        members: &[REASON],
    },
    EventType {
        name: "submitter.released",
        schema: "SubmitterReleasedEvent",
        description: "The submitter is no longer protected.",
        members: &[REASON],
    },
    EventType {
        name: "nonce.external",
        schema: "NonceExternalEvent",
        description: "On a shared key: transactions of others.",
        members: &[
            member(
                "how",
                Schema::Text,
                "`stepped_over`, or `displaced`: they took the place of a transaction of ours, which is sent again.",
            ),
            member("count", Schema::Integer, "Number of these transactions."),
        ],
    },
    EventType {
        name: "webhook.disabled",
        schema: "WebhookDisabledEvent",
        description: "A webhook was disabled without a request. It gets no events until it is enabled again.",
        members: &[
            WEBHOOK_ID,
            member(
                "reason",
                Schema::Text,
                "`gone` (it answered 410), `failing` (all deliveries fail) or `key_revoked`.",
            ),
            Member {
                required: false,
                ..member("lastError", Schema::Text, "Why the last delivery failed. The text may change.")
            },
        ],
    },
];

/// Notices: delivered to webhooks, and not in the log. They are no values of the filter `type` and have no `sequence`.
pub const NOTICE_TYPES: [EventType; 2] = [
    EventType {
        name: "webhook.test",
        schema: "WebhookTestNotice",
        description: "A test delivery, which someone asked for.",
        members: &[WEBHOOK_ID],
    },
    EventType {
        name: "events.reset",
        schema: "EventsResetNotice",
        description: "Events are missing. Delivery goes on with the oldest event: read the state of your open transactions.",
        members: &[
            WEBHOOK_ID,
            member(
                "reason",
                Schema::Text,
                "`retention`, or `epoch`: the database was restored or failed over.",
            ),
            member("cursor", Schema::Text, "The place in the log after which delivery goes on."),
        ],
    },
];

/// Name of the schema of what a webhook gets.
pub const WEBHOOK_MESSAGE: &str = "WebhookMessage";

/// The schemas by name: `Event`, `WebhookMessage`, one for each type, and what they refer to. `Hash`, `Address` and `RequestId` are those
/// of openapi.yaml.
pub fn schemas() -> Map<String, Value> {
    let mut schemas = Map::new();
    let event = "An event, as CloudEvents 1.0 in JSON. Its type determines the members of `data`.";
    schemas.insert("Event".to_owned(), one_of(event, &EVENT_TYPES));
    let message = "What a webhook gets: an event, or a notice, which has no `sequence`.";
    schemas.insert(WEBHOOK_MESSAGE.to_owned(), one_of(message, &[&EVENT_TYPES[..], &NOTICE_TYPES].concat()));
    schemas.insert(
        "ConfirmingBlock".to_owned(),
        json!({
            "description": "A block that confirms a transaction.",
            "type": "object",
            "required": ["number", "hash"],
            "properties": {
                "number": { "type": "integer", "format": "int64", "minimum": 0, "description": "Height of the block." },
                "hash": reference("Hash"),
            },
        }),
    );
    for kind in EVENT_TYPES.iter().chain(&NOTICE_TYPES) {
        schemas.insert(kind.schema.to_owned(), envelope_schema(kind));
        schemas.insert(format!("{}Data", kind.schema), kind.data_schema());
    }
    schemas
}

impl EventType {
    /// Whether the event is about one intent.
    pub fn is_of_tx(&self) -> bool {
        self.name.starts_with("tx.")
    }

    /// Whether the event is about one webhook, and not about a submitter.
    pub fn is_of_webhook(&self) -> bool {
        self.members.iter().any(|member| member.name == WEBHOOK_ID.name)
    }

    /// Schema of `data`.
    pub fn data_schema(&self) -> Value {
        let (mut required, mut properties) = (Vec::new(), Map::new());
        if !self.is_of_webhook() {
            required.extend(["chainId", "submitter"]);
            properties.insert(
                "chainId".into(),
                json!({ "type": "integer", "format": "int64", "minimum": 0, "description": "EIP-155 chain id." }),
            );
            properties.insert("submitter".into(), reference("Address"));
            properties.insert(
                "txId".into(),
                json!({ "type": "string", "format": "uuid", "description": "The transaction, as in the other routes." }),
            );
            properties.insert("requestId".into(), reference("RequestId"));
        }
        if self.is_of_tx() {
            required.push("txId");
        }
        for member in self.members {
            let mut schema = member.schema.json();
            // In OpenAPI 3.0, members beside a reference are ignored.
            if schema.get("$ref").is_none() {
                schema["description"] = member.description.into();
            }
            properties.insert(member.name.to_owned(), schema);
            if member.required {
                required.push(member.name);
            }
        }
        json!({
            "description": format!("Data of `{}`.", self.name),
            "type": "object",
            "required": required,
            "properties": properties,
        })
    }

    /// Name, whether always present, and description of the members of `data` that only this type has.
    pub fn members(&self) -> impl Iterator<Item = (&'static str, bool, &'static str)> {
        self.members.iter().map(|member| (member.name, member.required, member.description))
    }
}

impl Schema {
    fn json(self) -> Value {
        match self {
            Schema::Named(name) => reference(name),
            Schema::Text => json!({ "type": "string" }),
            Schema::Uuid => json!({ "type": "string", "format": "uuid" }),
            Schema::Integer => json!({ "type": "integer", "format": "int64", "minimum": 0 }),
            Schema::Boolean => json!({ "type": "boolean" }),
            Schema::Blocks => json!({ "type": "array", "items": reference("ConfirmingBlock") }),
        }
    }
}

fn one_of(description: &str, types: &[EventType]) -> Value {
    let references: Vec<Value> = types.iter().map(|kind| reference(kind.schema)).collect();
    let mapping: Map<String, Value> = types
        .iter()
        .zip(&references)
        .map(|(kind, reference)| (kind.name.to_owned(), reference["$ref"].clone()))
        .collect();
    json!({
        "description": description,
        "oneOf": references,
        "discriminator": { "propertyName": "type", "mapping": mapping },
    })
}

fn envelope_schema(kind: &EventType) -> Value {
    let mut required = vec!["specversion", "id", "source", "type", "time", "datacontenttype", "data"];
    let is_notice = NOTICE_TYPES.iter().any(|notice| notice.name == kind.name);
    if !is_notice {
        required.push("sequence");
    }
    if kind.is_of_tx() {
        required.push("subject");
    }
    let source = match kind.is_of_webhook() {
        true => "`/webhooks/{webhookId}`.",
        false => "`/chains/{chainId}/submitters/{address}`.",
    };
    let mut schema = json!({
        "description": kind.description,
        "type": "object",
        "required": required,
        "properties": {
            "specversion": { "type": "string", "description": "Version of CloudEvents: `1.0`." },
            "id": {
                "type": "string", "format": "uuid",
                "description": "Identifies the event everywhere and never changes: ignore an id that you have seen.",
            },
            "source": { "type": "string", "description": source },
            "type": { "type": "string", "enum": [kind.name], "description": "What happened." },
            "subject": { "type": "string", "description": "The `txId`; absent if the event is not about one transaction." },
            "time": { "type": "string", "format": "date-time", "description": "When it was stored." },
            "datacontenttype": { "type": "string", "description": "`application/json`." },
            "sequence": {
                "type": "string", "pattern": "^[0-9]{19}$",
                "description": "Position in the event log with leading zeros: events of a submitter in the order in \
                                which they happened.",
            },
            "data": reference(&format!("{}Data", kind.schema)),
        },
    });
    if is_notice && let Some(properties) = schema["properties"].as_object_mut() {
        properties.remove("sequence");
    }
    schema
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_lists_every_type() {
        let guide = include_str!("../../../docs/guide/events.md");
        let line = |kind: &EventType| {
            let members: Vec<String> = kind.members().map(|(name, ..)| format!("`{name}`")).collect();
            format!("| `{}` | {} | {} |", kind.name, members.join(", "), kind.description)
        };
        let expected: Vec<String> = EVENT_TYPES.iter().chain(&NOTICE_TYPES).map(line).collect();
        let types = guide.split("## Types").nth(1).unwrap();
        let listed: Vec<&str> = types.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(listed, expected);
    }
}

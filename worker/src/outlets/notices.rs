//! Messages to the receiver of a webhook that are no events of the log.

use std::time::SystemTime;

use gapless_domain::WebhookId;
use gapless_events::notice;
use gapless_store::events::{EventCursor, ResetReason};
use serde_json::Map;
use uuid::Uuid;

use super::outlet::Message;

pub(super) const TEST: &str = "webhook.test";
pub(super) const RESET: &str = "events.reset";

/// A user asked for it.
pub(super) fn test(id: Uuid, outlet_id: Uuid) -> Message {
    Message { id, body: notice(TEST, id, WebhookId(outlet_id), Map::new(), SystemTime::now().into()) }
}

/// Events are missing: those after the last delivery and before `cursor`.
pub(super) fn reset(id: Uuid, outlet_id: Uuid, reason: ResetReason, cursor: &EventCursor) -> Message {
    let members = Map::from_iter([
        ("reason".to_owned(), reason.as_str().into()),
        ("cursor".to_owned(), cursor.to_string().into()),
    ]);
    Message { id, body: notice(RESET, id, WebhookId(outlet_id), members, SystemTime::now().into()) }
}

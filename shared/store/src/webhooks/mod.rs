//! Webhooks as their users see them: created and changed by the API, listed with their health and deliveries. What the
//! delivering worker reads and writes is in `outlets`.

mod deliveries;
mod locked;
mod manage;
mod replay;
mod secrets;
mod view;

pub use deliveries::{DeliveryState, DeliveryView};
pub use manage::{NewWebhook, WebhookChange};
pub use replay::{ReplayRange, Replayed};
pub use secrets::{SealedSecret, StoredSecrets};
pub(crate) use view::filter;
pub use view::{DisabledReason, OutletHealth, OutletView, WebhookFilter, WebhookView};

//! Request and response types of the API. They contain no business rules: the domain validates requests, and responses
//! are made from the store's views.

mod body;
mod delivery;
mod history;
mod mempool;
mod operator;
mod outlet;
mod problem;
mod request;
mod simulation;
mod submitter;
mod tx;
mod tx_actions;
mod tx_error;
mod waiting;
mod webhook;

pub(crate) use body::Body;
#[cfg(feature = "fuzz")]
pub(crate) use body::parse;
pub(crate) use delivery::{Delivery, DeliveryPage, DeliveryState, Replay, Replayed};
pub(crate) use history::TxHistory;
pub(crate) use operator::{ActionResult, ActionStatus, AdoptReason, OperatorReason};
pub(crate) use outlet::{Outlet, OutletList};
pub(crate) use problem::Problem;
pub(crate) use request::{AccessListEntry, BatchRequest, CreateTx, TIME_FORMAT, TxPayload, TxType};
pub(crate) use simulation::{Outcome, Simulation};
pub(crate) use submitter::{Submitter, SubmitterPage};
pub(crate) use tx::{
    Accepted, BatchResponse, BatchResult, EXAMPLE_ID, EXAMPLE_SUBMITTER, Tx, TxPage, TxState,
};
pub(crate) use tx_actions::{Resolution, ResolveAction, TxActionReason, TxActionResult};
pub(crate) use tx_error::TxError;
pub(crate) use webhook::{
    ChangeWebhook, CreateWebhook, NewSecret, SecretText, Webhook, WebhookFilter, WebhookPage,
    WebhookWithSecret,
};

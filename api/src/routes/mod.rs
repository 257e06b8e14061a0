//! The routes. Each is a struct without state, so that the OpenAPI document can be generated without a server;
//! handlers get the application state from the request.

mod attempts;
mod batch;
mod by_request;
mod create;
mod deliveries;
mod events;
mod get;
mod health;
mod list;
mod outlets;
mod simulate;
mod stuck;
mod submitter_actions;
mod submitters;
mod tx;
mod tx_actions;
mod webhooks;

pub(crate) use create::{accept, check_policy, count, validate};
pub(crate) use events::{EVENT_STREAM, PAGE_SCHEMA};
pub(crate) use get::tx_with_confirmations;
pub(crate) use list::MAX_PAGE;
use poem_openapi::{OpenApiService, Tags};
pub(crate) use submitter_actions::MAX_BLOCK;

pub(crate) type Routes = (
    tx::Transactions,
    batch::Batch,
    simulate::Simulate,
    by_request::ByRequest,
    get::Get,
    attempts::Attempts,
    tx_actions::TxActions,
    stuck::Stuck,
    submitters::Submitters,
    submitter_actions::SubmitterActions,
    events::Events,
    webhooks::Webhooks,
    deliveries::Deliveries,
    outlets::Outlets,
    health::Health,
);

#[derive(Tags)]
pub(crate) enum Tag {
    /// Send and track transactions.
    Transactions,
    /// The sending addresses.
    Submitters,
    /// What happened, in order.
    Events,
    /// Events are sent to you.
    Webhooks,
    /// Health and metrics.
    Operations,
}

const DESCRIPTION: &str = "Gapless sends EVM transactions without nonce gaps.

Post a transaction and get a `txId`. The server assigns the nonce, signs, broadcasts, rebroadcasts, and \
handles receipts and reorgs. Every accepted request reaches `CONFIRMED`, `FAILED` or `CANCELLED`.

**Idempotency.** Submitter and `requestId` identify a request. Repeating it returns the same `txId`: 202 the \
first time, 200 after that, 409 if the payload differs. After a timeout or any 5xx, send the request again.

**Keys.** `Authorization: Bearer gpl_…`. A key has scopes and may be limited to some submitters: it cannot \
see others. A request that names another submitter is refused with 403; its transactions are not found (404).

**Errors** are `application/problem+json` with a stable `code`. After any 4xx nothing was stored.

**Examples** use the submitter `0x1111111111111111111111111111111111111111`, for which no server has a key: it \
is answered with 404 `unknown_submitter`. Replace it with one of yours; `GET /api/v1/submitters` lists them, \
and `gapless up` prints a command with a submitter of the demo.";

pub(crate) fn service() -> OpenApiService<Routes, ()> {
    let routes = (
        tx::Transactions,
        batch::Batch,
        simulate::Simulate,
        by_request::ByRequest,
        get::Get,
        attempts::Attempts,
        tx_actions::TxActions,
        stuck::Stuck,
        submitters::Submitters,
        submitter_actions::SubmitterActions,
        events::Events,
        webhooks::Webhooks,
        deliveries::Deliveries,
        outlets::Outlets,
        health::Health,
    );
    OpenApiService::new(routes, "Gapless", env!("CARGO_PKG_VERSION"))
        .description(DESCRIPTION)
        .license(
            poem_openapi::LicenseObject::new("Apache-2.0").url("https://www.apache.org/licenses/LICENSE-2.0"),
        )
        .contact(poem_openapi::ContactObject::new().name("The operator of this server"))
        .server(poem_openapi::ServerObject::new("/").description("The server of this document"))
}

//! The routes. Each is a struct without state, so that the OpenAPI document can be made without a server; handlers get
//! what they need from the request.

mod attempts;
mod batch;
mod by_request;
mod create;
mod get;
mod health;
mod list;
mod simulate;
mod stuck;
mod submitter_actions;
mod submitters;
mod tx;
mod tx_actions;

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
    health::Health,
);

#[derive(Tags)]
pub(crate) enum Tag {
    /// Send transactions and follow them.
    Transactions,
    /// The addresses that send.
    Submitters,
    /// For whoever runs the server.
    Operations,
}

const DESCRIPTION: &str = "Gapless sends EVM transactions and never skips a nonce.

Post what you want to happen and get a `txId`; everything after that (nonce, signature, broadcast, rebroadcast, \
receipt, reorg) is the server's business. Every accepted request reaches `CONFIRMED`, `FAILED` or `CANCELLED`.

**Idempotency.** A request is named by its submitter and `requestId`. Sending it again, however often, gives the same \
`txId`: 202 the first time, 200 after that, 409 if the payload differs. After a time-out or any 5xx, send it again.

**Keys.** `Authorization: Bearer gpl_…`. A key has scopes, and may be for some submitters only: it is told of no others. \
Naming one of them is refused with 403; a transaction of theirs does not exist (404).

**Errors** are `application/problem+json`. Decide by `code`; it is stable. Any 4xx stored nothing.";

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
        health::Health,
    );
    OpenApiService::new(routes, "Gapless", env!("CARGO_PKG_VERSION"))
        .description(DESCRIPTION)
        .license(poem_openapi::LicenseObject::new("Apache-2.0").identifier("Apache-2.0"))
}

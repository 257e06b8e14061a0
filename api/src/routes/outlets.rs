//! `GET /api/v1/outlets`, for admins.

use poem::web::Data;
use poem_openapi::OpenApi;
use poem_openapi::payload::Json;

use super::Tag;
use crate::app::SharedApp;
use crate::auth::{Administer, Caller};
use crate::error::{Failure, OnRead};
use crate::wire::{Outlet, OutletList};

#[derive(Debug)]
pub(crate) struct Outlets;

#[OpenApi(tag = "Tag::Webhooks")]
impl Outlets {
    /// List outlets
    ///
    /// All consumers that workers deliver events to, of all keys, with the state of their deliveries.
    #[oai(path = "/api/v1/outlets", method = "get", operation_id = "listOutlets")]
    async fn list(
        &self,
        app: Data<&SharedApp>,
        _admin: Caller<Administer>,
    ) -> Result<Json<OutletList>, Failure<OnRead>> {
        let items = app.store.outlets().await?.into_iter().map(Outlet::from).collect();
        Ok(Json(OutletList { items }))
    }
}

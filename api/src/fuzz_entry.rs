//! What clients write, as functions that take any bytes. In no product build: for `fuzz/` and the tests that run the same.

use gapless::domain::RequestedTx;

use crate::error::ApiError;
use crate::wire::{BatchRequest, CreateTx, TxPayload, parse, redact_nonces};

/// The body of `POST /api/v1/tx` and of a batch: read strictly, checked, and told again with the same meaning.
pub fn read_request(bytes: &[u8]) {
    let batch = parse::<BatchRequest>(bytes).map(|batch| batch.items).unwrap_or_default();
    let items = batch.into_iter().filter_map(|item| item.0.ok());
    for request in parse::<CreateTx>(bytes).into_iter().chain(items) {
        let _ = redact_nonces(request.request_id.as_deref().unwrap_or_default());
        match RequestedTx::from(request.payload).validate() {
            Ok(payload) => {
                let told = RequestedTx::from(TxPayload::from(payload.clone()));
                assert_eq!(told.validate().as_ref(), Ok(&payload), "the canonical form means the same");
            }
            Err(invalid) => assert_eq!(ApiError::InvalidPayload(invalid).code(), "invalid_payload"),
        }
    }
}

//! Request parsers as functions of bytes, for `fuzz/` and its regression tests. Not part of product builds.

use gapless_domain::RequestedTx;

use crate::error::ApiError;
use crate::wire::{BatchRequest, CreateTx, TxPayload, parse};
use gapless_domain::redact_nonces;

/// Parses and validates the body of `POST /api/v1/tx` or of a batch, and checks that its canonical form is equivalent.
pub fn read_request(bytes: &[u8]) {
    let batch = parse::<BatchRequest>(bytes).map(|batch| batch.items).unwrap_or_default();
    let items = batch.into_iter().filter_map(|item| item.0.ok());
    match parse::<CreateTx>(bytes) {
        Ok(_) => assert!(!bytes.trim_ascii_start().starts_with(b"["), "an array is not an object"),
        Err(invalid) => assert!(!invalid.field.is_empty(), "a refusal names the field"),
    }
    for request in parse::<CreateTx>(bytes).into_iter().chain(items) {
        let _ = redact_nonces(request.request_id.as_deref().unwrap_or_default());
        match RequestedTx::from(request.payload).validate() {
            Ok(payload) => {
                let canonical = RequestedTx::from(TxPayload::from(payload.clone()));
                assert_eq!(canonical.validate().as_ref(), Ok(&payload), "the canonical form is equivalent");
            }
            Err(invalid) => assert_eq!(ApiError::InvalidPayload(invalid).code(), "invalid_payload"),
        }
    }
}

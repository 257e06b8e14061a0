//! RFC 9457 problem documents.

use poem_openapi::Object;
use poem_openapi::types::Example;
use uuid::Uuid;

/// An error. `code` is stable and meant for programs, `detail` is meant for people.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none, example)]
pub(crate) struct Problem {
    /// `urn:gapless:problem:` and the code.
    #[oai(rename = "type")]
    pub(crate) kind: String,
    /// The HTTP status in words.
    pub(crate) title: String,
    /// The HTTP status.
    pub(crate) status: u16,
    /// What is wrong with this request.
    pub(crate) detail: String,
    /// Stable: what a program decides by.
    pub(crate) code: String,
    /// With `invalid_payload`: the field to blame, for example `payload.args[1]`.
    pub(crate) field: Option<String>,
    /// With `request_id_conflict`: the transaction that has the requestId.
    pub(crate) tx_id: Option<Uuid>,
    /// With `not_ready`: what the server waits for.
    pub(crate) missing: Option<Vec<String>>,
}

impl Example for Problem {
    fn example() -> Self {
        Problem {
            kind: "urn:gapless:problem:invalid_payload".into(),
            title: "Unprocessable Entity".into(),
            status: 422,
            detail: "payload.args[1]: is out of range for uint256".into(),
            code: "invalid_payload".into(),
            field: Some("payload.args[1]".into()),
            tx_id: None,
            missing: None,
        }
    }
}

//! RFC 9457 problem documents.

use poem_openapi::Object;
use poem_openapi::types::Example;
use uuid::Uuid;

/// An error (RFC 9457). `code` is stable and machine-readable; `detail` is a text that may change.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none, example)]
pub(crate) struct Problem {
    /// `urn:gapless:problem:` followed by the code.
    #[oai(rename = "type")]
    pub(crate) kind: String,
    /// The HTTP reason phrase.
    pub(crate) title: String,
    /// The HTTP status.
    pub(crate) status: u16,
    /// Error message.
    pub(crate) detail: String,
    /// Stable error code.
    pub(crate) code: String,
    /// With `invalid_payload` and `invalid_request`: the invalid field, for example `payload.args[1]`, or the
    /// parameter; `body` if it is the body as a whole.
    pub(crate) field: Option<String>,
    /// With `request_id_conflict`: the transaction with this requestId. With `tx_final`: the transaction.
    pub(crate) tx_id: Option<Uuid>,
    /// With `not_ready`: what is unavailable.
    pub(crate) missing: Option<Vec<String>>,
    /// With `events_reset`: where reading can go on.
    pub(crate) cursor: Option<String>,
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
            cursor: None,
        }
    }
}

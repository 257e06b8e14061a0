//! One example of every error, for the examples and the list of codes in the OpenAPI document.

use std::time::Duration;

use gapless_domain::policy::{Breach, Call, Rule};
use gapless_domain::{Address, ChainId, InvalidIntent, Scope, SubmitterKey, TxId, TxState, U256};

use gapless_store::events::{EventCursor, ResetReason};

use super::ApiError;
use crate::wire::EXAMPLE_ID;

/// Within a status, the most frequent error first: it is the example of that status. A test compares the codes with
/// those in the source of `ApiError`, so that a new error cannot be missing here.
pub(crate) fn examples() -> Vec<ApiError> {
    let submitter = SubmitterKey { chain_id: ChainId(31337), address: Address::repeat_byte(0x11) };
    let tx_id = TxId(EXAMPLE_ID);
    vec![
        ApiError::invalid("payload.nonce", "unknown field `nonce`"),
        ApiError::InvalidPayload(InvalidIntent::new("payload.args[1]", "is out of range for uint256")),
        ApiError::Unauthorized,
        ApiError::ScopeMissing(Scope::TxWrite),
        ApiError::SubmitterNotAllowed(submitter),
        ApiError::AdminDisabled,
        ApiError::HostNotLocal,
        ApiError::OriginNotLocal,
        policy(Rule::Allow),
        policy(Rule::Deploy),
        policy(Rule::MaxValue),
        policy(Rule::MaxValuePerDay),
        ApiError::UnknownSubmitter(submitter),
        ApiError::UnknownChain(1),
        ApiError::UnknownTx,
        ApiError::WebhookNotFound,
        ApiError::UnknownRoute,
        ApiError::MethodNotAllowed,
        ApiError::BodyTooSlow,
        ApiError::RequestIdConflict { tx_id },
        ApiError::SubmitterProtected { reason: "its key was used externally".into() },
        ApiError::SubmitterLowLevel,
        ApiError::NotProtected,
        ApiError::ActionRefused("the transaction is not in flight".into()),
        ApiError::TxFinal { tx_id, state: TxState::Confirmed },
        ApiError::SimulationDisabled,
        ApiError::WebhookDisabled,
        ApiError::TooManyWebhooks { limit: 100 },
        ApiError::TooManyEvents { limit: 10_000 },
        ApiError::EventsReset {
            reason: ResetReason::Retention,
            cursor: EventCursor { epoch: "5f3a9c21".to_owned(), position: 120_000 },
        },
        ApiError::BodyTooLarge,
        ApiError::UnsupportedMediaType,
        ApiError::RateLimited { retry_after: Duration::from_secs(1) },
        ApiError::QueueFull { limit: 1_000 },
        ApiError::Internal,
        ApiError::DatabaseUnavailable,
        ApiError::NodeUnavailable,
        ApiError::Overloaded,
        ApiError::TooManyStreams,
        ApiError::WebhooksNotConfigured,
        ApiError::NotReady { missing: vec!["database".into()] },
    ]
}

fn policy(rule: Rule) -> ApiError {
    let breach = Breach {
        rule,
        to: Some(Address::repeat_byte(0x22)).filter(|_| rule != Rule::Deploy),
        call: Call::Plain,
        value: U256::from(2),
        limit: Some(U256::one()),
        spent: None,
    };
    ApiError::PolicyBroken(Box::new(breach))
}

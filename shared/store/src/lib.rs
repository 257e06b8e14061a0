//! All SQL, one file per concern; each statement is next to the function that runs it.
//!
//! A worker writes with `FencedWrite`s only. They are made from a `Lease` and applied behind the fence
//! (docs/adr/0002).

mod address;
mod api_key;
pub mod attempt;
mod blocks;
mod confirmed;
mod cursor;
mod diagnosis;
mod error;
pub mod events;
mod evidence;
mod external_nonce;
mod fence;
mod fenced;
mod fleet;
mod history;
mod inspect;
mod intake;
mod json_rpc;
mod lanes;
mod lease;
mod load;
mod mined;
pub mod notifier;
mod notify;
mod operation;
mod operator;
pub mod outlets;
mod pending;
mod policy_audit;
mod pool;
mod query;
mod queue;
mod receipt;
mod reservation;
mod reservation_lane;
mod row;
mod schema;
mod session;
mod startup;
mod submitters;
mod timeout_pool;
mod tx_request;
mod upkeep;
mod verify;
mod waiting;
mod wake;
pub mod webhooks;

pub use address::database_warnings;
pub use api_key::{ApiKeyRow, NewApiKey, RateLimit, RevokeOutcome};
pub use attempt::{Attempt, AttemptKind};
pub use blocks::ConfirmingBlocks;
pub use cursor::{Cursor, CursorWrite};
pub use diagnosis::DiagnosisView;
pub use error::StoreError;
pub use evidence::Evidence;
pub use external_nonce::{ExternalCause, ExternalNonces};
pub use fenced::{Applied, AskedBy, DoneAction, FencedWrite, MinedSend, Move, SentNote};
pub use fleet::{Beat, Peer, Work};
pub use history::{AttemptView, StateChange, TxHistory};
pub use inspect::{OLDEST_SERVER, ProgramRole, RoleFacts, ServerFacts, database_place};
pub use intake::{IntakeOutcome, NewIntent};
pub use json_rpc::{AttemptByHash, StartOutlook};
pub use lease::{Acquired, Announced, Lease, LeaseTag};
pub use load::{LaneRows, OpenIntent};
pub use notify::{Channel, Listener};
pub use operator::{
    AuditEntry, AuditId, OperatorOutcome, Request as OperatorRequest, SubmitterStatus, TakenBy,
};
pub use pending::{LateIntent, MAX_LATE, OperatorAction, PendingAction, PendingTxRequest, TxAction};
pub use policy_audit::{PolicyDecision, PolicyEntry, PolicyFilter, PolicyNote, SpentToday};
pub use pool::{Store, Timeouts};
pub use query::{TxFilter, TxView};
pub use queue::{BlockedFor, QueuedIntent};
pub use reservation::{AnswerOutcome, NewReservation, ReservationOutcome, ReservationOwner, ReservationView};
pub use reservation_lane::{ReservedNonce, WaitingReservation};
pub use schema::{ConnectedProgram, Contract, Migrated, Migrations, program_version};
pub use submitters::{BlockedView, QUEUE_DEPTH_CAP, SubmitterView};
pub use tx_request::{RequestNo, TxRequestEntry, TxRequestOutcome};
pub use upkeep::{Backlog, IdleSequence, Open};
pub use verify::{AuditedAttempt, AuditedCount, AuditedIntent, AuditedReservation, AuditedSubmitter};
#[doc(hidden)]
pub use waiting::WAITING;
pub use waiting::{PendingRequestView, TxWaiting};

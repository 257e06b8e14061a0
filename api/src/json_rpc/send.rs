//! `eth_sendTransaction`: the same create as `POST /api/v1/tx`, answered with the hash.
//!
//! 1. Everything that refuses a request is checked first: then nothing was stored.
//! 2. The intent is stored with the latest time at which it may get a nonce.
//! 3. The hash is the answer once it is committed with its signed bytes: from then on Gapless sends them until the intent is
//!    final. An error is the answer only if the row says that it failed or was cancelled. If neither is known in time, the
//!    answer says so. Absence of a row is no evidence: the insert may still be under way.

use std::time::Duration;

use futures::future::join_all;
use gapless_config::{FeesInCall, NonceInCall};
use gapless_domain::{ChainId, Nonce, Payload, SubmitterKey, TxId, TxState};
use gapless_store::{AttemptKind, IntakeOutcome, NewIntent, StartOutlook, StoreError};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use super::call::Call;
use super::failure::{RpcFailure, code};
use super::{Answer, Session, json};
use crate::error::ApiError;
use crate::intake::IntakeError;
use crate::routes::{accept, check_policy, count, validate};
use crate::wire::{AccessListEntry, CreateTx, TxError, TxPayload, TxType};

/// After the time of the intent: a worker ends it within this time. Together with `api.json_rpc.wait` less than the 10 s
/// after which libraries give up.
const GRACE: Duration = Duration::from_millis(1_500);
/// Pause between two reads while the database does not answer.
const READ_AGAIN: Duration = Duration::from_millis(200);

/// The transaction object. Other members are refused: what they ask for would not happen.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct TxCall {
    from: Option<String>,
    to: Option<String>,
    gas: Option<String>,
    gas_limit: Option<String>,
    gas_price: Option<String>,
    max_fee_per_gas: Option<String>,
    max_priority_fee_per_gas: Option<String>,
    value: Option<String>,
    nonce: Option<String>,
    data: Option<String>,
    input: Option<String>,
    chain_id: Option<String>,
    r#type: Option<String>,
    access_list: Option<Vec<AccessListEntry>>,
}

/// A checked request, ready to be stored.
pub(super) struct Prepared {
    intent: NewIntent,
    /// With an `Idempotency-Key`: what finds the transaction of an earlier call with it.
    named: Option<Named>,
    until: Instant,
}

struct Named {
    submitter: SubmitterKey,
    request_id: String,
    payload: Payload,
}

/// What may be stored, and under which id.
pub(super) struct Submitted {
    tx_id: TxId,
    named: Option<Named>,
    until: Instant,
    /// It is certain that it has no hash yet.
    is_new: bool,
}

impl Session<'_> {
    pub(super) async fn send(&self, call: &Call) -> Answer {
        let prepared = self.prepare(call, true).await?;
        let until = prepared.until;
        let (tx_id, submitter) = (prepared.intent.tx_id, prepared.intent.submitter);
        let outcome = tokio::time::timeout_at(until, self.app.intake.submit(prepared.intent)).await;
        let outcome = outcome.unwrap_or(Err(IntakeError::Unavailable));
        self.hash_of(submitted(tx_id, submitter, prepared.named, until, outcome)?).await
    }

    /// The sends of a batch: stored together, in their order.
    pub(super) async fn send_all(&self, calls: &[&Call]) -> Vec<Answer> {
        let is_alone = calls.len() == 1;
        let prepared = join_all(calls.iter().map(|call| self.prepare(call, is_alone))).await;
        let (mut rows, mut accepted) = (Vec::new(), Vec::new());
        for result in prepared {
            accepted.push(result.map(|prepared| {
                let Prepared { intent, named, until } = prepared;
                let ids = (intent.tx_id, intent.submitter);
                rows.push(intent);
                (ids, named, until)
            }));
        }
        let limit = Instant::now() + self.settings.wait + GRACE;
        let count = rows.len();
        let outcomes = tokio::time::timeout_at(limit, self.app.intake.submit_all(rows)).await;
        let mut outcomes =
            outcomes.unwrap_or_else(|_| vec![Err(IntakeError::Unavailable); count]).into_iter();
        let waiting = accepted.into_iter().map(|accepted| {
            let stored = accepted.and_then(|((tx_id, submitter), named, until)| {
                let outcome = outcomes.next().unwrap_or(Err(IntakeError::Failed));
                submitted(tx_id, submitter, named, until, outcome)
            });
            async move { self.hash_of(stored?).await }
        });
        let waiting: Vec<_> = waiting.collect();
        join_all(waiting).await
    }

    /// Everything that can refuse it before it is stored.
    async fn prepare(&self, call: &Call, may_have_key: bool) -> Result<Prepared, RpcFailure> {
        let until = Instant::now() + self.settings.wait + GRACE;
        let caller = self.write.as_ref().map_err(RpcFailure::from)?;
        let tx = read(call)?;
        let key = self.idempotency_key.as_ref().map_err(Clone::clone)?;
        let request_id = match key {
            Some(_) if !may_have_key => {
                let message = "an Idempotency-Key belongs to one transaction: send them in separate requests";
                return Err(RpcFailure::new(code::INVALID_PARAMS, message));
            }
            Some(key) => key.clone(),
            // Two calls are two transactions, however equal they are.
            None => format!("rpc-{}", Uuid::now_v7()),
        };
        let expected_nonce = match self.settings.nonce {
            NonceInCall::Check => tx.nonce.as_deref().map(nonce).transpose()?,
            NonceInCall::Ignore => None,
        };
        let request = tx.into_request(self.chain_id, request_id, self.settings.fees)?;
        let mut intent = validate(self.app, caller, request, None, self.trace)?;
        intent.start_within = Some(self.settings.wait);
        intent.expected_nonce = expected_nonce;
        let checked = async {
            check_policy(self.app, &intent).await?;
            self.check_outlook(&intent, key.is_some()).await
        };
        match tokio::time::timeout_at(until, checked).await {
            Ok(checked) => checked?,
            Err(_) => return Err(ApiError::DatabaseUnavailable.into()),
        }
        let named = key.as_ref().map(|_| Named {
            submitter: intent.submitter,
            request_id: intent.request_id.clone(),
            payload: intent.payload.clone(),
        });
        Ok(Prepared { intent, named, until })
    }

    /// Refuses what would probably wait until its time is over, before it is stored. A request that was accepted before
    /// passes: it gets the same answer.
    async fn check_outlook(&self, intent: &NewIntent, is_named: bool) -> Result<(), RpcFailure> {
        let StartOutlook::Late { waiting, window } = self.app.outlooks.of(intent.submitter).await? else {
            return Ok(());
        };
        if is_named {
            let known = self.app.store.get_tx_by_request(intent.submitter, &intent.request_id).await;
            if known.map_err(ApiError::from)?.is_some() {
                return Ok(());
            }
        }
        let message = format!(
            "the submitter is busy: {waiting} transactions wait, and at most {window} are open at a time \
             (nonce.max_in_flight). Nothing was stored"
        );
        let data = serde_json::json!({ "code": "submitter_busy" });
        Err(RpcFailure { code: code::LIMIT_EXCEEDED, message, data: Some(data) })
    }

    async fn hash_of(&self, submitted: Submitted) -> Answer {
        let Submitted { mut tx_id, named, until, mut is_new } = submitted;
        loop {
            // Before reading the row, so that no later change is missed.
            let waiting = self.app.starts.register(tx_id);
            let undecided = match is_new {
                true => Undecided::Stored,
                false => match tokio::time::timeout_at(until, self.outcome(tx_id)).await {
                    Ok(Ok(Outcome::Decided(answer))) => return *answer,
                    Ok(Ok(Outcome::Undecided(why))) => why,
                    Ok(Err(error)) => {
                        tracing::debug!(%error, tx.id = %tx_id, "cannot read a transaction yet");
                        Undecided::Unread
                    }
                    Err(_) => Undecided::Unread,
                },
            };
            is_new = false;
            if let (Undecided::Missing, Some(named)) = (undecided, &named)
                && let Ok(Some(known)) = tokio::time::timeout_at(until, self.accepted_before(named)).await
            {
                // The transaction of an earlier call with the same key.
                tx_id = known?;
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = undecided.text();
                tracing::warn!(tx.id = %tx_id, reason = why, "a client was answered that the outcome is unknown");
                return Err(RpcFailure::unknown(
                    tx_id,
                    named.as_ref().map(|named| named.request_id.as_str()),
                    why,
                ));
            }
            match undecided {
                Undecided::Stored => {
                    if let Some(hash) = waiting.wait(left).await {
                        return json(&hash);
                    }
                }
                // Nobody announces a row that appears late, or a database that answers again.
                Undecided::Missing | Undecided::Unread => tokio::time::sleep(READ_AGAIN.min(left)).await,
            }
        }
    }

    /// `None`: not known yet.
    async fn accepted_before(&self, named: &Named) -> Option<Result<TxId, RpcFailure>> {
        let found = self.app.store.get_tx_by_request(named.submitter, &named.request_id).await;
        let view = found.ok().flatten()?;
        Some(match view.payload == named.payload {
            true => Ok(view.tx_id),
            false => Err(ApiError::RequestIdConflict { tx_id: view.tx_id }.into()),
        })
    }

    async fn outcome(&self, tx_id: TxId) -> Result<Outcome, StoreError> {
        let store = &self.app.store;
        let hash = match store.first_hash(tx_id).await? {
            None => return Ok(Outcome::Undecided(Undecided::Missing)),
            Some((TxState::Failed | TxState::Cancelled, hash)) => hash,
            Some((_, Some(hash))) => return Ok(Outcome::decided(json(&hash))),
            Some((_, None)) => return Ok(Outcome::Undecided(Undecided::Stored)),
        };
        let Some(view) = store.get_tx(tx_id).await? else {
            return Ok(Outcome::Undecided(Undecided::Missing));
        };
        // Mined and reverted: its receipt says so.
        if let (Some(receipt), Some(hash)) = (&view.receipt, hash) {
            let mined = store.attempt_by_hash(self.chain_id, receipt.tx_hash).await?;
            if mined.is_some_and(|mined| mined.kind != AttemptKind::Placeholder) {
                return Ok(Outcome::decided(json(&hash)));
            }
        }
        let error = view.last_error.as_ref().map(|error| TxError::new(error, &view.payload.errors));
        let failure = RpcFailure::ended(tx_id, error.as_ref(), view.state.as_str());
        Ok(Outcome::decided(Err(failure)))
    }
}

fn submitted(
    tx_id: TxId,
    submitter: SubmitterKey,
    named: Option<Named>,
    until: Instant,
    outcome: Result<IntakeOutcome, IntakeError>,
) -> Result<Submitted, RpcFailure> {
    if let Err(IntakeError::Unavailable | IntakeError::Failed) = outcome {
        // It may be stored. A later read finds out.
        return Ok(Submitted { tx_id, named, until, is_new: false });
    }
    let accepted = accept(submitter, outcome.map_err(ApiError::from));
    count(&accepted);
    let accepted = accepted?;
    Ok(Submitted { tx_id: accepted.tx_id, named, until, is_new: accepted.new })
}

enum Outcome {
    Decided(Box<Answer>),
    Undecided(Undecided),
}

impl Outcome {
    fn decided(answer: Answer) -> Outcome {
        Outcome::Decided(Box::new(answer))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Undecided {
    Stored,
    Missing,
    Unread,
}

impl Undecided {
    fn text(self) -> &'static str {
        match self {
            Undecided::Stored => "it was stored, and no worker has decided about it yet",
            Undecided::Missing => "the database did not confirm that it was stored",
            Undecided::Unread => "the database does not answer",
        }
    }
}

fn read(call: &Call) -> Result<TxCall, RpcFailure> {
    let params: Vec<Value> = call.params()?;
    let [tx] = params.as_slice() else {
        return Err(invalid("params must be an array with one transaction object"));
    };
    let tx: TxCall =
        TxCall::deserialize(tx).map_err(|error| invalid(&format!("the transaction object: {error}")))?;
    Ok(tx)
}

fn nonce(text: &str) -> Result<Nonce, RpcFailure> {
    let nonce = quantity("nonce", text)?;
    i64::try_from(nonce).map_err(|_| invalid("nonce: no account has so many transactions"))?;
    Ok(Nonce(nonce))
}

fn quantity(name: &str, text: &str) -> Result<u64, RpcFailure> {
    let digits = text.strip_prefix("0x").unwrap_or_default();
    u64::from_str_radix(digits, 16)
        .map_err(|_| invalid(&format!("{name}: must be a 0x quantity of at most 64 bits")))
}

fn invalid(message: &str) -> RpcFailure {
    RpcFailure::new(code::INVALID_PARAMS, message)
}

impl TxCall {
    fn into_request(
        self,
        chain_id: ChainId,
        request_id: String,
        fees: FeesInCall,
    ) -> Result<CreateTx, RpcFailure> {
        let submitter =
            self.from.ok_or_else(|| invalid("from: is required; eth_accounts lists what is possible"))?;
        if let Some(text) = &self.chain_id
            && quantity("chainId", text)? != chain_id.0
        {
            return Err(invalid(&format!("chainId: this endpoint sends to chain {chain_id}")));
        }
        let data = match (self.data, self.input) {
            (Some(data), Some(input)) if !data.eq_ignore_ascii_case(&input) => {
                return Err(invalid("data and input differ"));
            }
            (data, input) => input.or(data),
        };
        let is_legacy = match self.r#type.as_deref() {
            None => false,
            Some(text) => match quantity("type", text)? {
                0 => true,
                // The price decides between them.
                1 | 2 => false,
                other => {
                    return Err(invalid(&format!("type: transactions of type {other} are not supported")));
                }
            },
        };
        let used = |price: Option<String>| price.filter(|_| fees == FeesInCall::Use);
        Ok(CreateTx {
            chain_id: Some(chain_id.0),
            submitter,
            request_id: Some(request_id),
            payload: TxPayload {
                to: self.to,
                value: self.value,
                data,
                gas_limit: self.gas.or(self.gas_limit),
                kind: is_legacy.then_some(TxType::Legacy),
                gas_price: used(self.gas_price),
                max_fee_per_gas: used(self.max_fee_per_gas),
                max_priority_fee_per_gas: used(self.max_priority_fee_per_gas),
                access_list: self.access_list.filter(|list| !list.is_empty()),
                ..TxPayload::default()
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(tx: Value, fees: FeesInCall) -> Result<TxPayload, String> {
        let tx = TxCall::deserialize(&tx).map_err(|error| error.to_string())?;
        let request = tx.into_request(ChainId(31337), "r".into(), fees);
        request.map(|request| request.payload).map_err(|failure| failure.message)
    }

    #[test]
    fn fields_are_those_of_the_request() {
        let tx = json!({"from": "0x01", "to": null, "gas": "0x5208", "value": "0x1", "input": "0xAA", "data": "0xaa",
            "nonce": "0x5", "chainId": "0x7a69", "type": "0x2", "accessList": [], "maxFeePerGas": "0x9"});
        let payload = request(tx.clone(), FeesInCall::Ignore).unwrap();
        assert_eq!((payload.gas_limit.as_deref(), payload.data.as_deref()), (Some("0x5208"), Some("0xAA")));
        assert_eq!((payload.max_fee_per_gas, payload.to), (None, None));
        assert_eq!(request(tx, FeesInCall::Use).unwrap().max_fee_per_gas.as_deref(), Some("0x9"));
    }

    #[test]
    fn a_nonce_beyond_the_range_of_the_database_is_refused() {
        assert_eq!(nonce("0x5").unwrap(), Nonce(5));
        assert!(nonce("0x7fffffffffffffff").is_ok());
        for bad in ["0x8000000000000000", "0xffffffffffffffff", "0x10000000000000000", "5", "", "0x"] {
            assert_eq!(nonce(bad).unwrap_err().code, code::INVALID_PARAMS, "{bad}");
        }
    }

    #[test]
    fn what_would_not_happen_is_refused() {
        for (tx, part) in [
            (json!({"to": "0x01"}), "from: is required"),
            (json!({"from": "0x01", "chainId": "0x1"}), "sends to chain 31337"),
            (json!({"from": "0x01", "data": "0x01", "input": "0x02"}), "differ"),
            (json!({"from": "0x01", "type": "0x3"}), "type 3"),
            (json!({"from": "0x01", "blobVersionedHashes": []}), "unknown field"),
            (json!({"from": "0x01", "type": "2"}), "quantity"),
        ] {
            let message = request(tx.clone(), FeesInCall::Ignore).unwrap_err();
            assert!(message.contains(part), "{tx}: {message}");
        }
    }
}

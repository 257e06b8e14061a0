//! Reads: passed on to the nodes, and completed with what only our rows know.
//!
//! A hash that a client got may never be mined: a replacement has another one. Our rows know all hashes of an intent, so
//! that each of them leads to the mined transaction. The placeholder of a cancelled intent is the exception: its receipt
//! would read as success.

use std::time::Duration;

use gapless_domain::hex_text::parse_address_any_case;
use gapless_domain::{H256, SubmitterKey, TxId};
use gapless_store::{AttemptByHash, AttemptKind, TxView};
use poem_openapi::types::ToJSON;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::call::Call;
use super::failure::{RpcFailure, code};
use super::methods::Work;
use super::{Answer, Session, json, tx_object};
use crate::error::ApiError;
use crate::routes::tx_with_confirmations;

const BY_HASH: &str = "eth_getTransactionByHash";
const RECEIPT: &str = "eth_getTransactionReceipt";
const COUNT: &str = "eth_getTransactionCount";
/// Time for a read, with its time in a queue.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// Larger results are refused: an API answers many clients.
const MAX_RESULT_BYTES: usize = 16 << 20;
/// Accounts in one answer.
const MAX_ACCOUNTS: u32 = 1_000;

/// An intent of the caller and the attempt whose hash was asked for.
struct Known {
    attempt: AttemptByHash,
    view: TxView,
    /// The hash under which it was mined, unless by a placeholder.
    mined_hash: Option<H256>,
}

impl Known {
    /// It may still be mined.
    fn is_pending(&self) -> bool {
        !self.view.state.is_terminal() && self.view.receipt.is_none() && !self.attempt.displaced
    }
}

impl Session<'_> {
    pub(super) async fn pass_on(
        &self,
        method: &'static str,
        work: Work,
        params: Option<&RawValue>,
    ) -> Answer {
        let node = match self.app.nodes.get(self.chain_id).await {
            Err(ApiError::SimulationDisabled) => {
                let message = format!("this API has no node of chain {} (rpc.urls)", self.chain_id);
                return Err(RpcFailure::new(code::METHOD_NOT_FOUND, message));
            }
            found => found?,
        };
        if let Some(params) = params {
            check_params(params)?;
        }
        let is_execution = work == Work::Execution;
        let asked = node.client.pass_on(method, params, is_execution);
        let Ok(reply) = tokio::time::timeout(READ_TIMEOUT, asked).await else {
            return Err(RpcFailure::new(
                code::INTERNAL,
                "no node answered in time; the call may be repeated",
            ));
        };
        match reply {
            Ok(Ok(result)) if result.get().len() > MAX_RESULT_BYTES => {
                let limit = MAX_RESULT_BYTES >> 20;
                let message =
                    format!("the answer is larger than {limit} MiB: ask for less, such as fewer blocks");
                Err(RpcFailure::new(code::LIMIT_EXCEEDED, message))
            }
            Ok(Ok(result)) => Ok(result),
            Ok(Err(refused)) => {
                Err(RpcFailure { code: refused.code, message: refused.message, data: refused.data })
            }
            Err(error) => {
                tracing::warn!(chain.id = self.chain_id.0, %error, "a read was not answered");
                let message = "no node of this chain answered; the call may be repeated";
                Err(RpcFailure::new(code::INTERNAL, message))
            }
        }
    }

    pub(super) async fn accounts(&self) -> Answer {
        let submitters = match (&self.read, &self.write) {
            (Ok(caller), _) => caller.submitters(),
            (_, Ok(caller)) => caller.submitters(),
            (Err(error), _) => return Err(error.into()),
        };
        let chain_id = Some(self.chain_id);
        let listed =
            self.app.store.list_submitters(chain_id, submitters.as_deref(), None, MAX_ACCOUNTS).await;
        let listed = listed.map_err(ApiError::from)?;
        json(&listed.iter().map(|view| view.key.address_text()).collect::<Vec<_>>())
    }

    pub(super) async fn transaction_by_hash(&self, call: &Call) -> Answer {
        self.reader()?;
        let hash = hash_param(call)?;
        let (from_node, known) = tokio::join!(self.ask(BY_HASH, hash), self.known(hash));
        let from_node = from_node?;
        let Some(known) = known? else { return json(&from_node) };
        if known.attempt.kind == AttemptKind::Placeholder || is_mined(&from_node) {
            return json(&from_node);
        }
        if let Some(mined) = known.mined_hash.filter(|mined| *mined != hash)
            && let Value::Object(tx) = self.ask(BY_HASH, mined).await?
        {
            return json(&tx_object::with_hash(tx, hash));
        }
        if known.is_pending() {
            return json(&tx_object::pending(
                known.view.submitter,
                &known.view.payload,
                hash,
                &known.attempt,
            ));
        }
        json(&from_node)
    }

    pub(super) async fn receipt(&self, call: &Call) -> Answer {
        self.reader()?;
        let hash = hash_param(call)?;
        let (from_node, known) = tokio::join!(self.ask(RECEIPT, hash), self.known(hash));
        let from_node = from_node?;
        if !from_node.is_null() {
            return json(&from_node);
        }
        match known?.and_then(|known| known.mined_hash).filter(|mined| *mined != hash) {
            Some(mined) => json(&self.ask(RECEIPT, mined).await?),
            None => json(&Value::Null),
        }
    }

    /// For `pending`, the nonces that are assigned count, whether or not a node has their transactions yet.
    pub(super) async fn transaction_count(&self, call: &Call) -> Answer {
        let caller = self.reader()?;
        let params: Vec<Value> = call.params()?;
        let from_node = self.pass_on(COUNT, Work::Read, call.params.as_deref()).await?;
        let address = params.first().and_then(Value::as_str).map(parse_address_any_case);
        let (Some(Ok(address)), Some("pending")) = (address, params.get(1).and_then(Value::as_str)) else {
            return Ok(from_node);
        };
        let key = SubmitterKey { chain_id: self.chain_id, address };
        if caller.own(key).is_err() {
            return Ok(from_node);
        }
        let own = self.app.store.next_nonce(key).await.map_err(ApiError::from)?;
        let text: String = serde_json::from_str(from_node.get()).unwrap_or_default();
        let count = u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        match (own, count) {
            (Some(own), Some(count)) if own.0 > count => json(&format!("{:#x}", own.0)),
            _ => Ok(from_node),
        }
    }

    /// The transaction as `GET /api/v1/tx/{txId}` shows it, by its id or any of its hashes.
    pub(super) async fn gapless_transaction(&self, call: &Call) -> Answer {
        let caller = self.reader()?;
        let params: Vec<String> = call.params()?;
        let text = params.first().map(String::as_str).unwrap_or_default();
        let view = match text.parse::<TxId>() {
            Ok(tx_id) => {
                let found = self.app.store.get_tx(tx_id).await.map_err(ApiError::from)?;
                match caller.own_tx(found) {
                    Ok(view) => Some(view),
                    Err(ApiError::UnknownTx) => None,
                    Err(error) => return Err(error.into()),
                }
            }
            Err(_) => self.known(hash_param(call)?).await?.map(|known| known.view),
        };
        match view {
            Some(view) => {
                let tx = tx_with_confirmations(self.app, view, None).await?;
                json(&tx.to_json())
            }
            None => json(&Value::Null),
        }
    }

    /// `None`: no attempt, or not one of the caller's.
    async fn known(&self, hash: H256) -> Result<Option<Known>, RpcFailure> {
        let caller = self.reader()?;
        let store = &self.app.store;
        let found = store.attempt_by_hash(self.chain_id, hash).await.map_err(ApiError::from)?;
        let Some(attempt) = found else { return Ok(None) };
        let view = store.get_tx(attempt.tx_id).await.map_err(ApiError::from)?;
        let Ok(view) = caller.own_tx(view) else { return Ok(None) };
        let mined_hash = match view.receipt.as_ref().map(|receipt| receipt.tx_hash) {
            Some(mined) if attempt.kind != AttemptKind::Placeholder => {
                let found = store.attempt_by_hash(self.chain_id, mined).await.map_err(ApiError::from)?;
                found.filter(|found| found.kind != AttemptKind::Placeholder).map(|_| mined)
            }
            _ => None,
        };
        Ok(Some(Known { attempt, view, mined_hash }))
    }

    async fn ask(&self, method: &'static str, hash: H256) -> Result<Value, RpcFailure> {
        let params = json(&[hash])?;
        let result = self.pass_on(method, Work::Read, Some(&params)).await?;
        serde_json::from_str(result.get()).map_err(|_| RpcFailure::from(&ApiError::Internal))
    }
}

/// An array, not nested deeper than the parser allows: calls of several clients are one batch for a node, and a node that
/// cannot read one of them refuses all.
fn check_params(params: &RawValue) -> Result<(), RpcFailure> {
    match serde_json::from_str::<Vec<Value>>(params.get()) {
        Ok(_) => Ok(()),
        Err(error) => Err(RpcFailure::new(code::INVALID_PARAMS, format!("params must be an array: {error}"))),
    }
}

fn is_mined(tx: &Value) -> bool {
    let is_object: Option<&Map<String, Value>> = tx.as_object();
    is_object.is_some_and(|tx| tx.get("blockHash").is_some_and(|hash| !hash.is_null()))
}

fn hash_param(call: &Call) -> Result<H256, RpcFailure> {
    let params: Vec<Value> = call.params()?;
    let text = params.first().and_then(Value::as_str).unwrap_or_default();
    let digits = text.strip_prefix("0x").filter(|digits| digits.len() == 64);
    let parsed = digits.and_then(|digits| digits.parse().ok());
    parsed.ok_or_else(|| {
        let message = "the first parameter must be a transaction hash: 0x and 64 hex digits";
        RpcFailure::new(code::INVALID_PARAMS, message)
    })
}

//! The Ethereum JSON-RPC endpoint, `POST /rpc/{chainId}`: an Ethereum library sends through Gapless by changing a URL.
//!
//! `eth_sendTransaction` is the same create as `POST /api/v1/tx` (`send`). Reads go to the chain's nodes, except what only
//! our rows know: hashes of replaced transactions, and transactions that no node has yet (`lookup`). An error never hides
//! an accepted transaction, and no code after acceptance is one that libraries repeat (`failure`, docs/adr/0046).

mod call;
mod failure;
mod lookup;
mod methods;
mod outlook;
mod path_key;
mod send;
mod tx_object;

use futures::future::join_all;
use gapless_config::JsonRpc;
use gapless_domain::ChainId;
use gapless_telemetry::TraceContext;
use gapless_telemetry::metrics::JSON_RPC_CALLS_TOTAL;
use poem::http::{Method, StatusCode, header};
use poem::web::Path;
use poem::{IntoResponse, Request, Response, handler};
use poem_openapi::OperationId;
use serde_json::value::RawValue;

use self::call::{Call, Parsed};
use self::failure::{RpcFailure, as_rpc_error, code};
use self::methods::{Method as RpcMethod, Own};
pub(crate) use self::outlook::Outlooks;
pub(crate) use self::path_key::PathKey;
use crate::app::{App, SharedApp};
use crate::auth::{Caller, Read, Write};
use crate::error::ApiError;

const OPERATION: OperationId = OperationId("jsonRpc");
const PREFIX: &str = "/rpc/";

/// Reads of one batch that run at the same time.
const READS_AT_ONCE: usize = 16;
/// Size of all answers of a batch.
const MAX_BATCH_BYTES: usize = 32 << 20;

type Answer = Result<Box<RawValue>, RpcFailure>;
/// With the id of the call; without one if it could not be read.
type Answered = (Option<Box<RawValue>>, Answer);

/// Whether a path belongs to this endpoint.
pub(crate) fn is_rpc(path: &str) -> bool {
    path.starts_with(PREFIX)
}

/// What all calls of a request have in common.
struct Session<'a> {
    app: &'a App,
    settings: &'a JsonRpc,
    chain_id: ChainId,
    /// An error: the key lacks the scope.
    read: Result<Caller<Read>, ApiError>,
    write: Result<Caller<Write>, ApiError>,
    trace: &'a TraceContext,
    /// An error: it is not a text. Ignoring it would make two transactions of one.
    idempotency_key: Result<Option<String>, RpcFailure>,
}

#[handler]
pub(crate) async fn endpoint(
    Path(chain_id): Path<String>,
    request: &Request,
    body: Vec<u8>,
) -> Result<Response, poem::Error> {
    // Both are set by the server before any route runs.
    let app = request.data::<SharedApp>().ok_or(ApiError::Internal)?;
    let trace = request.data::<TraceContext>().ok_or(ApiError::Internal)?;
    let number = chain_id.parse().map_err(|_| ApiError::invalid("chainId", "must be a decimal number"))?;
    let session = Session {
        app,
        settings: &app.json_rpc,
        chain_id: app.chains.pick(Some(number))?,
        read: Caller::of(request),
        write: Caller::of(request),
        trace,
        idempotency_key: idempotency_key(request),
    };
    let text = match call::parse(&body, app.json_rpc.max_batch) {
        Parsed::Single(call) => call::response(&session.answer(call).await),
        Parsed::Batch(calls) => call::batch_response(&session.answer_all(calls).await),
        Parsed::Refused(failure) => call::response(&(None, Err(failure))),
    };
    let mut response = Response::builder().status(StatusCode::OK).content_type("application/json").body(text);
    response.set_data(OPERATION);
    Ok(response)
}

/// `Allow` for a request with another method.
pub(crate) fn allow_post(path: &str, response: &mut Response) {
    if is_rpc(path) && response.status() == StatusCode::METHOD_NOT_ALLOWED {
        let allow = header::HeaderValue::from_str(Method::POST.as_str());
        if let Ok(allow) = allow {
            response.headers_mut().insert(header::ALLOW, allow);
        }
    }
}

/// Turns the response of a middleware or the framework into an error of JSON-RPC; its status stays.
pub(crate) async fn as_rpc_response(response: Response, key_in_path: bool) -> Response {
    let (status, retry_after) = (response.status(), response.headers().get(header::RETRY_AFTER).cloned());
    let problem = response.into_body().into_bytes().await.unwrap_or_default();
    let failure = as_rpc_error(status, &problem, key_in_path);
    let mut response =
        call::response(&(None, Err(failure))).with_content_type("application/json").into_response();
    response.set_status(status);
    if let Some(retry_after) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, retry_after);
    }
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    }
    response.set_data(OPERATION);
    response
}

impl Session<'_> {
    async fn answer(&self, call: Result<Call, RpcFailure>) -> Answered {
        match call {
            Ok(call) => {
                let method = RpcMethod::of(&call.method);
                let answer = self.dispatch(&method, &call).await;
                counted(&method, call.id, answer)
            }
            Err(failure) => (None, Err(failure)),
        }
    }

    /// In the order of the calls. Sends are stored together, in their order; reads are limited in number and size.
    async fn answer_all(&self, calls: Vec<Result<Call, RpcFailure>>) -> Vec<Answered> {
        self.charge(calls.len() - 1);
        let is_send =
            |call: &Result<Call, RpcFailure>| call.as_ref().is_ok_and(|call| call.method == methods::SEND);
        let sends: Vec<&Call> = calls.iter().filter(|call| is_send(call)).flatten().collect();
        let reads: Vec<&Result<Call, RpcFailure>> = calls.iter().filter(|call| !is_send(call)).collect();
        let (sent, read) = tokio::join!(self.send_all(&sends), self.read_all(&reads));
        let (mut sent, mut read) = (sent.into_iter(), read.into_iter());
        let answers: Vec<Option<Answer>> =
            calls.iter().map(|call| if is_send(call) { sent.next() } else { read.next() }).collect();
        let answered = calls.into_iter().zip(answers).map(|(call, answer)| {
            // Every call is in one of the two lists.
            let answer = answer.unwrap_or_else(|| Err(RpcFailure::from(&ApiError::Internal)));
            match call {
                Ok(call) => counted(&RpcMethod::of(&call.method), call.id, answer),
                Err(_) => (None, answer),
            }
        });
        answered.collect()
    }

    async fn read_all(&self, calls: &[&Result<Call, RpcFailure>]) -> Vec<Answer> {
        let (mut size, mut answers) = (0, Vec::new());
        for some in calls.chunks(READS_AT_ONCE) {
            let reads = some.iter().map(|call| async move {
                match call {
                    Ok(call) => self.dispatch(&RpcMethod::of(&call.method), call).await,
                    Err(failure) => Err(failure.clone()),
                }
            });
            for answer in join_all(reads).await {
                size += answer.as_ref().map_or(0, |result| result.get().len());
                answers.push(if size > MAX_BATCH_BYTES { Err(too_large()) } else { answer });
            }
        }
        answers
    }

    async fn dispatch(&self, method: &RpcMethod, call: &Call) -> Answer {
        match method {
            RpcMethod::Own(own) => match own {
                Own::ChainId => json(&format!("{:#x}", self.chain_id.0)),
                Own::NetVersion => json(&self.chain_id.0.to_string()),
                Own::ClientVersion => json(&concat!("Gapless/", env!("CARGO_PKG_VERSION"))),
                Own::Accounts => self.accounts().await,
                Own::SendTransaction => self.send(call).await,
                Own::TransactionByHash => self.transaction_by_hash(call).await,
                Own::TransactionReceipt => self.receipt(call).await,
                Own::TransactionCount => self.transaction_count(call).await,
                Own::GaplessTransaction => self.gapless_transaction(call).await,
            },
            RpcMethod::Passed(name, work) => {
                self.reader()?;
                self.pass_on(name, *work, call.params.as_deref()).await
            }
            RpcMethod::Refused(reason) => Err(RpcFailure::new(
                code::METHOD_NOT_FOUND,
                format!("{}: {reason}", call::shown(&call.method)),
            )),
        }
    }

    fn reader(&self) -> Result<&Caller<Read>, RpcFailure> {
        self.read.as_ref().map_err(RpcFailure::from)
    }

    /// A batch costs as many requests as it has calls.
    fn charge(&self, more: usize) {
        if let Ok(caller) = &self.read {
            caller.charge(&self.app.authenticator, more);
        } else if let Ok(caller) = &self.write {
            caller.charge(&self.app.authenticator, more);
        }
    }
}

fn counted(method: &RpcMethod, id: Box<RawValue>, answer: Answer) -> Answered {
    let result = if answer.is_ok() { "ok" } else { "error" };
    metrics::counter!(JSON_RPC_CALLS_TOTAL, "method" => method.label(), "result" => result).increment(1);
    (Some(id), answer)
}

fn too_large() -> RpcFailure {
    let limit = MAX_BATCH_BYTES >> 20;
    let message = format!("the answers of this batch are larger than {limit} MiB: ask for less");
    RpcFailure::new(code::LIMIT_EXCEEDED, message)
}

/// The header must be one readable text.
fn idempotency_key(request: &Request) -> Result<Option<String>, RpcFailure> {
    let mut values = request.headers().get_all("Idempotency-Key").iter();
    let Some(first) = values.next() else { return Ok(None) };
    match (first.to_str(), values.next()) {
        (Ok(text), None) => Ok(Some(text.to_owned())),
        _ => {
            let message = "Idempotency-Key: must be one text of visible ASCII characters";
            Err(RpcFailure::new(code::INVALID_PARAMS, message))
        }
    }
}

fn json<T: serde::Serialize + ?Sized>(value: &T) -> Answer {
    serde_json::value::to_raw_value(value).map_err(|_| RpcFailure::from(&ApiError::Internal))
}

//! One submitter of the reference worker: claim the lease, assign one nonce, send, wait until it is final, repeat.
//! All state is read from the database in each step.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Address, Bytes, TransactionRequest, U256};
use ethers_core::utils::keccak256;
use gapless_testkit::Submitter;
use serde_json::{Value, json};
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::pause::{After, pause_after};
use super::{FenceStrategy, LaneContext};

const STEP_INTERVAL: Duration = Duration::from_millis(100);
/// Enough for a transfer with a little data.
const GAS: u64 = 60_000;

#[derive(Clone, Copy, Debug)]
struct Lease {
    lease_id: Uuid,
    token: i64,
    renewed: Instant,
}

/// A signed transaction of an intent.
#[derive(Debug)]
struct Draft {
    raw: Bytes,
    hash: Vec<u8>,
    nonce: i64,
}

#[derive(Debug)]
pub(super) struct Lane {
    context: LaneContext,
    submitter: Submitter,
    /// The submitter as in the database.
    address: Vec<u8>,
    lease: Option<Lease>,
    /// The result of the last write is unknown.
    in_doubt: bool,
    /// Number of nonce assignments started.
    assigned: usize,
}

impl Lane {
    pub(super) fn new(context: LaneContext, submitter: Submitter) -> Lane {
        let address = submitter.bytes();
        Lane { context, submitter, address, lease: None, in_doubt: false, assigned: 0 }
    }

    pub(super) async fn work(mut self) {
        loop {
            if let Err(error) = self.step().await {
                self.in_doubt = true;
                tracing::info!(submitter = self.submitter.text(), error = %format!("{error:#}"), "step failed, retrying");
            }
            tokio::time::sleep(STEP_INTERVAL).await;
        }
    }

    async fn step(&mut self) -> Result<()> {
        let Some(lease) = self.hold_lease().await? else { return Ok(()) };
        if self.in_doubt {
            // Locking the lease row waits for the uncertain write to finish; later reads see its result.
            let mut tx = self.context.db.begin().await?;
            let passed = self.context.strategy.pass(&mut tx, &self.address, lease.lease_id).await?;
            tx.commit().await?;
            self.in_doubt = false;
            if !passed {
                self.lease = None;
                return Ok(());
            }
        }
        match self.oldest_open().await? {
            Some(tx_id) => self.follow_up(lease, tx_id).await,
            None => self.assign_nonce(lease).await,
        }
    }

    /// Renews its lease, or claims an expired one. With `FenceStrategy::Unchecked` a lease never expires.
    async fn hold_lease(&mut self) -> Result<Option<Lease>> {
        let seconds = self.context.lease.as_secs_f64();
        if let Some(lease) = self.lease {
            if lease.renewed.elapsed() < self.context.lease / 4 {
                return Ok(Some(lease));
            }
            let started = Instant::now();
            let renewed = sqlx::query(
                "UPDATE submitter_lease SET expires_at = clock_timestamp() + make_interval(secs => $3)
                 WHERE submitter = $1 AND lease_id = $2",
            );
            let renewed =
                renewed.bind(&self.address).bind(lease.lease_id).bind(seconds).execute(&self.context.db);
            let is_ours =
                renewed.await?.rows_affected() == 1 || self.context.strategy == FenceStrategy::Unchecked;
            self.lease = is_ours.then_some(Lease { renewed: started, ..lease });
            return Ok(self.lease);
        }
        let renewed = Instant::now();
        let claimed: Option<(Uuid, i64)> = sqlx::query_as(
            "UPDATE submitter_lease
             SET owner = $2, fencing_token = fencing_token + 1, lease_id = gen_random_uuid(),
                 expires_at = clock_timestamp() + make_interval(secs => $3)
             WHERE submitter = $1 AND expires_at < clock_timestamp()
             RETURNING lease_id, fencing_token",
        )
        .bind(&self.address)
        .bind(&self.context.name)
        .bind(seconds)
        .fetch_optional(&self.context.db)
        .await?;
        self.lease = claimed.map(|(lease_id, token)| Lease { lease_id, token, renewed });
        Ok(self.lease)
    }

    async fn oldest_open(&self) -> Result<Option<Uuid>> {
        let open = sqlx::query_scalar(
            "SELECT tx_id FROM managed_tx
             WHERE submitter = $1 AND state = 'IN_FLIGHT'
             ORDER BY nonce, seq
             LIMIT 1",
        );
        Ok(open.bind(&self.address).fetch_optional(&self.context.db).await?)
    }

    /// Assigns a nonce to the head of the queue: sign, write, send.
    async fn assign_nonce(&mut self, lease: Lease) -> Result<()> {
        // SKIP LOCKED, as is usual for queues in databases.
        let head: Option<(Uuid, Value)> = sqlx::query_as(
            "SELECT tx_id, payload FROM managed_tx
             WHERE submitter = $1 AND state = 'QUEUED'
             ORDER BY seq
             LIMIT 1
             FOR UPDATE SKIP LOCKED",
        )
        .bind(&self.address)
        .fetch_optional(&self.context.db)
        .await?;
        let Some((tx_id, payload)) = head else { return Ok(()) };
        let pause = pause_after(self.context.strategy, self.assigned);
        self.assigned += 1;
        self.maybe_pause(pause, After::Choice, lease, tx_id).await;
        let next = sqlx::query_scalar("SELECT next_nonce FROM submitter_nonce_cursor WHERE submitter = $1");
        let nonce: i64 = next.bind(&self.address).fetch_one(&self.context.db).await?;
        let draft = self.sign(nonce, &payload)?;
        if self.context.strategy.sends_first() {
            self.send(&draft.raw).await;
        }
        self.maybe_pause(pause, After::Draft, lease, tx_id).await;
        let mut tx = self.context.db.begin().await?;
        if !self.context.strategy.pass(&mut tx, &self.address, lease.lease_id).await?
            || !self.write(&mut tx, lease, tx_id, &draft).await?
        {
            tracing::info!(submitter = self.submitter.text(), "fenced");
            self.lease = None;
            return Ok(());
        }
        self.maybe_pause(pause, After::Write, lease, tx_id).await;
        tx.commit().await?;
        self.send(&draft.raw).await;
        Ok(())
    }

    async fn maybe_pause(&self, drawn: Option<After>, here: After, lease: Lease, tx_id: Uuid) {
        if drawn == Some(here) {
            self.context.pause(here, &self.submitter, lease.lease_id, tx_id).await;
        }
    }

    /// With a random gas price, so that each signature yields another hash.
    fn sign(&self, nonce: i64, payload: &Value) -> Result<Draft> {
        let to: Address = serde_json::from_value(payload["to"].clone())?;
        let data: Bytes = serde_json::from_value(payload["data"].clone())?;
        let value: U256 = serde_json::from_value(payload["value"].clone())?;
        let price = U256::exp10(10) + rand::random_range(0..1_000_000_000u64);
        let request = TransactionRequest::new().from(self.submitter.address()).to(to).value(value).data(data);
        let request = request.nonce(nonce).gas(GAS).gas_price(price).chain_id(self.context.chain_id);
        let raw = self.submitter.sign(&TypedTransaction::Legacy(request));
        let hash = keccak256(&raw).to_vec();
        Ok(Draft { raw, hash, nonce })
    }

    /// Writes intent, cursor and attempt. False: a condition failed.
    async fn write(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        lease: Lease,
        tx_id: Uuid,
        draft: &Draft,
    ) -> Result<bool> {
        let condition = self.context.strategy.condition();
        let intent = format!(
            "UPDATE managed_tx
             SET state = 'IN_FLIGHT', nonce = $4, tx_hash = $5, fencing_token = $6,
                 receipt = NULL, confirmed_at = NULL, finished_at = NULL
             WHERE tx_id = $3 AND {condition}"
        );
        let intent =
            sqlx::query(sqlx::AssertSqlSafe(intent)).bind(&self.address).bind(lease.lease_id).bind(tx_id);
        let intent = intent.bind(draft.nonce).bind(&draft.hash).bind(lease.token).execute(&mut **tx).await?;
        let cursor = format!(
            "UPDATE submitter_nonce_cursor
             SET next_nonce = $3 + 1, open_from = $3, in_flight_state = 'IN_FLIGHT', in_flight_nonce = $3,
                 in_flight_tx_id = $4, fencing_token = $5
             WHERE submitter = $1 AND {condition}"
        );
        let cursor = sqlx::query(sqlx::AssertSqlSafe(cursor)).bind(&self.address).bind(lease.lease_id);
        let cursor = cursor.bind(draft.nonce).bind(tx_id).bind(lease.token).execute(&mut **tx).await?;
        let attempt = format!(
            "INSERT INTO tx_attempt
                 (attempt_id, tx_id, ordinal, chain_id, submitter, nonce, kind, raw_tx, tx_hash, gas_params, fencing_token)
             SELECT gen_random_uuid(), $3, coalesce((SELECT max(ordinal) FROM tx_attempt WHERE tx_id = $3), 0) + 1,
                    $4, $1, $5, 'ORIGINAL', $6, $7, '{{}}', $8
             WHERE {condition}"
        );
        let chain_id = i64::try_from(self.context.chain_id)?;
        let attempt =
            sqlx::query(sqlx::AssertSqlSafe(attempt)).bind(&self.address).bind(lease.lease_id).bind(tx_id);
        let attempt = attempt.bind(chain_id).bind(draft.nonce).bind(draft.raw.to_vec()).bind(&draft.hash);
        let attempt = attempt.bind(lease.token).execute(&mut **tx).await?;
        Ok([intent, cursor, attempt].iter().all(|written| written.rows_affected() == 1))
    }

    /// Finishes an open intent, or resends its attempts.
    async fn follow_up(&mut self, lease: Lease, tx_id: Uuid) -> Result<()> {
        let attempts: Vec<(String, Vec<u8>)> =
            sqlx::query_as("SELECT '0x' || encode(tx_hash, 'hex'), raw_tx FROM tx_attempt WHERE tx_id = $1 ORDER BY created_at")
                .bind(tx_id)
                .fetch_all(&self.context.db)
                .await?;
        let head = number(&self.rpc("eth_blockNumber", json!([])).await?);
        for (hash, _) in &attempts {
            let receipt = self.rpc("eth_getTransactionReceipt", json!([hash])).await?;
            if receipt.is_null() {
                continue;
            }
            if number(&receipt["blockNumber"]) + self.context.required <= head + 1 {
                self.finish(lease, tx_id, &receipt).await?;
            }
            return Ok(());
        }
        for (_, raw) in &attempts {
            self.send(raw).await;
        }
        Ok(())
    }

    async fn finish(&mut self, lease: Lease, tx_id: Uuid, receipt: &Value) -> Result<()> {
        let mut tx = self.context.db.begin().await?;
        let passed = self.context.strategy.pass(&mut tx, &self.address, lease.lease_id).await?;
        let statement = format!(
            "UPDATE managed_tx
             SET state = 'CONFIRMED', tx_hash = $4, block_number = $5, block_hash = $6, receipt = $7,
                 confirmed_at = clock_timestamp(), finished_at = clock_timestamp(), fencing_token = $8
             WHERE tx_id = $3 AND {}",
            self.context.strategy.condition()
        );
        let height = i64::try_from(number(&receipt["blockNumber"]))?;
        let cell = json!({ "succeeded": true, "gasUsed": "0x5208", "transactionIndex": 0 });
        let finished =
            sqlx::query(sqlx::AssertSqlSafe(statement)).bind(&self.address).bind(lease.lease_id).bind(tx_id);
        let finished = finished.bind(bytes(&receipt["transactionHash"])?).bind(height);
        let finished = finished.bind(bytes(&receipt["blockHash"])?).bind(cell).bind(lease.token);
        if !passed || finished.execute(&mut *tx).await?.rows_affected() != 1 {
            self.lease = None;
            return Ok(());
        }
        Ok(tx.commit().await?)
    }

    /// Errors are only logged; the result is read from the chain.
    async fn send(&self, raw: &[u8]) {
        let raw = format!("0x{}", hex::encode(raw));
        if let Err(error) = self.rpc("eth_sendRawTransaction", json!([raw])).await {
            tracing::debug!(error = %format!("{error:#}"), "send failed");
        }
    }

    async fn rpc(&self, method: &str, params: Value) -> Result<Value> {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = self.context.http.post(&self.context.rpc).json(&body).send().await?;
        let mut answer: Value = answer.json().await?;
        match answer.get("error") {
            Some(error) => anyhow::bail!("{method}: {error}"),
            None => Ok(answer.get_mut("result").context("no result")?.take()),
        }
    }
}

fn bytes(value: &Value) -> Result<Vec<u8>> {
    let digits = value.as_str().context("no text")?.trim_start_matches("0x");
    Ok(hex::decode(digits)?)
}

fn number(value: &Value) -> u64 {
    let digits = value.as_str().unwrap_or_default().trim_start_matches("0x");
    u64::from_str_radix(digits, 16).unwrap_or(0)
}

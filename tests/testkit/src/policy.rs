//! Submitter policies: their configuration, and an independent check of the chain and the audit trail without product
//! code.

use std::time::Duration;

use ethers_core::types::{Address, U256};
use gapless_config::Secret;
use gapless_domain::{ChainId, Payload, RequestedTx, SubmitterKey, TxId};
use gapless_store::{IntakeOutcome, NewIntent, Store, Timeouts};
use serde_json::{Value, json};
use sqlx::Row;

use crate::eventually::eventually_within;
use crate::service::ServiceBuilder;
use crate::stack::Stack;
use crate::submitter::Submitter;

/// In seconds; longer than any test of the daily cap.
const BEFORE_MIDNIGHT: f64 = 90.0;

/// A policy: one recipient with these selectors (none: plain transfers), a value limit and a daily limit.
#[derive(Clone, Debug)]
pub struct Permitted {
    pub to: Address,
    pub selectors: Vec<&'static str>,
    pub max_value: u64,
    pub max_value_per_day: u64,
}

impl Permitted {
    /// Plain transfers to one address.
    pub fn transfers(to: Address, max_value: u64, max_value_per_day: u64) -> Permitted {
        Permitted { to, selectors: vec!["0x"], max_value, max_value_per_day }
    }

    /// The configuration value.
    fn settings(&self) -> Value {
        json!({
            "allow": [{ "to": format!("{:#x}", self.to), "selectors": self.selectors }],
            "max_value": self.max_value,
            "max_value_per_day": self.max_value_per_day.to_string(),
        })
    }
}

impl ServiceBuilder<'_> {
    /// Adds this policy of a submitter to the configuration.
    pub fn policy(self, submitter: &Submitter, permitted: &Permitted) -> Self {
        self.set(&format!("submitter.{}.policy", submitter.text()), permitted.settings())
    }
}

/// A row of the audit trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRow {
    pub tx_id: TxId,
    pub decision: String,
    pub rule: String,
    pub value: u64,
    pub day_total: Option<u64>,
}

impl Stack {
    /// Inserts a QUEUED row with any payload under the API's database role, as an attacker on the API host could.
    pub async fn insert_bypassing_api(
        &self,
        submitter: &Submitter,
        request_id: &str,
        payload: &Value,
    ) -> TxId {
        let requested: RequestedTx = serde_json::from_value(payload.clone()).expect("a payload");
        let payload: Payload = requested.validate().expect("a payload that could be sent");
        let url = Secret::new(self.database_url_as("gapless_api"));
        let store = Store::new(&url, "attacker", 1, Timeouts::default()).expect("a database URL");
        let chain_id = ChainId(self.anvil().chain_id());
        let key = SubmitterKey { chain_id, address: submitter.address() };
        let intent = NewIntent::new(key, request_id.to_owned(), payload, None);
        let outcome = store.insert_group(&[intent]).await.expect("the API's role may insert").remove(0);
        store.close().await;
        match outcome {
            IntakeOutcome::Created(tx_id) => tx_id,
            other => panic!("{other:?}"),
        }
    }

    /// Audit rows of a submitter, oldest first.
    pub async fn policy_rows(&self, submitter: &Submitter) -> Vec<PolicyRow> {
        let rows = sqlx::query(
            "SELECT tx_id, decision, rule, value::BIGINT, day_total::BIGINT FROM policy_audit
             WHERE submitter = $1 ORDER BY entry_no",
        )
        .bind(submitter.bytes())
        .fetch_all(self.db())
        .await
        .expect("the audit trail");
        let row = |row: &sqlx::postgres::PgRow| PolicyRow {
            tx_id: TxId(row.get(0)),
            decision: row.get(1),
            rule: row.get(2),
            value: row.get::<i64, _>(3).unsigned_abs(),
            day_total: row.get::<Option<i64>, _>(4).map(i64::unsigned_abs),
        };
        rows.iter().map(row).collect()
    }

    /// Waits, if midnight is so close that it could fall into the test.
    pub async fn wait_clear_of_midnight(&self) {
        eventually_within(Duration::from_secs(120), "midnight is not close", async || {
            let left: f64 = sqlx::query_scalar(
                "SELECT extract(epoch FROM date_trunc('day', now, 'UTC') + INTERVAL '1 day' - now)::FLOAT8
                 FROM clock_timestamp() AS now",
            )
            .fetch_one(self.db())
            .await
            .map_err(|error| error.to_string())?;
            if left > BEFORE_MIDNIGHT { Ok(()) } else { Err(format!("{left} s")) }
        })
        .await;
    }

    /// Violations of the policy on chain and in the audit trail. For tests within one day, and a submitter that had
    /// this policy from the start.
    pub async fn policy_breaches(&self, submitter: &Submitter, permitted: &Permitted) -> Vec<String> {
        let mut breaches = Vec::new();
        let mut sum = U256::zero();
        for tx in self.anvil().mined_from(submitter.address()).await {
            let value: U256 = serde_json::from_value(tx["value"].clone()).expect("a value");
            let input = tx["input"].as_str().unwrap_or_default();
            if tx["to"] == json!(submitter.address()) && value.is_zero() && input == "0x" {
                continue;
            }
            let call = input.get(..10).unwrap_or(input);
            if tx["to"] != json!(permitted.to) || !permitted.selectors.contains(&call) {
                breaches.push(format!("call {call} to {}", tx["to"]));
            }
            if value > permitted.max_value.into() {
                breaches.push(format!("value {value}"));
            }
            sum += value;
            breaches.extend(self.miscounted(&tx, value).await);
        }
        if sum > permitted.max_value_per_day.into() {
            breaches.push(format!("day {sum}"));
        }
        breaches.extend(self.unsound_trail(submitter).await);
        breaches
    }

    /// A transaction with a value must be counted once, with that value.
    async fn miscounted(&self, tx: &Value, value: U256) -> Option<String> {
        let counts: Vec<String> = sqlx::query_scalar(
            "SELECT p.value::TEXT FROM tx_attempt a JOIN policy_audit p ON p.tx_id = a.tx_id AND p.decision = 'COUNTED'
             WHERE a.tx_hash = $1",
        )
        .bind(hex::decode(tx["hash"].as_str().unwrap_or_default().trim_start_matches("0x")).expect("a hash"))
        .fetch_all(self.db())
        .await
        .expect("the audit trail");
        let expected = if value.is_zero() { vec![] } else { vec![value.to_string()] };
        (counts != expected).then(|| format!("uncounted: {} has {counts:?} for {value}", tx["hash"]))
    }

    /// Day totals must equal the sum of the counted values, and refused transactions must not be signed.
    async fn unsound_trail(&self, submitter: &Submitter) -> Vec<String> {
        sqlx::query_scalar(
            "SELECT format('sum of %s: %s', day, max(day_total)) FROM policy_audit
             WHERE submitter = $1 AND decision = 'COUNTED' GROUP BY day HAVING sum(value) <> max(day_total)
             UNION ALL
             SELECT format('refused and signed: %s', p.tx_id) FROM policy_audit p
             JOIN tx_attempt a ON a.tx_id = p.tx_id AND a.kind <> 'PLACEHOLDER'
             WHERE p.submitter = $1 AND p.decision = 'REFUSED'",
        )
        .bind(submitter.bytes())
        .fetch_all(self.db())
        .await
        .expect("the audit trail")
    }
}

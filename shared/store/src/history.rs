//! The committed history of an intent: its attempts, their sends, and its state changes. Read only; the data is
//! written by `write_lanes` and `note_sent`.

use chrono::{DateTime, Utc};
use ethers_core::types::{H256, U256};
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::attempt::AttemptKind;
use super::error::StoreError;
use super::pool::Store;
use super::row::{self, Cell, StoredHash};
use gapless_domain::{Fees, Nonce, TxId, TxState};

/// An attempt and its sends, without the signed bytes, so that readers cannot broadcast them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptView {
    /// Commit order within the intent: 1, 2, …
    pub ordinal: u64,
    pub kind: AttemptKind,
    pub tx_hash: H256,
    /// For admins only.
    pub nonce: Nonce,
    pub gas_limit: Option<U256>,
    pub fees: Option<Fees>,
    pub committed_at: DateTime<Utc>,
    pub first_sent_at: Option<DateTime<Utc>>,
    pub last_sent_at: Option<DateTime<Utc>>,
    /// Number of recorded sends.
    pub sends: u64,
    /// Class of the last node response.
    pub last_class: Option<String>,
    /// Text of the last node response; `None` if the node accepted the bytes.
    pub last_answer: Option<String>,
    /// This attempt was mined.
    pub mined: bool,
    /// When it was displaced: an external transaction with the same nonce is final.
    pub displaced_at: Option<DateTime<Utc>>,
}

/// A state and its commit time. The list order is authoritative, not the times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateChange {
    pub state: TxState,
    pub at: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxHistory {
    pub attempts: Vec<AttemptView>,
    pub changes: Vec<StateChange>,
}

row::row_struct! {
    struct IntentRow {
        state: String,
        submitted_at: Option<DateTime<Utc>>,
        tracking_at: Option<DateTime<Utc>>,
        history: Option<Value>,
        created_at: DateTime<Utc>,
        prepared_at: Option<DateTime<Utc>>,
        finished_at: Option<DateTime<Utc>>,
        mined_hash: Option<StoredHash>,
        mined_send_at: Option<DateTime<Utc>>,
        mined_send_class: Option<String>,
        attempts: Option<Value>,
    }
}

#[derive(Deserialize)]
struct AttemptRow {
    ordinal: i32,
    kind: String,
    tx_hash: H256,
    nonce: i64,
    gas_params: Value,
    committed_at: DateTime<Utc>,
    first_sent_at: Option<DateTime<Utc>>,
    last_sent_at: Option<DateTime<Utc>>,
    sends: Option<i32>,
    last_outcome: Option<String>,
    last_answer: Option<String>,
    displaced_at: Option<DateTime<Utc>>,
}

impl Store {
    /// `None`: there is no such intent.
    pub async fn tx_history(&self, tx_id: TxId) -> Result<Option<TxHistory>, StoreError> {
        // One statement, so that intent and attempts come from one snapshot.
        let intent: Option<IntentRow> = sqlx::query_as(
            "-- tx_history
            SELECT t.state, t.submitted_at, t.tracking_at, t.history, t.created_at, t.prepared_at, t.finished_at, t.mined_send_at,
                   t.mined_send_class,
                   CASE WHEN t.block_number IS NOT NULL THEN t.tx_hash END AS mined_hash,
                   (SELECT jsonb_agg(to_jsonb(a) ORDER BY a.ordinal)
                    FROM (SELECT ordinal, kind, '0x' || encode(tx_hash, 'hex') AS tx_hash, nonce, gas_params,
                                 created_at AS committed_at, first_sent_at, last_sent_at, sends, last_outcome, last_answer,
                                 displaced_at
                          FROM tx_attempt
                          WHERE tx_id = t.tx_id) a) AS attempts
            FROM managed_tx t
            WHERE t.tx_id = $1",
        )
        .bind(tx_id.0)
        .fetch_optional(&self.pool)
        .await
        .map_err(StoreError::db("tx_history"))?;
        intent.map(|intent| read(tx_id.0, intent)).transpose()
    }
}

fn read(tx_id: Uuid, intent: IntentRow) -> Result<TxHistory, StoreError> {
    let id = tx_id.to_string();
    let cell = Cell { table: "tx_attempt", column: "a row", id: &id };
    let attempts: Vec<AttemptRow> =
        intent.attempts.clone().map(|rows| cell.json(rows)).transpose()?.unwrap_or_default();
    let assigned_at = attempts.first().map(|first| first.committed_at).or(intent.prepared_at);
    let changes = changes(&id, &intent, assigned_at)?;
    let view = |attempt| attempt_view(&id, &intent, attempt);
    Ok(TxHistory { attempts: attempts.into_iter().map(view).collect::<Result<_, _>>()?, changes })
}

/// The regular states from their columns, then the `history` list, then the final state.
fn changes(
    id: &str,
    intent: &IntentRow,
    assigned_at: Option<DateTime<Utc>>,
) -> Result<Vec<StateChange>, StoreError> {
    let cell = |column| Cell { table: "managed_tx", column, id: &id };
    let mut changes = vec![StateChange { state: TxState::Queued, at: intent.created_at }];
    let regular = [
        (TxState::InFlight, assigned_at),
        (TxState::Submitted, intent.submitted_at),
        (TxState::Tracking, intent.tracking_at),
    ];
    changes.extend(regular.into_iter().filter_map(|(state, at)| at.map(|at| StateChange { state, at })));
    if let Some(history) = &intent.history {
        let noted: Vec<(String, DateTime<Utc>)> = cell("history").json(history.clone())?;
        for (state, at) in noted {
            changes.push(StateChange { state: cell("history").parse(&state)?, at });
        }
    }
    if let Some(at) = intent.finished_at {
        changes.push(StateChange { state: cell("state").parse(&intent.state)?, at });
    }
    Ok(changes)
}

fn attempt_view(id: &str, intent: &IntentRow, row: AttemptRow) -> Result<AttemptView, StoreError> {
    let cell = |column| Cell { table: "tx_attempt", column, id: &id };
    let mined = intent.mined_hash.map(H256::from) == Some(row.tx_hash);
    // One more send: the intent became final before it was recorded in `tx_attempt`.
    let last = intent.mined_send_at.filter(|_| mined);
    let recorded = cell("sends").unsigned(row.sends.unwrap_or(0).into())?;
    let part = |name: &str| row.gas_params.get(name).cloned();
    Ok(AttemptView {
        ordinal: cell("ordinal").unsigned(row.ordinal.into())?,
        kind: cell("kind").parse(&row.kind)?,
        tx_hash: row.tx_hash,
        nonce: row::nonce(cell("nonce"), row.nonce)?,
        // Absent in attempts that no lane wrote.
        gas_limit: part("gasLimit").and_then(|gas| serde_json::from_value(gas).ok()),
        fees: part("fees").and_then(|fees| serde_json::from_value(fees).ok()),
        committed_at: row.committed_at,
        first_sent_at: row.first_sent_at.or(last),
        last_sent_at: last.or(row.last_sent_at),
        sends: recorded + u64::from(last.is_some()),
        last_class: intent.mined_send_class.clone().filter(|_| mined).or(row.last_outcome),
        last_answer: row.last_answer.filter(|_| last.is_none()),
        mined,
        displaced_at: row.displaced_at,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(second, 0).unwrap()
    }

    fn intent(state: &str) -> IntentRow {
        IntentRow {
            state: state.into(),
            submitted_at: None,
            tracking_at: None,
            history: None,
            created_at: at(1),
            prepared_at: Some(at(2)),
            finished_at: None,
            mined_hash: None,
            mined_send_at: None,
            mined_send_class: None,
            attempts: Some(json!([attempt(9), attempt(8)])),
        }
    }

    fn attempt(hash: u64) -> Value {
        let fees = json!({ "type": "legacy", "gasPrice": "0x7" });
        let tx_hash = row::hex_text(H256::from_low_u64_be(hash).as_bytes());
        json!({
            "ordinal": 1, "kind": "ORIGINAL", "tx_hash": tx_hash, "nonce": 4, "committed_at": at(2),
            "gas_params": { "gasLimit": "0x5208", "fees": fees }, "first_sent_at": null, "last_sent_at": null,
            "sends": null, "last_outcome": null, "last_answer": null, "displaced_at": null
        })
    }

    fn states(history: &TxHistory) -> Vec<(TxState, i64)> {
        history.changes.iter().map(|change| (change.state, change.at.timestamp())).collect()
    }

    #[test]
    fn a_quickly_confirmed_intent_has_the_column_states_and_the_last_send() {
        let ended = IntentRow {
            finished_at: Some(at(5)),
            mined_hash: Some(H256::from_low_u64_be(9).into()),
            mined_send_at: Some(at(3)),
            mined_send_class: Some("accepted".into()),
            ..intent("CONFIRMED")
        };
        let history = read(Uuid::nil(), ended).unwrap();
        assert_eq!(states(&history), [(TxState::Queued, 1), (TxState::InFlight, 2), (TxState::Confirmed, 5)]);
        let [mined, other] = &history.attempts[..] else { panic!("{history:?}") };
        assert_eq!((mined.sends, mined.first_sent_at, mined.last_sent_at), (1, Some(at(3)), Some(at(3))));
        assert_eq!((mined.mined, mined.last_class.as_deref()), (true, Some("accepted")));
        assert_eq!((other.sends, other.mined, other.last_class.as_deref()), (0, false, None));
        assert_eq!(mined.fees, Some(Fees::Legacy { gas_price: 7.into() }));
    }

    #[test]
    fn the_history_list_keeps_its_order_even_if_times_decrease() {
        let noted = json!([["PROTECT", at(4)], ["QUEUED", at(5)], ["IN_FLIGHT", at(6)]]);
        let displaced = IntentRow {
            submitted_at: Some(at(9)),
            history: Some(noted),
            prepared_at: Some(at(6)),
            ..intent("IN_FLIGHT")
        };
        let history = read(Uuid::nil(), displaced).unwrap();
        let expected = [
            (TxState::Queued, 1),
            (TxState::InFlight, 2),
            (TxState::Submitted, 9),
            (TxState::Protect, 4),
            (TxState::Queued, 5),
            (TxState::InFlight, 6),
        ];
        assert_eq!(states(&history), expected);
    }
}

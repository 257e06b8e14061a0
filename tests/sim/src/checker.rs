//! Compares the rows with the simulated chain after a history. It shares no code with the product.

mod ends;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use sqlx::PgPool;
use uuid::Uuid;

use super::history::History;
use super::ledger::Tx;
use ends::Facts;

gapless_testkit::row_struct! {
    struct IntentRow {
        tx_id: Uuid,
        state: String,
        nonce: Option<i64>,
        /// Code of the last error.
        code: Option<String>,
        block_hash: Option<String>,
    }
}

gapless_testkit::row_struct! {
    struct CursorRow {
        start_nonce: i64,
        next_nonce: i64,
    }
}

gapless_testkit::row_struct! {
    struct ExternalRow {
        first_nonce: i64,
        last_nonce: i64,
    }
}

gapless_testkit::row_struct! {
    struct AttemptRow {
        tx_id: Uuid,
        nonce: i64,
        tx_hash: String,
        fencing_token: i64,
        ordinal: i32,
        /// An external transaction consumed its nonce, and its intent got another one.
        displaced: bool,
    }
}

/// All violations.
pub(crate) async fn problems(history: &History<'_>) -> Vec<String> {
    let (db, chain_id) = (&history.context.db, history.key.chain_id.as_i64());
    let intents: Vec<IntentRow> = rows(
        db,
        "SELECT tx_id, state, nonce, error ->> 'code' AS code, block_hash FROM v_managed_tx WHERE chain_id = $1",
        chain_id,
    )
    .await;
    let attempts: Vec<AttemptRow> = rows(
        db,
        "SELECT tx_id, nonce, tx_hash, fencing_token, ordinal, displaced_at IS NOT NULL AS displaced FROM v_tx_attempt WHERE chain_id = $1
         ORDER BY nonce, ordinal",
        chain_id,
    )
    .await;
    let cursor: Vec<CursorRow> =
        rows(db, "SELECT start_nonce, next_nonce FROM submitter_nonce_cursor WHERE chain_id = $1", chain_id)
            .await;
    let recorded_external: Vec<ExternalRow> =
        rows(db, "SELECT first_nonce, last_nonce FROM external_nonce WHERE chain_id = $1", chain_id).await;
    let ended_on = super::clock::now(db).await.date_naive();
    let chain = history.ledger().chain();
    let external: BTreeSet<u64> =
        chain.iter().filter(|tx| history.ledger().is_external(tx)).map(|tx| tx.nonce).collect();
    let arrived = history.ledger().arrived().to_vec();
    let mut problems = Vec::new();
    let next = cursor.first().map_or(0, |cursor| cursor.next_nonce);
    contiguous(history.features.is_shared, &chain, &external, next, &mut problems);
    accounted(&cursor, &attempts, &recorded_external, &mut problems);
    displaced(&attempts, &external, &mut problems);
    recorded(&arrived, &attempts, &mut problems);
    let is_one_day = history.began == ended_on;
    let facts = Facts { history, attempts: &attempts, chain: &chain, external: &external, is_one_day };
    effects(&facts, &intents, &mut problems);
    owners(history.features.is_shared, &attempts, &mut problems);
    numbered(&attempts, &mut problems);
    problems
}

async fn rows<T>(db: &PgPool, statement: &'static str, chain_id: i64) -> Vec<T>
where
    T: Send + Unpin + for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow>,
{
    sqlx::query_as(statement).bind(chain_id).fetch_all(db).await.unwrap()
}

/// No gap: the chain has nonces 0, 1, … up to the cursor, and only external transactions above it. The cursor of a
/// shared key may be above the chain, if external transactions were dropped.
fn contiguous(
    is_shared: bool,
    chain: &[Tx],
    external: &BTreeSet<u64>,
    next: i64,
    problems: &mut Vec<String>,
) {
    let nonces: Vec<i64> = chain.iter().map(|tx| tx.nonce as i64).collect();
    let above = nonces.iter().filter(|nonce| **nonce >= next);
    let explained = above.clone().all(|nonce| external.contains(&nonce.unsigned_abs()));
    let reached = nonces.len() as i64 >= next || is_shared;
    if !nonces.iter().copied().eq(0..nonces.len() as i64) || !explained || !reached {
        problems.push(format!("the cursor is at {next}, the chain has {nonces:?}"));
    }
}

/// Every nonce of the sequence has an attempt of ours, or is recorded as external.
fn accounted(
    cursor: &[CursorRow],
    attempts: &[AttemptRow],
    external: &[ExternalRow],
    problems: &mut Vec<String>,
) {
    for nonce in cursor.iter().flat_map(|cursor| cursor.start_nonce..cursor.next_nonce) {
        let has_bytes = attempts.iter().any(|attempt| attempt.nonce == nonce);
        if !has_bytes && !external.iter().any(|range| (range.first_nonce..=range.last_nonce).contains(&nonce))
        {
            problems.push(format!("nonce {nonce} has no attempt, and is not recorded as external"));
        }
    }
}

/// An intent gets another nonce only if an external transaction consumed its previous one.
fn displaced(attempts: &[AttemptRow], external: &BTreeSet<u64>, problems: &mut Vec<String>) {
    for attempt in attempts.iter().filter(|attempt| attempt.displaced) {
        if !external.contains(&attempt.nonce.unsigned_abs()) {
            problems.push(format!(
                "{} lost nonce {}, which no external transaction has",
                attempt.tx_id, attempt.nonce
            ));
        }
    }
}

/// Every transaction that reached the mempool is recorded with its nonce.
fn recorded(arrived: &[Tx], attempts: &[AttemptRow], problems: &mut Vec<String>) {
    let known: HashMap<&str, i64> =
        attempts.iter().map(|attempt| (attempt.tx_hash.as_str(), attempt.nonce)).collect();
    for tx in arrived {
        if known.get(format!("{:#x}", tx.hash).as_str()) != Some(&(tx.nonce as i64)) {
            problems.push(format!("{:#x} at nonce {} was sent and is not recorded", tx.hash, tx.nonce));
        }
    }
}

/// Every intent is final, with the effects its state implies, and its end is justified.
fn effects(facts: &Facts<'_>, rows: &[IntentRow], problems: &mut Vec<String>) {
    let intents = &facts.history.intents;
    if rows.len() != intents.len() {
        problems.push(format!("{} intents were accepted, {} rows exist", intents.len(), rows.len()));
    }
    let by_id: HashMap<Uuid, &IntentRow> = rows.iter().map(|row| (row.tx_id, row)).collect();
    let mut values = HashSet::new();
    for intent in intents {
        values.insert(intent.value);
        let Some(row) = by_id.get(&intent.tx_id.0) else { continue };
        let mined = facts.mined(intent);
        let code = row.code.as_deref().unwrap_or("no error");
        if let Some(why) = ends::unexplained(facts, intent, &row.state, code, &mined) {
            problems.push(format!(
                "intent {} is {} ({code}) with nonce {:?}: {why}; on chain it is {mined:?}",
                intent.value, row.state, row.nonce
            ));
        }
        if !mined.iter().all(|tx| row.nonce == Some(tx.nonce as i64)) {
            problems
                .push(format!("intent {} has nonce {:?}; on chain it is {mined:?}", intent.value, row.nonce));
        }
        let block = row.block_hash.as_deref().filter(|_| row.state == "CONFIRMED");
        if block.is_some_and(|hash| !facts.history.ledger().has_block(hash)) {
            problems.push(format!("the receipt of intent {} is in a block that was replaced", intent.value));
        }
    }
    for tx in facts.chain.iter().filter(|tx| tx.value != 0 && !values.contains(&tx.value)) {
        problems.push(format!("not requested: {tx:?}"));
    }
    problems.extend(ends::exceeds_daily_limit(facts));
}

/// One intent per nonce and one nonce per intent; the tokens of first attempts never decrease by nonce. On a shared
/// key a nonce that became free is assigned after higher ones.
fn owners(is_shared: bool, attempts: &[AttemptRow], problems: &mut Vec<String>) {
    let mut intents: BTreeMap<i64, BTreeSet<Uuid>> = BTreeMap::new();
    let mut nonces: BTreeMap<Uuid, BTreeSet<i64>> = BTreeMap::new();
    for attempt in attempts.iter().filter(|attempt| !attempt.displaced) {
        intents.entry(attempt.nonce).or_default().insert(attempt.tx_id);
        nonces.entry(attempt.tx_id).or_default().insert(attempt.nonce);
    }
    if intents.values().any(|of| of.len() > 1) || nonces.values().any(|of| of.len() > 1) {
        problems.push(format!("nonces and intents do not match one to one: {intents:?}"));
    }
    // Sorted by nonce and ordinal. Attempts of a reserved nonce are recorded later.
    let first_bytes = attempts.chunk_by(|one, next| one.nonce == next.nonce).filter_map(|of| of.first());
    let tokens: Vec<i64> = first_bytes.map(|attempt| attempt.fencing_token).collect();
    if !tokens.is_sorted() && !is_shared {
        problems.push(format!("tokens decrease by nonce: {tokens:?}"));
    }
}

/// The attempts of an intent are numbered 1, 2, …, and their tokens never decrease.
fn numbered(attempts: &[AttemptRow], problems: &mut Vec<String>) {
    let mut of_intent: BTreeMap<Uuid, Vec<(i32, i64)>> = BTreeMap::new();
    for attempt in attempts {
        of_intent.entry(attempt.tx_id).or_default().push((attempt.ordinal, attempt.fencing_token));
    }
    for (tx_id, mut of) in of_intent {
        of.sort_unstable();
        let counted = (1..).zip(&of).all(|(number, (ordinal, _))| number == *ordinal);
        if !counted || !of.is_sorted_by_key(|(_, token)| *token) {
            problems.push(format!("attempts of {tx_id} are out of order (number, token): {of:?}"));
        }
    }
}

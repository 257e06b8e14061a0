//! Error responses of nodes, with the codes and messages of `node_answers.tsv`.

use std::collections::BTreeMap;

use gapless_testkit::Fault;
use rand::Rng;
use rand::rngs::StdRng;

use super::{SEND, names, some_ms, some_workers};
use crate::ChaosRun;

/// Observed error messages of nodes, by class.
const NODE_ANSWERS: &str = include_str!("../../../../shared/chain/src/node_answers.tsv");
/// The class of errors that declare a transaction invalid. By design workers accept it, so few transactions get it,
/// and the checker gets a list of them.
const BELIEVED: &str = "fatal";
/// Methods about one transaction. A `fatal` error is injected at most `MOST_CALLED_INVALID` times for them.
const ABOUT_TRANSACTION: [&str; 4] = [SEND, "eth_estimateGas", "eth_call", "*"];
const MOST_CALLED_INVALID: u32 = 3;
/// Methods that workers call.
const METHODS: [&str; 12] = [
    SEND,
    "eth_estimateGas",
    "eth_getTransactionCount",
    "eth_getTransactionReceipt",
    "eth_getTransactionByHash",
    "eth_getBlockByNumber",
    "eth_getBlockByHash",
    "eth_getBlockReceipts",
    "eth_feeHistory",
    "eth_getBalance",
    "eth_call",
    "*",
];
/// Every call of one method gets an observed error: a random class, then a random message of it. Half of the sends are
/// forwarded to the node nevertheless.
pub(super) async fn wrong_answers(run: &ChaosRun, rng: &mut StdRng) -> String {
    let mut classes: BTreeMap<&str, Vec<(i64, &str)>> = BTreeMap::new();
    for (class, code, wording) in wordings().filter(|(class, ..)| *class != BELIEVED) {
        classes.entry(class).or_default().push((code, wording));
    }
    let (class, known) = classes.iter().nth(rng.random_range(0..classes.len())).expect("one of these");
    let (code, wording) = known[rng.random_range(0..known.len())];
    let method = METHODS[rng.random_range(0..METHODS.len())];
    let message = wording.to_owned();
    let fault = match method == SEND && rng.random() {
        true => Fault::ErrorAfter { code, message },
        false => Fault::Error { code, message },
    };
    let (whom, length) = (some_workers(run, rng), some_ms(rng, 500, 5000));
    let _alone = run.node_faults.lock().await;
    whom.iter().for_each(|slot| slot.proxy.always(method, fault.clone()));
    tokio::time::sleep(length).await;
    whom.iter().for_each(|slot| slot.proxy.clear());
    format!("{}: {method} is {class} ({code}, {wording}) for {length:?}", names(&whom))
}

/// A method responds that the transaction is invalid. Methods about a transaction do so a few times only, because
/// workers accept it; from other methods it must not end a transaction.
pub(super) async fn fatal_answers(run: &ChaosRun, rng: &mut StdRng) -> String {
    let known: Vec<(i64, &str)> = wordings()
        .filter(|(class, ..)| *class == BELIEVED)
        .map(|(_, code, wording)| (code, wording))
        .collect();
    let (code, wording) = known[rng.random_range(0..known.len())];
    let methods: &[&str] = if rng.random() { &ABOUT_TRANSACTION } else { &METHODS };
    let method = methods[rng.random_range(0..methods.len())];
    let (whom, length) = (some_workers(run, rng), some_ms(rng, 500, 3000));
    let (times, after) = (rng.random_range(1..=MOST_CALLED_INVALID), rng.random::<bool>());
    let message = wording.to_owned();
    let fault = match method == SEND && after {
        true => Fault::ErrorAfter { code, message },
        false => Fault::Error { code, message },
    };
    let _alone = run.node_faults.lock().await;
    for slot in &whom {
        match ABOUT_TRANSACTION.contains(&method) {
            true => slot.proxy.next(times, method, fault.clone()),
            false => slot.proxy.always(method, fault.clone()),
        }
    }
    tokio::time::sleep(length).await;
    whom.iter().for_each(|slot| slot.proxy.clear());
    format!("{}: {method} is {BELIEVED} ({code}, {wording}) for {length:?}", names(&whom))
}

/// Whether this message declares a transaction invalid.
pub(crate) fn calls_invalid(message: &str) -> bool {
    wordings().any(|(class, _, wording)| class == BELIEVED && wording == message)
}

/// Class, code and message of each line of `node_answers.tsv`.
fn wordings() -> impl Iterator<Item = (&'static str, i64, &'static str)> {
    NODE_ANSWERS.lines().skip(1).map(|line| {
        let mut cells = line.splitn(4, '\t');
        let mut cell = || cells.next().expect("four cells in a line");
        let (class, _, code, wording) = (cell(), cell(), cell(), cell());
        (class, code.parse().expect("a code is a number"), wording)
    })
}

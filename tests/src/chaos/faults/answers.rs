//! Nodes that answer with an error, in the words of the table of nodes' answers.

use std::collections::BTreeMap;

use rand::Rng;
use rand::rngs::StdRng;

use super::{SEND, names, some_ms, some_workers};
use crate::chaos::Arena;
use crate::proxy::Fault;

/// Data, not code: what nodes have been seen to say, by class.
const NODE_ANSWERS: &str = include_str!("../../../../shared/src/chain/node_answers.tsv");
/// A node that calls a valid transaction invalid is believed, by design. Few transactions are called so, and the checker knows which.
const BELIEVED: &str = "fatal";
/// Calls about one transaction; a fault of these hits so many of them at the most.
const ABOUT_TRANSACTION: [&str; 4] = [SEND, "eth_estimateGas", "eth_call", "*"];
const MOST_CALLED_INVALID: u32 = 3;
/// What workers ask.
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
/// One method answers every question with an error that some node has been seen to give: a class first, then a wording of it.
/// Half of the sends are passed on all the same.
pub(super) async fn wrong_answers(arena: &Arena, dice: &mut StdRng) -> String {
    let mut classes: BTreeMap<&str, Vec<(i64, &str)>> = BTreeMap::new();
    for (class, code, wording) in wordings().filter(|(class, ..)| *class != BELIEVED) {
        classes.entry(class).or_default().push((code, wording));
    }
    let (class, known) = classes.iter().nth(dice.random_range(0..classes.len())).expect("one of these");
    let (code, wording) = known[dice.random_range(0..known.len())];
    let method = METHODS[dice.random_range(0..METHODS.len())];
    let message = wording.to_owned();
    let fault = match method == SEND && dice.random() {
        true => Fault::ErrorAfter { code, message },
        false => Fault::Error { code, message },
    };
    let (whom, length) = (some_workers(arena, dice), some_ms(dice, 500, 5000));
    let _alone = arena.nodes.lock().await;
    whom.iter().for_each(|process_slot| process_slot.proxy.always(method, fault.clone()));
    tokio::time::sleep(length).await;
    whom.iter().for_each(|process_slot| process_slot.proxy.clear());
    format!("{}: {method} is {class} ({code}, {wording}) for {length:?}", names(&whom))
}

/// A method answers that the transaction is invalid. Where it is about a transaction, that is believed, and it happens a few times
/// only; of anything else it means nothing, and must end nothing.
pub(super) async fn fatal_answers(arena: &Arena, dice: &mut StdRng) -> String {
    let known: Vec<(i64, &str)> = wordings()
        .filter(|(class, ..)| *class == BELIEVED)
        .map(|(_, code, wording)| (code, wording))
        .collect();
    let (code, wording) = known[dice.random_range(0..known.len())];
    let methods: &[&str] = if dice.random() { &ABOUT_TRANSACTION } else { &METHODS };
    let method = methods[dice.random_range(0..methods.len())];
    let (whom, length) = (some_workers(arena, dice), some_ms(dice, 500, 3000));
    let (times, after) = (dice.random_range(1..=MOST_CALLED_INVALID), dice.random::<bool>());
    let message = wording.to_owned();
    let fault = match method == SEND && after {
        true => Fault::ErrorAfter { code, message },
        false => Fault::Error { code, message },
    };
    let _alone = arena.nodes.lock().await;
    for process_slot in &whom {
        match ABOUT_TRANSACTION.contains(&method) {
            true => process_slot.proxy.next(times, method, fault.clone()),
            false => process_slot.proxy.always(method, fault.clone()),
        }
    }
    tokio::time::sleep(length).await;
    whom.iter().for_each(|process_slot| process_slot.proxy.clear());
    format!("{}: {method} is {BELIEVED} ({code}, {wording}) for {length:?}", names(&whom))
}

/// Whether a node that says this calls a transaction invalid.
pub(in crate::chaos) fn calls_invalid(message: &str) -> bool {
    wordings().any(|(class, _, wording)| class == BELIEVED && wording == message)
}

/// Class, code and words, as the table of nodes' answers has them.
fn wordings() -> impl Iterator<Item = (&'static str, i64, &'static str)> {
    NODE_ANSWERS.lines().skip(1).map(|line| {
        let mut cells = line.splitn(4, '\t');
        let mut cell = || cells.next().expect("four cells in a line");
        let (class, _, code, wording) = (cell(), cell(), cell(), cell());
        (class, code.parse().expect("a code is a number"), wording)
    })
}

//! Fuzz entry: runs every parser of node responses on arbitrary bytes. Not in product builds; for `fuzz/` and its
//! tests.

use serde_json::Value;
use serde_json::value::RawValue;

use super::answer::{
    full_message, gas_allowance, lacks_method, names_transaction, no_final_block_yet, parse, read_receipt,
};
use super::decode::{Count, Quantity, RawBlock, RawFeeHistory, RawReceipt};
use super::revert;
use super::wire::{self, ErrorObject, Replies};
use crate::classify::{ErrorPatterns, classify};
use gapless_domain::sanitize::MAX_CHARS;
use gapless_domain::{Bytes, H256};

/// Request ids; the input may contain replies to these and to others.
const ASKED: std::ops::Range<u64> = 1..4;
const NODE: &str = "node";

pub fn read_answer(body: &[u8]) {
    match wire::decode(body, ASKED) {
        Ok(Replies::ById(replies)) => {
            for reply in replies.into_values().flatten() {
                match reply {
                    Ok(result) => read_result(&result),
                    Err(error) => read_error(&error),
                }
            }
        }
        Ok(Replies::Whole(error)) => read_error(&error),
        Err(_) => {}
    }
}

fn read_result(result: &RawValue) {
    let _ = parse::<Quantity>("eth_gasPrice", NODE, result);
    if let Ok(Count(count)) = parse("eth_blockNumber", NODE, result) {
        assert!(i64::try_from(count).is_ok(), "a count above i64::MAX");
    }
    let _ = parse::<Option<RawBlock>>("eth_getBlockByNumber", NODE, result)
        .map(|block| block.map(RawBlock::mined));
    let _ = parse::<Vec<RawReceipt>>("eth_getBlockReceipts", NODE, result);
    if let Ok(history) = parse::<RawFeeHistory>("eth_feeHistory", NODE, result) {
        let history = history.history(1);
        assert!(history.is_none_or(|history| history.rewards.iter().all(|block| block.len() == 1)));
    }
    let _ = parse::<Bytes>("eth_getCode", NODE, result);
    let _ = parse::<Option<Value>>("eth_getTransactionByHash", NODE, result);
    let hash = H256::repeat_byte(0xab);
    if let Ok(Some(receipt)) = read_receipt(NODE, result, hash) {
        assert_eq!(receipt.tx_hash, hash, "the receipt of another transaction");
    }
}

fn read_error(error: &ErrorObject) {
    let data = error.data_text();
    let class = classify(error.code, &error.message, data.as_deref(), &ErrorPatterns::default());
    assert!(!class.as_str().is_empty());
    assert!(full_message(error).chars().count() <= MAX_CHARS + 1, "message too long");
    let _ = (
        lacks_method(error),
        no_final_block_yet(&error.message),
        gas_allowance(&error.message),
        names_transaction(error, H256::zero()),
    );
    if let Some(failure) = revert::failure(error) {
        assert!(failure.message.chars().count() <= MAX_CHARS + 1, "message too long");
        if let Some(revert) = failure.revert {
            let _ = revert.decode(&["E(uint256 a,(string,bytes[])[2] b)".to_owned()]);
        }
    }
}

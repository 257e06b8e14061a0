//! One row per wording that nodes are known to use, and the traps between them.

use super::*;

const SAID: &[(SubmitClass, i64, &str)] = &[
    // Nonce too low.
    (NonceTooLow, -32000, "nonce too low"),
    (NonceTooLow, -32000, "nonce too low: next nonce 5, tx nonce 4"),
    (NonceTooLow, -32010, "OldNonce"),
    (NonceTooLow, -32001, "Nonce too low"),
    (NonceTooLow, -32000, "nonce too low: address 0xAbC, tx: 3 state: 4"),
    (NonceTooLow, -32000, "invalid transaction nonce"),
    (NonceTooLow, 3, "nonce too low. allowed nonce range: 7 - 107, actual: 6"),
    (
        NonceTooLow,
        -32000,
        "Nonce too low. Expected nonce to be 1 but got 0. Note that transactions can't be queued when automining.",
    ),
    (NonceTooLow, -32000, "Transaction nonce too low. Expected nonce to be at least 1 but got 0."),
    // Nonce too high.
    (NonceTooHigh, -32000, "nonce too high: tx nonce 9, gapped nonce 7"),
    (NonceTooHigh, -32000, "nonce too high"),
    (NonceTooHigh, -32010, "NonceGap"),
    (NonceTooHigh, -32000, "nonce too far in future"),
    (NonceTooHigh, -32006, "Nonce too high"),
    (NonceTooHigh, -32000, "Transaction nonce is too distant from current sender nonce"),
    (NonceTooHigh, -32000, "An invalid transaction with a lower nonce exists"),
    (NonceTooHigh, -32000, "nonce too high: address 0xAbC, tx: 9 state: 4"),
    (NonceTooHigh, 3, "nonce too high. allowed nonce range: 7 - 107, actual: 900"),
    (
        NonceTooHigh,
        -32000,
        "Nonce too high. Expected nonce to be 1 but got 7. Note that transactions can't be queued when automining.",
    ),
    // Already known.
    (AlreadyKnown, -32000, "already known"),
    (AlreadyKnown, -32000, "known transaction: 0x12ab"),
    (AlreadyKnown, -32010, "AlreadyKnown"),
    (AlreadyKnown, -32010, "OwnNonceAlreadyUsed"),
    (AlreadyKnown, -32000, "Known transaction"),
    (AlreadyKnown, -32000, "existing txn with same hash"),
    (AlreadyKnown, 3, "known transaction. transaction with hash 0x12ab is already in the system"),
    (AlreadyKnown, -32003, "transaction already imported"),
    (AlreadyKnown, -32000, "Known transaction: 0x12ab"),
    // Replacement underpriced.
    (ReplacementUnderpriced, -32000, "replacement transaction underpriced"),
    (ReplacementUnderpriced, -32010, "ReplacementNotAllowed"),
    (ReplacementUnderpriced, -32000, "Replacement transaction underpriced"),
    (ReplacementUnderpriced, -32000, "could not replace existing tx"),
    (
        ReplacementUnderpriced,
        -32000,
        "Replacement transaction underpriced. A gasPrice/maxFeePerGas of at least 110 is necessary to replace the \
         existing transaction with nonce 0.",
    ),
    // Underpriced.
    (Underpriced, -32000, "transaction underpriced"),
    (Underpriced, -32000, "transaction gas price below minimum: gas tip cap 1, minimum needed 1000000"),
    (Underpriced, -32000, "transaction priority fee below minimum required priority fee 1000000"),
    (
        Underpriced,
        -32000,
        "max fee per gas less than block base fee: address 0xAbC, maxFeePerGas: 1, baseFee: 7",
    ),
    (Underpriced, -32010, "FeeTooLow"),
    (Underpriced, -32010, "FeeTooLowToCompete"),
    (Underpriced, -32009, "Gas price below configured minimum gas price"),
    (Underpriced, -32009, "Gas price below current base fee"),
    (Underpriced, -32000, "underpriced"),
    (Underpriced, -32000, "fee too low"),
    (Underpriced, -32000, "gas price too low"),
    (Underpriced, 3, "unacceptable gas price"),
    (
        Underpriced,
        -32000,
        "Transaction maxFeePerGas (1) is too low for the next block, which has a baseFeePerGas of 201887515",
    ),
    // Insufficient funds.
    (InsufficientFunds, -32000, "insufficient funds for gas * price + value"),
    (InsufficientFunds, -32000, "insufficient funds for gas * price + value: have 1 want 2"),
    (InsufficientFunds, -32000, "insufficient funds for transfer"),
    (InsufficientFunds, -32000, "transaction would cause overdraft"),
    (InsufficientFunds, -32010, "InsufficientFunds, Balance is 0 less than sending value"),
    (InsufficientFunds, -32004, "Upfront cost exceeds account balance"),
    (InsufficientFunds, -32000, "insufficient funds"),
    (InsufficientFunds, -32000, "not enough funds for gas"),
    (InsufficientFunds, 3, "insufficient funds for gas + value. balance: 0, fee: 1, value: 1"),
    (InsufficientFunds, -32003, "Insufficient funds for gas * price + value"),
    (
        InsufficientFunds,
        -32000,
        "Sender doesn't have enough funds to send tx. The max upfront cost is: 21 and the sender's balance is: 0.",
    ),
    (
        InsufficientFunds,
        -32000,
        "failed with 16777216 gas: insufficient funds for gas * price + value: have 0 want 1",
    ),
    // Pool full.
    (PoolFull, -32000, "txpool is full"),
    (PoolFull, -32000, "account limit exceeded"),
    (PoolFull, -32002, "Transaction pool not enabled"),
    (PoolFull, -32000, "pending sub-pool is full"),
    (PoolFull, -32000, "baseFee sub-pool is full"),
    (PoolFull, -32000, "queued sub-pool is full"),
    (PoolFull, -32000, "queue full"),
    (PoolFull, -32000, "sequencer pending tx pool full, please try again"),
    // Delegated sender.
    (DelegatedLimit, -32000, "in-flight transaction limit reached for delegated accounts"),
    (DelegatedLimit, -32000, "gapped-nonce tx from delegated accounts"),
    (DelegatedLimit, -32010, "DelegatorHasPendingTx"),
    (DelegatedLimit, -32000, "EIP-7702 transaction with authority already reserved"),
    // Fee above the node's cap.
    (FeeCapExceeded, -32000, "tx fee (1.10 ether) exceeds the configured cap (1.00 ether)"),
    (FeeCapExceeded, -32000, "tx fee (1100 wei) exceeds the configured cap (1000 wei)"),
    (FeeCapExceeded, -32000, "Transaction fee cap exceeded"),
    // Fatal payload.
    (Fatal, -32000, "exceeds block gas limit"),
    (Fatal, -32000, "intrinsic gas too low"),
    (Fatal, -32000, "intrinsic gas too low: gas 100, minimum needed 21000"),
    (Fatal, -32000, "intrinsic gas too high"),
    (Fatal, -32000, "invalid sender"),
    (Fatal, -32000, "oversized data: transaction size 200000, limit 131072"),
    (Fatal, -32000, "max initcode size exceeded: code size 50000, limit 49152"),
    (Fatal, -32000, "gas uint64 overflow"),
    (Fatal, -32000, "tx type 3 not supported by this pool"),
    (Fatal, -32000, "transaction type not supported"),
    (Fatal, -32000, "unknown transaction type"),
    (Fatal, -32000, "exceeds max transaction gas limit"),
    (Fatal, -32000, "sender is not an EOA"),
    (Fatal, -32000, "invalid chain ID"),
    (Fatal, -32000, "invalid chain id for signer: have 5 want 1"),
    (Fatal, -32010, "SenderIsContract"),
    (Fatal, -32010, "Invalid"),
    (Fatal, -32010, "Int256Overflow"),
    (Fatal, -32010, "FailedToResolveSender"),
    (Fatal, -32010, "GasLimitExceeded"),
    (Fatal, -32000, "sender not an eoa"),
    (Fatal, -32000, "transaction invalid"),
    (Fatal, -32000, "transaction cost overflow"),
    (Fatal, -32000, "failed to recover sender"),
    (Fatal, -32000, "gas limit reached"),
    (Fatal, -32003, "Intrinsic gas exceeds gas limit"),
    (Fatal, -32005, "Transaction gas limit exceeds block gas limit"),
    (Fatal, -32002, "Invalid signature"),
    (Fatal, -32000, "Wrong chainId"),
    (Fatal, -32007, "Sender account not authorized to send transactions"),
    (Fatal, -32000, "IntrinsicGas"),
    (Fatal, -32000, "initcode too large"),
    (Fatal, -32000, "RLPTooLong"),
    (Fatal, -32000, "gas limit is too high"),
    (Fatal, -32000, "execution reverted"),
    (Fatal, -32000, "forbidden sender address"),
    (Fatal, -32000, "invalid message format"),
    (Fatal, 3, "Not enough gas for transaction validation"),
    (Fatal, 3, "Failed to pay the fee to the operator"),
    (Fatal, -32000, "transaction gas limit too high (cap: 16777216, tx: 16777217)"),
    (Fatal, -32000, "Transaction gas limit is 16777217 and exceeds transaction gas cap of 16777216"),
    (Fatal, -32000, "transaction gas limit (33554432) is greater than the cap (16777216)"),
    (Fatal, -32000, "Transaction gas limit is 70000000 and exceeds block gas limit of 60000000"),
    (Fatal, -32000, "insufficient gas for floor data gas cost: gas 22100, minimum needed 23400"),
    (Fatal, -32000, "Transaction requires at least 21000 gas but got 20999"),
    (Fatal, -32000, "Transaction requires gas floor of 23400 but got limit of 22100"),
    (Fatal, -32000, "create initcode size limit"),
    (Fatal, -32000, "Trying to send a deployment transaction whose init code length is 50000."),
    (
        Fatal,
        -32602,
        "Trying to send a raw transaction with an invalid chainId. The expected chainId is 31337",
    ),
    (Fatal, -32000, "maxPriorityFeePerGas (10) is bigger than maxFeePerGas (1)"),
    // Node trouble.
    (Unavailable, 502, ""),
    (Unavailable, 503, "503"),
    (Unavailable, 0, "502 Bad Gateway"),
    (Unavailable, 408, "request timeout"),
    (Unavailable, -32000, "dial tcp 10.0.0.1:8545: i/o timeout"),
    (Unavailable, -32000, "header not found"),
    (Unavailable, -32005, "project ID request rate exceeded"),
    (Unavailable, -32600, "batch too large"),
    (Unavailable, -32000, "node is syncing"),
    (Unavailable, -32005, "Number of requests exceeds max batch size"),
    (Unavailable, 429, "slow down"),
    (Unavailable, -32007, "50/second request limit reached"),
    // Neither wording nor code.
    (Unknown, -32000, "the moon is in the wrong house"),
    (Unknown, -32603, "Internal error"),
    (Unknown, -32001, "resource not found"),
    (Unknown, -32003, ""),
    (Unknown, -32000, "unknown transaction"),
];

#[test]
fn every_known_wording_has_its_class_however_it_is_wrapped() {
    let none = ErrorPatterns::default();
    for (class, code, text) in SAID {
        let wrapped = [text.to_string(), text.to_uppercase(), text.to_lowercase()];
        for said in wrapped {
            assert_eq!(classify(*code, &said, None, &none), *class, "`{said}` ({code})");
        }
        // A whole-text wording and an empty one are what a prefix would change.
        if !["Invalid", "", "503"].contains(text) {
            let said = format!("RPC-7: upstream said \"{text}\" (request 42)");
            assert_eq!(classify(*code, &said, None, &none), *class, "`{said}` ({code})");
        }
    }
}

#[test]
fn a_revert_reason_that_quotes_another_wording_stays_fatal() {
    let none = ErrorPatterns::default();
    for (_, _, text) in SAID {
        let said = format!("execution reverted: {text}");
        assert_eq!(classify(3, &said, None, &none), Fatal, "`{said}`");
    }
}

#[test]
fn data_is_asked_only_when_the_message_says_nothing() {
    let none = ErrorPatterns::default();
    assert_eq!(classify(-32603, "Internal error", Some("Nonce too low"), &none), NonceTooLow);
    assert_eq!(classify(-32603, "already known", Some("nonce too low"), &none), AlreadyKnown);
    assert_eq!(classify(-32005, "", Some("exceeds block gas limit"), &none), Fatal);
}

#[test]
fn configured_wordings_extend_and_correct_the_table() {
    let config = |name: &str, text: &str| BTreeMap::from([(name.to_owned(), vec![text.to_owned()])]);
    let extra = ErrorPatterns::from_config(&config("nonce_too_low", " Stale Nonce ")).unwrap();
    assert_eq!(classify(-32000, "rejected: STALE NONCE 5", None, &extra), NonceTooLow);
    assert_eq!(classify(-32000, "rejected", None, &extra), Unknown);
    let corrects = ErrorPatterns::from_config(&config("unavailable", "transaction invalid")).unwrap();
    assert_eq!(classify(-32000, "transaction invalid", None, &corrects), Unavailable);
}

#[test]
fn a_class_that_does_not_exist_is_refused_by_name() {
    for name in ["nonce_to_low", "unknown", "accepted", "NonceTooLow"] {
        let error =
            ErrorPatterns::from_config(&BTreeMap::from([(name.to_owned(), vec!["x".into()])])).unwrap_err();
        assert!(error.contains(name) && error.contains("nonce_too_low"), "{error}");
    }
    let empty = BTreeMap::from([("fatal".to_owned(), vec![" ".to_owned()])]);
    assert!(ErrorPatterns::from_config(&empty).is_err());
}

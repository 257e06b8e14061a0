use ethers_core::types::transaction::eip2930::AccessList;
use ethers_signers::{LocalWallet, Signer as _};

use super::*;
use crate::testing::{each_type, signature, signed, wallet};
use gapless_domain::signature::HALF_ORDER;
use gapless_domain::{Address, ChainId, Fees, Nonce, TxKind};

fn difference(tx: &UnsignedTx, raw: impl Into<Bytes>) -> &'static str {
    match check_signed(tx, raw.into()) {
        Ok(_) => "none",
        Err(Difference(field)) => field,
    }
}

#[test]
fn the_requested_transaction_is_accepted() {
    for tx in each_type() {
        let raw = signed(&wallet(), &tx);
        let draft = check_signed(&tx, raw.clone()).unwrap();
        assert_eq!((draft.tx_hash, &draft.raw), (H256(keccak256(&raw)), &raw));
        assert_eq!((draft.nonce, draft.gas_limit, draft.fees), (tx.nonce, tx.gas_limit, tx.fees));
        assert_eq!(Some(draft.max_cost), tx.max_cost());
    }
}

#[test]
fn a_deployment_without_data_or_value_is_taken() {
    for mut tx in each_type() {
        tx.payload.to = None;
        tx.payload.value = U256::zero();
        tx.payload.data = Bytes::new();
        tx.nonce = Nonce(0);
        assert_eq!(difference(&tx, signed(&wallet(), &tx)), "none");
    }
}

/// A changed field and its expected name.
type Change = (&'static str, fn(&mut UnsignedTx));

#[test]
fn every_changed_field_is_found_and_named() {
    let changes: [Change; 9] = [
        ("chainId", |tx| tx.chain_id = ChainId(1)),
        ("nonce", |tx| tx.nonce = Nonce(10)),
        ("to", |tx| tx.payload.to = Some(Address::repeat_byte(0x36))),
        ("to", |tx| tx.payload.to = None),
        ("value", |tx| tx.payload.value += U256::one()),
        ("data", |tx| tx.payload.data = Bytes::from_static(&[0xab, 0xcd, 0, 2])),
        ("data", |tx| tx.payload.data = Bytes::new()),
        ("gas", |tx| tx.gas_limit += U256::one()),
        ("nonce", |tx| tx.nonce = Nonce(0)),
    ];
    for tx in each_type() {
        for (name, change) in changes {
            let mut other = tx.clone();
            change(&mut other);
            assert_eq!(difference(&tx, signed(&wallet(), &other)), name, "{:?}", tx.typed());
        }
    }
}

#[test]
fn changed_fees_lists_and_types_are_found_and_named() {
    let [legacy, listed, dynamic] = each_type();
    let price = Fees::Legacy { gas_price: 21.into() };
    let dear = Fees::Eip1559 { max_fee_per_gas: 31.into(), max_priority_fee_per_gas: 2.into() };
    let tip = Fees::Eip1559 { max_fee_per_gas: 30.into(), max_priority_fee_per_gas: 3.into() };
    let with = |tx: &UnsignedTx, fees| UnsignedTx { fees, ..tx.clone() };
    let relisted = |tx: &UnsignedTx| {
        let mut tx = tx.clone();
        let item = tx.payload.access_list.0[0].clone();
        tx.payload.access_list = AccessList(vec![item.clone(), item]);
        tx
    };
    let mut retyped = dynamic.clone();
    retyped.payload.kind = TxKind::Legacy;
    for (asked, got, name) in [
        (&legacy, with(&legacy, price), "gasPrice"),
        (&listed, with(&listed, price), "gasPrice"),
        (&dynamic, with(&dynamic, dear), "maxFeePerGas"),
        (&dynamic, with(&dynamic, tip), "maxPriorityFeePerGas"),
        (&listed, relisted(&listed), "accessList"),
        (&dynamic, relisted(&dynamic), "accessList"),
        (&legacy, listed.clone(), "type"),
        (&listed, legacy.clone(), "type"),
        (&dynamic, retyped, "type"),
    ] {
        assert_eq!(difference(asked, signed(&wallet(), &got)), name);
    }
}

#[test]
fn another_key_is_found() {
    let other: LocalWallet =
        "4747474747474747474747474747474747474747474747474747474747474747".parse().unwrap();
    for tx in each_type() {
        assert_eq!(difference(&tx, signed(&other, &tx)), "from");
        // All fields are correct, but the signature is of another transaction.
        let mut stale = tx.clone();
        stale.nonce = Nonce(8);
        assert_eq!(difference(&tx, tx.typed().rlp_signed(&signature(&wallet(), &stale))), "from");
        assert_ne!(other.address(), tx.from);
    }
}

#[test]
fn a_signature_that_nodes_reject_is_rejected() {
    // The curve order.
    let order = HALF_ORDER * 2 + 1;
    for tx in each_type() {
        let good = signature(&wallet(), &tx);
        let encoded = |signature: Signature| tx.typed().rlp_signed(&signature);
        // The higher value of `s` with the other parity recovers to the same sender.
        let parity = if good.v.is_multiple_of(2) { good.v - 1 } else { good.v + 1 };
        let high = Signature { s: order - good.s, v: parity, ..good };
        assert_eq!(high.recover(tx.typed().sighash()).unwrap(), tx.from);
        assert_eq!(difference(&tx, encoded(high)), "s");
        assert_eq!(difference(&tx, encoded(Signature { s: U256::zero(), ..good })), "s");
        assert_eq!(difference(&tx, encoded(Signature { r: U256::zero(), ..good })), "r");
    }
    let [legacy, ..] = each_type();
    let good = signature(&wallet(), &legacy);
    for unprotected in [27, 28, 0, 1, 37, u64::MAX] {
        let raw = legacy.typed().rlp_signed(&Signature { v: unprotected, ..good });
        assert_eq!(difference(&legacy, raw), "chainId");
    }
}

#[test]
fn truncated_or_modified_bytes_are_rejected() {
    for tx in each_type() {
        let raw = signed(&wallet(), &tx);
        for end in 0..raw.len() {
            assert_ne!(difference(&tx, raw[..end].to_vec()), "none", "{end}");
        }
        let mut longer = raw.to_vec();
        longer.push(0);
        assert_eq!(difference(&tx, longer), "raw");
        for index in 0..raw.len() {
            let mut flipped = raw.to_vec();
            flipped[index] ^= 0x40;
            assert_ne!(difference(&tx, flipped), "none", "{index}");
        }
        for nonsense in
            [vec![], vec![0], vec![0xc0], vec![2], vec![2, 0xc0], vec![0xff; 200], vec![3, 0xc0], vec![0xf9]]
        {
            assert_ne!(difference(&tx, nonsense), "none");
        }
    }
}

#[test]
fn a_non_canonical_encoding_is_rejected() {
    // The nonce with a leading zero: some decoders accept it, but the hash differs.
    let [legacy, ..] = each_type();
    let raw = signed(&wallet(), &legacy).to_vec();
    let mut padded = raw.clone();
    // 0xf8, length, then the nonce as a single byte.
    assert_eq!((padded[0], padded[2]), (0xf8, 9));
    padded.splice(2..3, [0x82, 0, 9]);
    padded[1] += 2;
    assert_eq!(difference(&legacy, padded), "nonce");
}

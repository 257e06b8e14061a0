//! Transactions of every type and a key to sign them, for tests of signers.

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Bytes, Signature, U256};
use ethers_signers::{LocalWallet, Signer as _};
use serde_json::{Value, json};

use gapless_domain::{Address, ChainId, Fees, H256, Nonce, Payload, TxKind, UnsignedTx};

/// A fixed key.
pub fn wallet() -> LocalWallet {
    "4646464646464646464646464646464646464646464646464646464646464646".parse().expect("a key")
}

/// The signature of the transaction by this key.
pub fn signature(wallet: &LocalWallet, tx: &UnsignedTx) -> Signature {
    wallet.sign_transaction_sync(&tx.typed()).expect("a signature")
}

/// The correctly signed transaction.
pub fn signed(wallet: &LocalWallet, tx: &UnsignedTx) -> Bytes {
    tx.typed().rlp_signed(&signature(wallet, tx))
}

/// One transaction of each type, with distinct values in all fields.
pub fn each_type() -> [UnsignedTx; 3] {
    let dynamic = Fees::Eip1559 { max_fee_per_gas: 30.into(), max_priority_fee_per_gas: 2.into() };
    let legacy = Fees::Legacy { gas_price: 20.into() };
    let tx = |kind, fees, access_list: Value| UnsignedTx {
        chain_id: ChainId(31337),
        from: wallet().address(),
        nonce: Nonce(9),
        gas_limit: 90_000.into(),
        fees,
        payload: Payload {
            kind,
            data: Bytes::from_static(&[0xab, 0xcd, 0, 1]),
            access_list: serde_json::from_value(access_list).expect("an access list"),
            ..Payload::transfer(Address::repeat_byte(0x35), U256::exp10(18))
        },
    };
    let list = json!([{ "address": Address::repeat_byte(7), "storageKeys": [H256::repeat_byte(8)] }]);
    let txs = [
        tx(TxKind::Legacy, legacy, json!([])),
        tx(TxKind::Legacy, legacy, list.clone()),
        tx(TxKind::Eip1559, dynamic, list),
    ];
    assert!(matches!(txs[0].typed(), TypedTransaction::Legacy(_)));
    assert!(matches!(txs[1].typed(), TypedTransaction::Eip2930(_)));
    assert!(matches!(txs[2].typed(), TypedTransaction::Eip1559(_)));
    txs
}

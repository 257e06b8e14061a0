//! The contract of `Signer`.

use std::time::Duration;

use ethers_core::types::U256;
use ethers_core::utils::keccak256;

use super::Findings;
use gapless_domain::{ChainId, Fees, Nonce, Payload, TxKind, UnsignedTx};
use gapless_signer::{Signer, read_signed};

/// For a signer that is available. Signs both transaction types: the bytes must encode the requested transaction,
/// signed by its address.
pub async fn signer(signer: &dyn Signer, chain_id: ChainId, limit: Duration) -> Vec<String> {
    let mut found = Findings::default();
    found.expect(!signer.kind().is_empty(), "kind: empty");
    for kind in [TxKind::Eip1559, TxKind::Legacy] {
        let requested = unsigned(signer, chain_id, kind);
        let Some(draft) = found.value("sign", limit, signer.sign(&requested)).await else { continue };
        found.expect(draft.nonce == requested.nonce, "sign: the nonce differs");
        found.expect(draft.fees == requested.fees, "sign: the fees differ");
        found.expect(draft.gas_limit == requested.gas_limit, "sign: the gas limit differs");
        found.expect(Some(draft.max_cost) == requested.max_cost(), "sign: the maximum cost differs");
        found.expect(draft.tx_hash.0 == keccak256(&draft.raw), "sign: the hash does not match the bytes");
        match read_signed(chain_id, signer.address(), requested.nonce, &draft.raw) {
            Ok(read) => found.expect(
                read.payload.to == requested.payload.to && read.payload.value == requested.payload.value,
                "sign: the recipient or the value differs",
            ),
            Err(problem) => found.expect(false, format!("sign: {problem}")),
        }
    }
    found.0
}

fn unsigned(signer: &dyn Signer, chain_id: ChainId, kind: TxKind) -> UnsignedTx {
    let price = U256::from(1_000_000_000);
    UnsignedTx {
        chain_id,
        from: signer.address(),
        nonce: Nonce(7),
        gas_limit: 21_000.into(),
        fees: match kind {
            TxKind::Legacy => Fees::Legacy { gas_price: price },
            TxKind::Eip1559 => Fees::Eip1559 { max_fee_per_gas: price, max_priority_fee_per_gas: price },
        },
        payload: Payload { kind, ..Payload::transfer(signer.address(), U256::zero()) },
    }
}

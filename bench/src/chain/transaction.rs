//! Decodes raw transactions.

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Address, H256};
use ethers_core::utils::{keccak256, rlp::Rlp};

/// One in this many signatures is verified. Verifying all would dominate the CPU time, and the worker's
/// signer has verified each.
const RECOVERED_ONE_IN: u8 = 64;
const EIP_1559: u8 = 2;

#[derive(Clone, Copy, Debug)]
pub(super) struct Transaction {
    pub(super) hash: H256,
    pub(super) from: Address,
    pub(super) nonce: u64,
}

/// The benchmarks send from a submitter to itself, so the sender is known without recovering the signature.
pub(super) fn decode(raw: &[u8], chain_id: u64) -> Result<Transaction, String> {
    let Some((&EIP_1559, fields)) = raw.split_first() else { return Err("not of EIP-1559".to_owned()) };
    let fields = Rlp::new(fields);
    let bad = |error| format!("not a transaction: {error}");
    let (chain, nonce): (u64, u64) = (fields.val_at(0).map_err(bad)?, fields.val_at(1).map_err(bad)?);
    let from: Address = fields.val_at(5).map_err(bad)?;
    if chain != chain_id {
        return Err(format!("for chain {chain}"));
    }
    let hash = H256(keccak256(raw));
    if hash.0[31].is_multiple_of(RECOVERED_ONE_IN) {
        let signed = TypedTransaction::decode_signed(&Rlp::new(raw)).map_err(|error| error.to_string())?;
        if signed.0.from() != Some(&from) {
            return Err(format!("not from {from:#x} to itself"));
        }
    }
    Ok(Transaction { hash, from, nonce })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::{CHAIN_ID, keys};

    #[test]
    fn what_a_submitter_sends_to_itself_is_read_and_sometimes_checked() {
        let key = keys(1).remove(0);
        let mut recovered = 0;
        for nonce in 0..200 {
            let (hash, raw) = key.sign(nonce);
            let read = decode(&raw, CHAIN_ID).unwrap();
            assert_eq!((read.hash, read.from, read.nonce), (hash, key.address(), nonce));
            recovered += u32::from(hash.0[31].is_multiple_of(RECOVERED_ONE_IN));
            assert!(decode(&raw, 1).is_err());
        }
        assert!(recovered > 0, "some signatures were recovered");
    }
}

//! Signatures in transactions: computes `v` and verifies the signer.
//!
//! One implementation of the curve creates signatures and another verifies them, so that a bug in either is found
//! before the transaction is sent.

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Address, H256, Signature, U256};
use ethers_core::utils::keccak256;
use secp256k1::Message;
use secp256k1::ecdsa::{RecoverableSignature, RecoveryId};

use crate::ChainId;

/// Half of the curve order. Nodes accept only the lower of the two valid values of `s` (EIP-2).
pub const HALF_ORDER: U256 =
    U256([0xdfe9_2f46_681b_20a0, 0x5d57_6e73_57a4_501d, 0xffff_ffff_ffff_ffff, 0x7fff_ffff_ffff_ffff]);

/// The `v` of a transaction. On overflow it wraps, and the signature does not verify.
pub fn v(typed: &TypedTransaction, chain_id: ChainId, is_y_odd: bool) -> u64 {
    match typed {
        // EIP-155.
        TypedTransaction::Legacy(_) => {
            chain_id.0.wrapping_mul(2).wrapping_add(35).wrapping_add(u64::from(is_y_odd))
        }
        _ => u64::from(is_y_odd),
    }
}

pub fn is_low(s: U256) -> bool {
    !s.is_zero() && s <= HALF_ORDER
}

/// Whether nodes accept this as a signature of `address` over `digest`: checks `r`, `s` and the parity in `v`.
pub fn is_signature_of(address: Address, digest: H256, signature: &Signature) -> bool {
    is_low(signature.s) && sender(digest, signature) == Some(address)
}

fn sender(digest: H256, signature: &Signature) -> Option<Address> {
    let is_y_odd = match signature.v {
        parity @ (0 | 1) => parity == 1,
        // EIP-155: the last bit is the parity, the rest is the chain id.
        v @ 35.. => (v - 35) % 2 == 1,
        _ => return None,
    };
    let id = if is_y_odd { RecoveryId::One } else { RecoveryId::Zero };
    let mut compact = [0; 64];
    signature.r.to_big_endian(&mut compact[..32]);
    signature.s.to_big_endian(&mut compact[32..]);
    let signature = RecoverableSignature::from_compact(&compact, id).ok()?;
    let key = signature.recover_ecdsa(Message::from_digest(digest.0)).ok()?;
    // Skip the prefix byte of the uncompressed point. An address is the last 20 bytes of the hash of the coordinates.
    let hash = keccak256(&key.serialize_uncompressed()[1..]);
    Some(Address::from_slice(&hash[12..]))
}

#[cfg(test)]
mod tests {
    use ethers_core::types::TransactionRequest;
    use ethers_signers::{LocalWallet, Signer as _};

    use super::*;

    fn wallet(byte: u8) -> LocalWallet {
        LocalWallet::from_bytes(&[byte; 32]).unwrap()
    }

    fn signed(wallet: &LocalWallet, digest: H256) -> Signature {
        let signature = wallet.sign_hash(digest).unwrap();
        Signature { v: signature.v - 27, ..signature }
    }

    #[test]
    fn both_implementations_agree() {
        let mut odd = 0;
        for byte in 1..=60 {
            let (wallet, digest) = (wallet(byte), H256(keccak256([byte])));
            let signature = signed(&wallet, digest);
            odd += signature.v;
            assert!(is_signature_of(wallet.address(), digest, &signature));
            let by_chain = Signature { v: signature.v + 35 + 2 * 31_337, ..signature };
            assert!(is_signature_of(wallet.address(), digest, &by_chain));
            assert_eq!(signature.recover(digest).unwrap(), wallet.address());
        }
        assert!(odd > 0 && odd < 60, "both parities were met: {odd} of 60");
    }

    #[test]
    fn invalid_signatures_are_rejected() {
        let (key, digest) = (wallet(7), H256(keccak256("digest")));
        let (address, good) = (key.address(), signed(&key, digest));
        let order = HALF_ORDER * 2 + 1;
        for (what, bad) in [
            ("the other parity", Signature { v: 1 - good.v, ..good }),
            ("a v that says nothing", Signature { v: good.v + 2, ..good }),
            ("a v of every chain", Signature { v: good.v + 27, ..good }),
            (
                "the higher s, which recovers to the same key",
                Signature { s: order - good.s, v: 1 - good.v, ..good },
            ),
            ("another r", Signature { r: good.r + 1, ..good }),
            ("another s", Signature { s: good.s - 1, ..good }),
            ("no r", Signature { r: U256::zero(), ..good }),
            ("no s", Signature { s: U256::zero(), ..good }),
            ("an r beyond the curve", Signature { r: U256::MAX, ..good }),
            ("the signature of another key", signed(&wallet(8), digest)),
            ("the signature of something else", signed(&key, H256(keccak256("another")))),
        ] {
            assert!(!is_signature_of(address, digest, &bad), "{what}");
        }
        assert!(is_signature_of(address, digest, &good));
    }

    #[test]
    fn a_chain_id_that_overflows_v_gives_no_valid_signature() {
        let typed = TypedTransaction::Legacy(TransactionRequest::new());
        assert_eq!(v(&typed, ChainId(1), true), 38);
        let huge = ChainId(u64::MAX / 2);
        let (key, digest) = (wallet(7), H256(keccak256("digest")));
        let made = signed(&key, digest);
        let wrapped = Signature { v: v(&typed, huge, made.v == 1), ..made };
        assert!(!is_signature_of(key.address(), digest, &wrapped));
    }
}

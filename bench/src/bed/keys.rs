//! Deterministic keys of the benchmarks.

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Address, Bytes, Eip1559TransactionRequest, H256, Signature, U256};
use ethers_core::utils::keccak256;
use ethers_signers::{LocalWallet, Signer};
use gapless_domain::signature::is_signature_of;
use gapless_domain::{ChainId, Payload, SubmitterKey};

use super::run::CHAIN_ID;

/// Gas of a plain transfer. Set in every request, so that there are no estimates.
pub(crate) const GAS: u64 = 21_000;

#[derive(Clone, Debug)]
pub(crate) struct Key {
    wallet: LocalWallet,
    secret: [u8; 32],
}

/// Takes a few hundred microseconds per key.
pub(crate) fn keys(count: usize) -> Vec<Key> {
    let key = |index: usize| {
        let secret = keccak256(format!("gapless benchmark key {index}"));
        let wallet = LocalWallet::from_bytes(&secret).expect("a hash is a key, but for one in 2^128");
        Key { wallet, secret }
    };
    (0..count).map(key).collect()
}

impl Key {
    pub(crate) fn address(&self) -> Address {
        self.wallet.address()
    }

    /// The address as stored: lower-case hex.
    pub(crate) fn text(&self) -> String {
        format!("{:#x}", self.address())
    }

    pub(crate) fn submitter(&self) -> SubmitterKey {
        SubmitterKey { chain_id: ChainId(CHAIN_ID), address: self.address() }
    }

    pub(super) fn secret_hex(&self) -> String {
        hex::encode(self.secret)
    }

    /// The payload of all benchmarks: one wei from a submitter to itself. The in-process chain depends on that.
    pub(crate) fn payload(&self) -> Payload {
        Payload { gas_limit: Some(GAS.into()), ..Payload::transfer(self.address(), U256::one()) }
    }

    /// The same as a request body.
    pub(crate) fn request(&self, request_id: &str) -> String {
        let address = self.text();
        format!(
            r#"{{"submitter":"{address}","requestId":"{request_id}","payload":{{"to":"{address}","value":"1","gasLimit":"{GAS}"}}}}"#
        )
    }

    /// The same as a call of JSON-RPC.
    pub(crate) fn rpc_call(&self, id: usize) -> String {
        let address = self.text();
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"eth_sendTransaction","params":[{{"from":"{address}","to":"{address}","value":"0x1","gas":"{GAS:#x}"}}]}}"#
        )
    }

    /// The same as a signed transaction with this nonce.
    pub(crate) fn sign(&self, nonce: u64) -> (H256, Bytes) {
        let request = Eip1559TransactionRequest::new()
            .from(self.address())
            .to(self.address())
            .value(1)
            .gas(GAS)
            .nonce(nonce)
            .max_fee_per_gas(U256::exp10(11))
            .max_priority_fee_per_gas(U256::exp10(9))
            .chain_id(CHAIN_ID);
        let typed = TypedTransaction::Eip1559(request);
        let signature = self.wallet.sign_transaction_sync(&typed).expect("a transfer can be signed");
        let raw = typed.rlp_signed(&signature);
        (H256(keccak256(&raw)), raw)
    }

    /// Signs a digest, as the worker's signer does.
    pub(crate) fn signature(&self, digest: H256) -> Signature {
        let signature = self.wallet.sign_hash(digest).expect("any hash can be signed");
        Signature { v: signature.v - 27, ..signature }
    }

    /// Verifies a signature, as the worker's signer does.
    pub(crate) fn check(&self, digest: H256, signature: &Signature) -> bool {
        is_signature_of(self.address(), digest, signature)
    }
}

//! A private key in the memory of this process.

use async_trait::async_trait;
use ethers_core::types::Signature;
use ethers_core::utils::keccak256;
use ethers_signers::{LocalWallet, Signer as _};

use super::keystore::{self, KeystoreError};
use super::{Signer, SignerError};
use gapless_config::Secret;
use gapless_domain::signature::{is_signature_of, v};
use gapless_domain::{Address, H256, SignedDraft, UnsignedTx};

/// The key is zeroized on drop.
pub struct LocalSigner {
    wallet: LocalWallet,
    kind: &'static str,
}

impl std::fmt::Debug for LocalSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalSigner")
            .field("address", &self.wallet.address())
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl LocalSigner {
    pub(super) fn from_keystore(wallet: LocalWallet) -> Self {
        LocalSigner { wallet, kind: "keystore" }
    }

    #[cfg(test)]
    pub(super) fn from_raw_key(wallet: LocalWallet) -> Self {
        LocalSigner { wallet, kind: "raw_key" }
    }

    /// A private key as 64 hexadecimal digits, with or without `0x`.
    pub fn new(key: &Secret) -> Result<Self, KeystoreError> {
        Ok(LocalSigner { wallet: keystore::wallet_from_hex(key)?, kind: "raw_key" })
    }

    fn refused(&self, reason: impl Into<String>) -> SignerError {
        SignerError::Refused { address: self.wallet.address(), reason: reason.into() }
    }
}

#[async_trait]
impl Signer for LocalSigner {
    fn address(&self) -> Address {
        self.wallet.address()
    }

    fn kind(&self) -> &'static str {
        self.kind
    }

    /// Runs on the caller's thread: signing and checking take a fraction of a millisecond, and a blocking thread would
    /// add a large part of that.
    async fn sign(&self, tx: &UnsignedTx) -> Result<SignedDraft, SignerError> {
        if tx.from != self.address() {
            return Err(self.refused(format!("the transaction is from {:#x}", tx.from)));
        }
        let max_cost = tx.max_cost().ok_or_else(|| self.refused("gas, price and value exceed 256 bits"))?;
        let typed = tx.typed();
        // Hashed once, for signing and for checking.
        let digest = typed.sighash();
        let signed = self.wallet.sign_hash(digest).map_err(|error| self.refused(error.to_string()))?;
        // 27 and 28 encode the parity. 29 and 30 mean a reduced `r`, which a transaction cannot encode.
        let is_y_odd = match signed.v {
            27 => false,
            28 => true,
            _ => return Err(self.refused("the signature cannot be encoded in a transaction")),
        };
        let signature = Signature { v: v(&typed, tx.chain_id, is_y_odd), ..signed };
        // A wrong signature would belong to another sender, and the nonce would never be consumed.
        if !is_signature_of(self.address(), digest, &signature) {
            return Err(self.refused("the signature does not recover to the address"));
        }
        let raw = typed.rlp_signed(&signature);
        let tx_hash = H256(keccak256(&raw));
        Ok(SignedDraft { nonce: tx.nonce, raw, tx_hash, gas_limit: tx.gas_limit, fees: tx.fees, max_cost })
    }
}

#[cfg(test)]
mod tests {
    use ethers_core::types::{Bytes, U256};

    use super::*;
    use gapless_domain::{ChainId, Fees, Nonce, Payload, TxKind};

    fn signer(key: &str) -> LocalSigner {
        LocalSigner::from_raw_key(key.parse().unwrap())
    }

    fn unsigned(signer: &LocalSigner, kind: TxKind, fees: Fees) -> UnsignedTx {
        let payload = Payload { kind, ..Payload::transfer(Address::repeat_byte(0x35), U256::exp10(18)) };
        UnsignedTx {
            chain_id: ChainId(1),
            from: signer.address(),
            nonce: Nonce(9),
            gas_limit: 21_000.into(),
            fees,
            payload,
        }
    }

    /// The worked example of EIP-155.
    #[tokio::test]
    async fn the_example_of_eip_155_comes_out_byte_by_byte() {
        let signer = signer("4646464646464646464646464646464646464646464646464646464646464646");
        let tx = unsigned(&signer, TxKind::Legacy, Fees::Legacy { gas_price: U256::from(20_000_000_000u64) });
        let draft = signer.sign(&tx).await.unwrap();
        let expected = "f86c098504a817c800825208943535353535353535353535353535353535353535880de0b6b3a76400008025a028ef61\
                        340bd939bc2195fe537567866003e1a15d3c71ff63e1590620aa636276a067cbe9d8997f761aecb703304b3800ccf555\
                        c9f3dc64214b297fb1966a3b6d83";
        assert_eq!(hex::encode(&draft.raw), expected);
        assert_eq!(
            format!("{:#x}", draft.tx_hash),
            "0x33469b22e9f636356c4160a87eb19df52b7412e8eac32a4a55ffe88ea8350788"
        );
        assert_eq!(draft.max_cost, U256::exp10(18) + U256::from(21_000u64 * 20_000_000_000));
        assert_eq!(draft.nonce, Nonce(9));
    }

    /// Computed with an independent implementation of RLP, Keccak and RFC 6979, which also yields the example above.
    #[tokio::test]
    async fn a_dynamic_fee_transaction_comes_out_byte_by_byte() {
        let signer = signer("4646464646464646464646464646464646464646464646464646464646464646");
        let fees = Fees::Eip1559 { max_fee_per_gas: 30.into(), max_priority_fee_per_gas: 2.into() };
        let draft = signer.sign(&unsigned(&signer, TxKind::Eip1559, fees)).await.unwrap();
        let expected = "02f86a0109021e825208943535353535353535353535353535353535353535880de0b6b3a764000080c001a0a4e1fba1\
                        2523fec56843c4157801788c52f63281d16ee4abe87cb42505404da9a043f4a9e46f8e94db8484f9c9455d4eba2c0e86\
                        07ff6b241b4b3fb146b99c7c77";
        assert_eq!(hex::encode(&draft.raw), expected);
        assert_eq!(
            format!("{:#x}", draft.tx_hash),
            "0xc7cc9d0a0af6f1ad401cdc3104bac6b2f6d29e639cc049b501eb06a056cd0c02"
        );
    }

    #[tokio::test]
    async fn invalid_transactions_are_refused() {
        let signer = signer("4646464646464646464646464646464646464646464646464646464646464646");
        let fees = Fees::Legacy { gas_price: U256::MAX };
        let error = signer.sign(&unsigned(&signer, TxKind::Legacy, fees)).await.unwrap_err();
        assert!(matches!(error, SignerError::Refused { .. }), "{error}");
        let mut other_sender = unsigned(&signer, TxKind::Legacy, Fees::Legacy { gas_price: 1.into() });
        other_sender.from = Address::zero();
        assert!(matches!(signer.sign(&other_sender).await, Err(SignerError::Refused { .. })));
    }

    #[tokio::test]
    async fn a_deployment_and_an_access_list_are_signed() {
        let signer = signer("4646464646464646464646464646464646464646464646464646464646464646");
        for kind in [TxKind::Legacy, TxKind::Eip1559] {
            let fees = Fees::Eip1559 { max_fee_per_gas: 30.into(), max_priority_fee_per_gas: 2.into() };
            let mut tx = unsigned(&signer, kind, fees);
            tx.payload.to = None;
            tx.payload.data = Bytes::from_static(&[0x60, 0x00]);
            signer.sign(&tx).await.unwrap();
            tx.payload.access_list = serde_json::from_value(
                serde_json::json!([{ "address": Address::zero(), "storageKeys": [] }]),
            )
            .unwrap();
            signer.sign(&tx).await.unwrap();
        }
    }

    #[test]
    fn a_signer_prints_no_key() {
        let text =
            format!("{:?}", signer("4646464646464646464646464646464646464646464646464646464646464646"));
        assert!(!text.contains("4646"), "{text}");
    }
}

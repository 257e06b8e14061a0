//! Keys of the tests, and their use outside of Gapless.

use std::sync::Arc;

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Address, Bytes, H256, TransactionRequest, U256};
use ethers_core::utils::keccak256;
use ethers_signers::{LocalWallet, Signer};
use serde_json::{Value, json};

use crate::eventually::eventually;
use crate::node::Node;

/// An address and usually its key, generated for one test.
#[derive(Clone, Debug)]
pub struct Submitter {
    address: Address,
    /// `None`: only a remote signer has it.
    key: Option<Arc<Key>>,
}

#[derive(Debug)]
struct Key {
    wallet: LocalWallet,
    secret: [u8; 32],
}

impl Submitter {
    pub fn random() -> Submitter {
        Submitter::with_secret(rand::random())
    }

    fn with_secret(secret: [u8; 32]) -> Submitter {
        let wallet = LocalWallet::from_bytes(&secret).expect("32 bytes are a key, but for one in 2^128");
        Submitter { address: wallet.address(), key: Some(Arc::new(Key { wallet, secret })) }
    }

    /// From a hex key, as in a worker's environment.
    pub fn from_hex(key: &str) -> Submitter {
        let mut secret = [0; 32];
        hex::decode_to_slice(key, &mut secret).expect("32 bytes of hex");
        Submitter::with_secret(secret)
    }

    /// A submitter whose key is in a remote signer.
    pub fn without_key(address: Address) -> Submitter {
        Submitter { address, key: None }
    }

    /// The first of anvil's accounts, whose key is public.
    pub fn first_of_anvil() -> Submitter {
        Submitter::from_hex("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80")
    }

    pub fn address(&self) -> Address {
        self.address
    }

    fn key(&self) -> &Key {
        self.key.as_deref().unwrap_or_else(|| panic!("the key of {} is in a remote signer", self.text()))
    }

    /// The address as stored.
    pub fn bytes(&self) -> Vec<u8> {
        self.address.as_bytes().to_vec()
    }

    /// The address as the API shows it: lower-case hex.
    pub fn text(&self) -> String {
        format!("{:#x}", self.address())
    }

    /// The private key as hex, as in a worker's environment.
    pub fn key_hex(&self) -> String {
        hex::encode(self.key().secret)
    }

    /// Signs any transaction.
    pub fn sign(&self, typed: &TypedTransaction) -> Bytes {
        typed
            .rlp_signed(&self.key().wallet.sign_transaction_sync(typed).expect("a transaction can be signed"))
    }

    /// For remote signers that sign digests.
    #[cfg(feature = "cloud-keys")]
    pub(crate) fn wallet(&self) -> &LocalWallet {
        &self.key().wallet
    }

    /// Signs a plain transfer outside of Gapless.
    pub fn sign_transfer(&self, chain_id: u64, nonce: u64, to: Address, value: u64) -> (H256, Bytes) {
        let request = TransactionRequest::new()
            .from(self.address())
            .to(to)
            .value(value)
            .nonce(nonce)
            .gas(21_000)
            .gas_price(U256::exp10(11))
            .chain_id(chain_id);
        let typed = TypedTransaction::Legacy(request);
        let signature = self.key().wallet.sign_transaction_sync(&typed).expect("a transfer can be signed");
        let raw = typed.rlp_signed(&signature);
        (H256(keccak256(&raw)), raw)
    }

    /// Sends a transaction outside of Gapless, at the given nonce or the chain's next one. Returns the hash.
    pub async fn spend_outside(&self, node: &Node, nonce: Option<u64>) -> H256 {
        let nonce = match nonce {
            Some(nonce) => nonce,
            None => node.count(self.address(), "latest").await,
        };
        let (hash, raw) = self.sign_transfer(node.chain_id(), nonce, Address::repeat_byte(0xee), 1);
        node.rpc("eth_sendRawTransaction", json!([raw])).await;
        hash
    }

    /// Sends this many transactions outside of Gapless with a fresh key, and waits until all are mined.
    pub async fn make_history(&self, node: &Node, transactions: u64) {
        for nonce in 0..transactions {
            self.spend_outside(node, Some(nonce)).await;
        }
        eventually("the history is mined", async || match node.count(self.address(), "latest").await {
            count if count == transactions => Ok(()),
            other => Err(other),
        })
        .await;
    }
}

/// A transfer of `value` wei: the payload of most tests.
pub fn payload(to: Address, value: u64) -> Value {
    json!({ "to": format!("{to:#x}"), "value": value.to_string() })
}

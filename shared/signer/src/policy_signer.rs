//! A signer that checks the submitter's policy before it signs.
//!
//! The lane checks the policy first, with an error code, an audit row and the daily total. This is defence in depth for
//! code paths that skip that check.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Signer, SignerError};
use gapless_domain::{Address, Policy, SignedDraft, UnsignedTx};

#[derive(Debug)]
pub struct PolicySigner {
    signer: Arc<dyn Signer>,
    policy: Arc<Policy>,
}

impl PolicySigner {
    pub fn new(signer: Arc<dyn Signer>, policy: Arc<Policy>) -> PolicySigner {
        PolicySigner { signer, policy }
    }
}

#[async_trait]
impl Signer for PolicySigner {
    fn address(&self) -> Address {
        self.signer.address()
    }

    fn kind(&self) -> &'static str {
        self.signer.kind()
    }

    async fn sign(&self, tx: &UnsignedTx) -> Result<SignedDraft, SignerError> {
        let address = self.address();
        if let Err(breach) = self.policy.check(address, &tx.payload) {
            tracing::error!(chain.id = tx.chain_id.0, submitter = ?address, nonce = tx.nonce.0, rule = breach.rule.as_str(),
                "transaction violates the policy; not signed");
            return Err(SignerError::Refused { address, reason: breach.to_string() });
        }
        self.signer.sign(tx).await
    }
}

#[cfg(test)]
mod tests {
    use ethers_signers::LocalWallet;

    use super::*;
    use crate::LocalSigner;
    use gapless_domain::{ChainId, Fees, Nonce, Payload, U256};

    #[tokio::test]
    async fn a_policy_violation_is_not_signed_but_a_placeholder_is() {
        let local = LocalSigner::from_raw_key(LocalWallet::from_bytes(&[7; 32]).unwrap());
        let from = local.address();
        let policy = Policy { max_value: Some(1.into()), ..Policy::default() };
        let signer = PolicySigner::new(Arc::new(local), Arc::new(policy));
        let unsigned = |to, value: u64| UnsignedTx {
            chain_id: ChainId(1),
            from,
            nonce: Nonce(0),
            gas_limit: 21_000.into(),
            fees: Fees::Legacy { gas_price: U256::one() },
            payload: Payload::transfer(to, value.into()),
        };
        let other = Address::repeat_byte(9);
        let refused = signer.sign(&unsigned(other, 2)).await.unwrap_err();
        assert!(matches!(refused, SignerError::Refused { .. }), "{refused}");
        assert!(signer.sign(&unsigned(other, 1)).await.is_ok());
        assert!(signer.sign(&unsigned(from, 0)).await.is_ok());
    }
}

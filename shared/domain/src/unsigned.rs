//! A transaction before it becomes an attempt: unsigned, then signed but not yet committed.

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{
    Address, Bytes, Eip1559TransactionRequest, Eip2930TransactionRequest, H256, NameOrAddress,
    TransactionRequest, U256,
};
use serde::{Deserialize, Serialize};

use super::ids::{ChainId, Nonce};
use super::payload::{Payload, TxKind};

/// The price of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Fees {
    #[serde(rename_all = "camelCase")]
    Legacy { gas_price: U256 },
    #[serde(rename_all = "camelCase")]
    Eip1559 { max_fee_per_gas: U256, max_priority_fee_per_gas: U256 },
}

impl Fees {
    /// The smallest higher price.
    pub fn one_wei_more(self) -> Fees {
        match self {
            Fees::Legacy { gas_price } => Fees::Legacy { gas_price: gas_price.saturating_add(U256::one()) },
            Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas } => {
                let max_fee_per_gas = max_fee_per_gas.saturating_add(U256::one());
                Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas }
            }
        }
    }

    /// The maximum price per unit of gas.
    pub fn cap(&self) -> U256 {
        match self {
            Fees::Legacy { gas_price } => *gas_price,
            Fees::Eip1559 { max_fee_per_gas, .. } => *max_fee_per_gas,
        }
    }
}

/// Everything that will be signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsignedTx {
    pub chain_id: ChainId,
    pub from: Address,
    pub nonce: Nonce,
    pub gas_limit: U256,
    pub fees: Fees,
    pub payload: Payload,
}

impl UnsignedTx {
    /// The balance a node requires of the sender. `None` if it exceeds 256 bits.
    pub fn max_cost(&self) -> Option<U256> {
        self.gas_limit.checked_mul(self.fees.cap())?.checked_add(self.payload.value)
    }

    /// As the ethers type used for signing and encoding.
    pub fn typed(&self) -> TypedTransaction {
        let to = self.payload.to.map(NameOrAddress::Address);
        match (self.payload.kind, self.fees) {
            (TxKind::Eip1559, Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas }) => {
                TypedTransaction::Eip1559(Eip1559TransactionRequest {
                    from: Some(self.from),
                    to,
                    gas: Some(self.gas_limit),
                    value: Some(self.payload.value),
                    data: Some(self.payload.data.clone()),
                    nonce: Some(self.nonce.0.into()),
                    access_list: self.payload.access_list.clone(),
                    max_priority_fee_per_gas: Some(max_priority_fee_per_gas),
                    max_fee_per_gas: Some(max_fee_per_gas),
                    chain_id: Some(self.chain_id.0.into()),
                })
            }
            (_, fees) => {
                let legacy = TransactionRequest {
                    from: Some(self.from),
                    to,
                    gas: Some(self.gas_limit),
                    gas_price: Some(fees.cap()),
                    value: Some(self.payload.value),
                    data: Some(self.payload.data.clone()),
                    nonce: Some(self.nonce.0.into()),
                    chain_id: Some(self.chain_id.0.into()),
                };
                if self.payload.access_list.0.is_empty() {
                    TypedTransaction::Legacy(legacy)
                } else {
                    TypedTransaction::Eip2930(Eip2930TransactionRequest::new(
                        legacy,
                        self.payload.access_list.clone(),
                    ))
                }
            }
        }
    }
}

/// Signed bytes that are not yet recorded. They cannot be broadcast: only a committed `Attempt` can.
#[derive(Clone, PartialEq, Eq)]
pub struct SignedDraft {
    pub nonce: Nonce,
    pub raw: Bytes,
    pub tx_hash: H256,
    pub gas_limit: U256,
    pub fees: Fees,
    pub max_cost: U256,
}

impl SignedDraft {
    /// Stored with the attempt: fees, gas limit and maximum cost, as 0x quantities.
    pub fn gas_params(&self) -> serde_json::Value {
        serde_json::json!({ "gasLimit": self.gas_limit, "fees": self.fees, "maxCost": self.max_cost })
    }
}

impl std::fmt::Debug for SignedDraft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Signed bytes can be broadcast by anyone who reads them: never log them.
        f.debug_struct("SignedDraft")
            .field("nonce", &self.nonce)
            .field("tx_hash", &self.tx_hash)
            .finish_non_exhaustive()
    }
}

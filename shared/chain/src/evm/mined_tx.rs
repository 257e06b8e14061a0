//! A sender's transactions in a block. The node is not trusted: the hash is computed from the fields and the sender
//! recovered from the signature.

use ethers_core::types::transaction::eip2930::AccessListItem;
use ethers_core::types::{Address, Bytes, H256, Signature, U256};
use ethers_core::utils::keccak256;
use ethers_core::utils::rlp::RlpStream;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::decode::{Count, Quantity};
use crate::port::{BlockId, MinedTx};
use gapless_domain::signature::is_signature_of;

/// A block with its transactions.
#[derive(Debug, Deserialize)]
pub(super) struct FullBlock {
    number: Count,
    hash: H256,
    transactions: Vec<Box<RawValue>>,
}

/// The node's claim about hash, sender and nonce.
#[derive(Debug, Deserialize)]
struct Claim {
    hash: H256,
    from: Address,
    nonce: Count,
}

/// The transactions of a sender in a block.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) proved: Vec<MinedTx>,
    /// Reported for the sender, but the signature does not verify.
    pub(super) unproved: Vec<MinedTx>,
}

impl FullBlock {
    /// `None`: not the requested block.
    pub(super) fn sent_by(&self, sender: Address, asked: BlockId) -> Option<Found> {
        if self.hash != asked.hash || self.number.0 != asked.number {
            return None;
        }
        let mut found = Found::default();
        for raw in &self.transactions {
            let Ok(claim) = serde_json::from_str::<Claim>(raw.get()) else { continue };
            if claim.from != sender {
                continue;
            }
            let tx = MinedTx { tx_hash: claim.hash, nonce: claim.nonce.0, block: asked };
            match serde_json::from_str::<SignedTx>(raw.get()) {
                Ok(signed) if signed.proves(&claim) => found.proved.push(tx),
                _ => found.unproved.push(tx),
            }
        }
        Some(found)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Authorization {
    chain_id: Quantity,
    address: Address,
    nonce: Quantity,
    #[serde(alias = "v")]
    y_parity: Quantity,
    r: Quantity,
    s: Quantity,
}

/// Every signed field, and the signature. Transaction types 0 to 4.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SignedTx {
    #[serde(rename = "type", default)]
    kind: Option<Count>,
    chain_id: Option<Quantity>,
    nonce: Quantity,
    gas: Quantity,
    to: Option<Address>,
    value: Quantity,
    input: Bytes,
    gas_price: Option<Quantity>,
    max_fee_per_gas: Option<Quantity>,
    max_priority_fee_per_gas: Option<Quantity>,
    #[serde(default)]
    access_list: Option<Vec<AccessListItem>>,
    max_fee_per_blob_gas: Option<Quantity>,
    #[serde(default)]
    blob_versioned_hashes: Option<Vec<H256>>,
    #[serde(default)]
    authorization_list: Option<Vec<Authorization>>,
    v: Option<Quantity>,
    y_parity: Option<Quantity>,
    r: Quantity,
    s: Quantity,
}

impl SignedTx {
    /// Whether the fields hash to the claimed hash and the claimed sender signed them.
    fn proves(&self, claim: &Claim) -> bool {
        let kind = self.kind.map_or(0, |kind| kind.0);
        if self.nonce.0 != U256::from(claim.nonce.0) {
            return false;
        }
        let Some(fields) = self.fields(kind) else { return false };
        let Some((v, is_y_odd)) = self.parity(kind) else { return false };
        let signature = [item(v), item(self.r.0), item(self.s.0)];
        let signed = encode(kind, fields.iter().chain(&signature));
        // A legacy transaction with replay protection also signs the chain id (EIP-155).
        let bound = match (kind, v.checked_sub(U256::from(35))) {
            (0, Some(twice)) => vec![item(twice / 2), item(U256::zero()), item(U256::zero())],
            _ => Vec::new(),
        };
        let digest = H256(keccak256(encode(kind, fields.iter().chain(&bound))));
        let signature = Signature { r: self.r.0, s: self.s.0, v: u64::from(is_y_odd) };
        H256(keccak256(signed)) == claim.hash && is_signature_of(claim.from, digest, &signature)
    }

    /// `v` as encoded, and its parity.
    fn parity(&self, kind: u64) -> Option<(U256, bool)> {
        if kind == 0 {
            let v = self.v?.0;
            let is_odd = match v.checked_sub(U256::from(35)) {
                Some(bound) => bound.bit(0),
                None if v == 27.into() || v == 28.into() => v == 28.into(),
                None => return None,
            };
            return Some((v, is_odd));
        }
        let parity = self.y_parity.or(self.v)?.0;
        (parity <= U256::one()).then(|| (parity, parity.bit(0)))
    }

    /// The signed fields in order. `None`: a field is missing, or the type is unknown.
    fn fields(&self, kind: u64) -> Option<Vec<Vec<u8>>> {
        let to = self.to.map_or_else(|| item(Vec::<u8>::new()), item);
        let tail = [item(self.gas.0), to, item(self.value.0), item(self.input.to_vec())];
        let quantity = |value: Option<Quantity>| value.map(|quantity| item(quantity.0));
        let mut fields = Vec::new();
        if kind > 0 {
            fields.push(quantity(self.chain_id)?);
        }
        fields.push(item(self.nonce.0));
        match kind {
            0 | 1 => fields.push(quantity(self.gas_price)?),
            2..=4 => {
                fields.push(quantity(self.max_priority_fee_per_gas)?);
                fields.push(quantity(self.max_fee_per_gas)?);
            }
            _ => return None,
        }
        fields.extend(tail);
        if kind > 0 {
            fields.push(access_list(self.access_list.as_deref().unwrap_or_default()));
        }
        if kind == 3 {
            fields.push(quantity(self.max_fee_per_blob_gas)?);
            let hashes = self.blob_versioned_hashes.as_deref()?;
            fields.push(list(hashes.iter().map(|hash| item(*hash))));
        }
        if kind == 4 {
            let authorizations = self.authorization_list.as_deref()?;
            fields.push(list(authorizations.iter().map(|one| {
                let numbers = [one.nonce, one.y_parity, one.r, one.s].map(|quantity| item(quantity.0));
                list([item(one.chain_id.0), item(one.address)].into_iter().chain(numbers))
            })));
        }
        Some(fields)
    }
}

fn access_list(items: &[AccessListItem]) -> Vec<u8> {
    list(items.iter().map(|entry| {
        list([item(entry.address), list(entry.storage_keys.iter().map(|key| item(*key)))].into_iter())
    }))
}

fn item(value: impl ethers_core::utils::rlp::Encodable) -> Vec<u8> {
    ethers_core::utils::rlp::encode(&value).to_vec()
}

fn list(items: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let items: Vec<Vec<u8>> = items.collect();
    let mut stream = RlpStream::new_list(items.len());
    items.iter().for_each(|one| {
        stream.append_raw(one, 1);
    });
    stream.out().to_vec()
}

/// Prefixed with the transaction type (EIP-2718), except for legacy transactions.
fn encode<'a>(kind: u64, fields: impl Iterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let body = list(fields.cloned());
    match u8::try_from(kind) {
        Ok(0) | Err(_) => body,
        Ok(kind) => [vec![kind], body].concat(),
    }
}

#[cfg(test)]
#[path = "mined_tx_tests.rs"]
mod tests;

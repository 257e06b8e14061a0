//! Compares a transaction signed by another process with the requested transaction.
//!
//! The bytes must be the exact encoding of the requested transaction with a signature of its sender. Otherwise an
//! unintended transaction would be recorded at the nonce and sent.

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Bytes, Signature, U256};
use ethers_core::utils::keccak256;
use ethers_core::utils::rlp::{PayloadInfo, Rlp};

use gapless_domain::signature::{is_low, is_signature_of};
use gapless_domain::{H256, SignedDraft, UnsignedTx};

/// The first field that differs from the request. Without values, because clients can read this text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signed transaction differs from the request: `{0}`")]
pub struct Difference(pub &'static str);

const LEGACY: [&str; 9] = ["nonce", "gasPrice", "gas", "to", "value", "data", "v", "r", "s"];
const EIP_2930: [&str; 11] =
    ["chainId", "nonce", "gasPrice", "gas", "to", "value", "data", "accessList", "v", "r", "s"];
const EIP_1559: [&str; 12] = [
    "chainId",
    "nonce",
    "maxPriorityFeePerGas",
    "maxFeePerGas",
    "gas",
    "to",
    "value",
    "data",
    "accessList",
    "v",
    "r",
    "s",
];

/// The draft, if `raw` is exactly `tx`; otherwise the first difference.
pub fn check_signed(tx: &UnsignedTx, raw: Bytes) -> Result<SignedDraft, Difference> {
    let typed = tx.typed();
    let max_cost = tx.max_cost().ok_or(Difference("gas"))?;
    // A legacy transaction is an RLP list, whose first byte is never a type number.
    let (kind, body) = match raw.split_first() {
        Some((kind @ 1..=0x7f, body)) => (*kind, body),
        Some(_) => (0, raw.as_ref()),
        None => return Err(Difference("raw")),
    };
    let (asked_kind, names): (u8, &[&str]) = match &typed {
        TypedTransaction::Legacy(_) => (0, &LEGACY),
        TypedTransaction::Eip2930(_) => (1, &EIP_2930),
        TypedTransaction::Eip1559(_) => (2, &EIP_1559),
    };
    if kind != asked_kind {
        return Err(Difference("type"));
    }
    let fields = fields(body, names.len()).ok_or(Difference("raw"))?;
    let signature = signature(&fields[names.len() - 3..], tx, asked_kind)?;

    let asked = typed.rlp_signed(&signature);
    let skipped = usize::from(asked_kind != 0);
    let asked_fields = self::fields(&asked[skipped..], names.len()).ok_or(Difference("raw"))?;
    for ((name, signed), asked) in names.iter().copied().zip(&fields).zip(&asked_fields) {
        if signed != asked {
            return Err(Difference(name));
        }
    }
    if asked != raw {
        return Err(Difference("raw"));
    }
    if !is_signature_of(tx.from, typed.sighash(), &signature) {
        return Err(Difference("from"));
    }
    let tx_hash = H256(keccak256(&raw));
    Ok(SignedDraft { nonce: tx.nonce, raw, tx_hash, gas_limit: tx.gas_limit, fees: tx.fees, max_cost })
}

/// The encoded items of a list with exactly `count` items and no trailing bytes.
fn fields(body: &[u8], count: usize) -> Option<Vec<&[u8]>> {
    let PayloadInfo { header_len, value_len } = PayloadInfo::from(body).ok()?;
    let list = Rlp::new(body);
    if header_len.checked_add(value_len)? != body.len() || !list.is_list() || list.item_count().ok()? != count
    {
        return None;
    }
    (0..count).map(|index| list.at(index).ok().map(|item| item.as_raw())).collect()
}

fn signature(fields: &[&[u8]], tx: &UnsignedTx, kind: u8) -> Result<Signature, Difference> {
    let number = |index: usize, name| Rlp::new(fields[index]).as_val::<U256>().map_err(|_| Difference(name));
    let (v, r, s) = (number(0, "v")?, number(1, "r")?, number(2, "s")?);
    let smallest = match kind {
        // EIP-155. The older values 27 and 28 are valid on every chain and not accepted.
        0 => U256::from(tx.chain_id.0) * 2 + 35,
        _ => U256::zero(),
    };
    if v < smallest || v > smallest + 1 {
        return Err(Difference(if kind == 0 { "chainId" } else { "v" }));
    }
    if r.is_zero() {
        return Err(Difference("r"));
    }
    if !is_low(s) {
        return Err(Difference("s"));
    }
    Ok(Signature { r, s, v: u64::try_from(v).map_err(|_| Difference("v"))? })
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;

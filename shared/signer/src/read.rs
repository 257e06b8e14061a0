//! Decodes a transaction signed by the reserving client of a nonce.
//!
//! The bytes are not trusted: the decoded transaction is encoded again and compared byte by byte, and the signature
//! must be the sender's, for this chain and this nonce.

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::transaction::eip2930::AccessList;
use ethers_core::types::{Bytes, NameOrAddress, TransactionRequest, U256};
use ethers_core::utils::rlp::Rlp;

use super::check::check_signed;
use gapless_domain::{Address, ChainId, Fees, Nonce, Payload, SignedDraft, Speed, TxKind, UnsignedTx};

/// The decoded payload, and the bytes as a draft.
#[derive(Clone, Debug)]
pub struct ReadSigned {
    /// Includes gas limit and fees, so that a replacement stays within the signed limits.
    pub payload: Payload,
    pub draft: SignedDraft,
}

/// Decodes bytes that must be a transaction of `from` on this chain at this nonce. The error describes the problem.
pub fn read_signed(
    chain_id: ChainId,
    from: Address,
    nonce: Nonce,
    raw: &Bytes,
) -> Result<ReadSigned, String> {
    let (typed, _) = TypedTransaction::decode_signed(&Rlp::new(raw))
        .map_err(|error| format!("not a signed transaction of a supported type: {error}"))?;
    let signed_nonce = typed.nonce().copied().unwrap_or_default();
    if signed_nonce != U256::from(nonce.0) {
        return Err("signed for another nonce than the reserved one".to_owned());
    }
    if typed.chain_id().map(|id| id.as_u64()) != Some(chain_id.0) {
        return Err("signed for another chain, or without a chain id".to_owned());
    }
    let (payload, fees) = content(&typed)?;
    let gas_limit = payload.gas_limit.unwrap_or_default();
    let unsigned = UnsignedTx { chain_id, from, nonce, gas_limit, fees, payload };
    let draft = check_signed(&unsigned, raw.clone()).map_err(|difference| match difference.0 {
        "from" => "not signed by the submitter".to_owned(),
        field => format!("`{field}` is not in canonical encoding"),
    })?;
    Ok(ReadSigned { payload: unsigned.payload, draft })
}

fn content(typed: &TypedTransaction) -> Result<(Payload, Fees), String> {
    let (kind, access_list, fees) = match typed {
        TypedTransaction::Legacy(tx) => (TxKind::Legacy, AccessList::default(), legacy_fees(tx)),
        TypedTransaction::Eip2930(tx) => {
            // With an empty list it would be encoded as a legacy transaction.
            if tx.access_list.0.is_empty() {
                return Err("an EIP-2930 transaction needs an access list".to_owned());
            }
            (TxKind::Legacy, tx.access_list.clone(), legacy_fees(&tx.tx))
        }
        TypedTransaction::Eip1559(tx) => {
            let fees = Fees::Eip1559 {
                max_fee_per_gas: tx.max_fee_per_gas.unwrap_or_default(),
                max_priority_fee_per_gas: tx.max_priority_fee_per_gas.unwrap_or_default(),
            };
            (TxKind::Eip1559, tx.access_list.clone(), fees)
        }
    };
    let tip = match fees {
        Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas } => {
            if max_priority_fee_per_gas > max_fee_per_gas {
                return Err("the priority fee is above the maximum fee".to_owned());
            }
            Some(max_priority_fee_per_gas)
        }
        Fees::Legacy { .. } => None,
    };
    let to = match typed.to() {
        Some(NameOrAddress::Address(address)) => Some(*address),
        Some(NameOrAddress::Name(_)) => return Err("the recipient is not an address".to_owned()),
        None => None,
    };
    let payload = Payload {
        to,
        value: typed.value().copied().unwrap_or_default(),
        data: typed.data().cloned().unwrap_or_default(),
        gas_limit: Some(typed.gas().copied().unwrap_or_default()),
        kind,
        max_fee_per_gas: Some(fees.cap()),
        max_priority_fee_per_gas: tip,
        speed: Speed::Normal,
        access_list,
        not_before: None,
        deadline: None,
        errors: Vec::new(),
    };
    Ok((payload, fees))
}

fn legacy_fees(tx: &TransactionRequest) -> Fees {
    Fees::Legacy { gas_price: tx.gas_price.unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use ethers_signers::{LocalWallet, Signer as _};

    use super::super::{LocalSigner, Signer};
    use super::*;

    const CHAIN: ChainId = ChainId(31337);

    fn signer() -> LocalSigner {
        LocalSigner::from_raw_key(
            "4646464646464646464646464646464646464646464646464646464646464646".parse().unwrap(),
        )
    }

    fn unsigned(kind: TxKind, listed: bool) -> UnsignedTx {
        let mut payload = Payload { kind, ..Payload::transfer(Address::repeat_byte(7), U256::from(5)) };
        if listed {
            payload.access_list = serde_json::from_value(
                serde_json::json!([{ "address": Address::repeat_byte(9), "storageKeys": [] }]),
            )
            .unwrap();
        }
        let fees = match kind {
            TxKind::Legacy => Fees::Legacy { gas_price: 9.into() },
            TxKind::Eip1559 => {
                Fees::Eip1559 { max_fee_per_gas: 30.into(), max_priority_fee_per_gas: 2.into() }
            }
        };
        UnsignedTx {
            chain_id: CHAIN,
            from: signer().address(),
            nonce: Nonce(4),
            gas_limit: 30_000.into(),
            fees,
            payload,
        }
    }

    #[tokio::test]
    async fn signed_transactions_of_each_kind_are_decoded() {
        for (kind, listed) in [
            (TxKind::Legacy, false),
            (TxKind::Legacy, true),
            (TxKind::Eip1559, false),
            (TxKind::Eip1559, true),
        ] {
            let tx = unsigned(kind, listed);
            let draft = signer().sign(&tx).await.unwrap();
            let read = read_signed(CHAIN, tx.from, tx.nonce, &draft.raw).unwrap();
            assert_eq!(read.draft, draft);
            assert_eq!((read.payload.to, read.payload.value), (tx.payload.to, tx.payload.value));
            assert_eq!(read.payload.access_list, tx.payload.access_list);
            assert_eq!(read.payload.max_fee_per_gas, Some(tx.fees.cap()));
        }
    }

    #[tokio::test]
    async fn another_nonce_chain_or_sender_and_invalid_bytes_are_rejected() {
        let tx = unsigned(TxKind::Eip1559, false);
        let raw = signer().sign(&tx).await.unwrap().raw;
        let problem = |chain, from, nonce, raw: &Bytes| read_signed(chain, from, nonce, raw).unwrap_err();
        assert!(problem(CHAIN, tx.from, Nonce(5), &raw).contains("another nonce"));
        assert!(problem(ChainId(1), tx.from, tx.nonce, &raw).contains("another chain"));
        assert!(problem(CHAIN, Address::zero(), tx.nonce, &raw).contains("by the submitter"));
        for nonsense in [vec![], vec![0x02], vec![0xc0], vec![0xff; 40], raw[..raw.len() - 1].to_vec()] {
            problem(CHAIN, tx.from, tx.nonce, &nonsense.into());
        }
        let mut longer = raw.to_vec();
        longer.push(0);
        problem(CHAIN, tx.from, tx.nonce, &longer.into());
    }

    #[tokio::test]
    async fn a_signature_without_a_chain_id_is_rejected() {
        let wallet: LocalWallet =
            "4646464646464646464646464646464646464646464646464646464646464646".parse().unwrap();
        let request = TransactionRequest::new().to(Address::repeat_byte(7)).nonce(4).gas(21_000).gas_price(9);
        let signature = wallet.sign_hash(request.sighash()).unwrap();
        let raw = TypedTransaction::Legacy(request).rlp_signed(&signature);
        let error = read_signed(CHAIN, wallet.address(), Nonce(4), &raw).unwrap_err();
        assert!(error.contains("without a chain id"), "{error}");
    }
}

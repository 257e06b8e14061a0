//! secp256k1 in the formats of the services: converts DER public keys to addresses and DER signatures to `r`, `s`,
//! parity.

use ethers_core::k256::ecdsa::{RecoveryId, Signature, VerifyingKey};
use ethers_core::types::{H256, U256};
use ethers_core::utils::public_key_to_address;

use gapless_domain::Address;

/// Prefix of an uncompressed point in a SubjectPublicKeyInfo with id-ecPublicKey on secp256k1. DER is canonical, so a
/// comparison is sufficient.
const SPKI_HEAD: [u8; 23] = [
    0x30, 0x56, 0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81,
    0x04, 0x00, 0x0a, 0x03, 0x42, 0x00,
];

/// The address of a public key.
pub(super) fn address(der: &[u8]) -> Result<Address, &'static str> {
    let point = der.strip_prefix(&SPKI_HEAD).filter(|point| point.len() == 65);
    let point = point.ok_or("the key is not a secp256k1 key")?;
    let key = VerifyingKey::from_sec1_bytes(point).map_err(|_| "invalid public key")?;
    Ok(public_key_to_address(&key))
}

/// A signature in the form that nodes accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) r: U256,
    /// The lower of the two valid values (EIP-2).
    pub(super) s: U256,
    pub(super) is_y_odd: bool,
}

/// Finds the parity, which the services do not return. `None`: the signature is not of the key of `address`.
pub(super) fn signature_of(address: Address, digest: H256, der: &[u8]) -> Option<Found> {
    let signature = Signature::from_der(der).ok()?;
    let signature = signature.normalize_s().unwrap_or(signature);
    let is_ours = |is_y_odd: &bool| {
        let id = RecoveryId::new(*is_y_odd, false);
        VerifyingKey::recover_from_prehash(digest.as_bytes(), &signature, id)
            .is_ok_and(|key| public_key_to_address(&key) == address)
    };
    let is_y_odd = [false, true].into_iter().find(is_ours)?;
    let (r, s) = signature.split_bytes();
    Some(Found { r: U256::from_big_endian(&r), s: U256::from_big_endian(&s), is_y_odd })
}

#[cfg(test)]
mod tests {
    use ethers_core::k256::ecdsa::SigningKey;
    use ethers_core::k256::ecdsa::signature::hazmat::PrehashSigner;
    use ethers_signers::{LocalWallet, Signer as _};

    use super::*;

    fn key(byte: u8) -> SigningKey {
        SigningKey::from_slice(&[byte; 32]).unwrap()
    }

    fn address_of(key: &SigningKey) -> Address {
        LocalWallet::from(key.clone()).address()
    }

    fn spki(key: &SigningKey) -> Vec<u8> {
        [&SPKI_HEAD[..], key.verifying_key().to_encoded_point(false).as_bytes()].concat()
    }

    #[test]
    fn a_public_key_has_the_address_of_its_key() {
        assert_eq!(address(&spki(&key(7))), Ok(address_of(&key(7))));
    }

    #[test]
    fn other_curves_points_and_lengths_are_rejected() {
        let good = spki(&key(7));
        let mut other_curve = good.clone();
        other_curve[19] = 0x01;
        let mut off_curve = good.clone();
        off_curve[87] ^= 1;
        let longer = [&good[..], &[0]].concat();
        let compressed = [&SPKI_HEAD[..], key(7).verifying_key().to_encoded_point(true).as_bytes()].concat();
        for bad in [other_curve, off_curve, longer, compressed, good[..87].to_vec(), Vec::new()] {
            assert!(address(&bad).is_err(), "{}", hex::encode(bad));
        }
    }

    #[test]
    fn both_parities_and_both_values_of_s_are_handled() {
        let (mut odd, mut high) = (0, 0);
        for byte in 1..=40 {
            let (key, digest) = (key(byte), H256::repeat_byte(byte));
            let low: Signature = key.sign_prehash(digest.as_bytes()).unwrap();
            assert_eq!(low.normalize_s(), None);
            let (r, s) = low.split_scalars();
            let other = Signature::from_scalars(r, -s).unwrap();
            let expected = signature_of(address_of(&key), digest, low.to_der().as_bytes()).unwrap();
            let same = signature_of(address_of(&key), digest, other.to_der().as_bytes()).unwrap();
            assert_eq!(expected, same);
            assert_eq!(expected.s, U256::from_big_endian(&low.split_bytes().1));
            odd += u32::from(expected.is_y_odd);
            high += 1;
        }
        assert!(odd > 0 && odd < high, "both parities were met: {odd} of {high}");
    }

    #[test]
    fn signatures_of_other_keys_and_invalid_ones_are_rejected() {
        let (ours, digest) = (address_of(&key(1)), H256::repeat_byte(9));
        let der = |key: &SigningKey, digest: H256| {
            let signature: Signature = key.sign_prehash(digest.as_bytes()).unwrap();
            signature.to_der().as_bytes().to_vec()
        };
        let good = der(&key(1), digest);
        assert!(signature_of(ours, digest, &good).is_some());
        assert_eq!(signature_of(ours, digest, &der(&key(2), digest)), None);
        assert_eq!(signature_of(ours, digest, &der(&key(1), H256::repeat_byte(8))), None);
        for end in 0..good.len() {
            assert_eq!(signature_of(ours, digest, &good[..end]), None, "{end}");
        }
        assert_eq!(signature_of(ours, digest, &[&good[..], &[0]].concat()), None);
        // r = s = 0, in DER.
        assert_eq!(signature_of(ours, digest, &[0x30, 6, 2, 1, 0, 2, 1, 0]), None);
        for index in 0..good.len() {
            let mut flipped = good.clone();
            flipped[index] ^= 0x10;
            assert_eq!(signature_of(ours, digest, &flipped), None, "{index}");
        }
    }
}

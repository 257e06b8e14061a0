//! The configured cloud keys as remote signers, or an error if this build does not support their service.

use std::sync::Arc;

#[cfg(feature = "aws-kms")]
use super::kms::AwsKms;
#[cfg(feature = "gcp-kms")]
use super::kms::GcpKms;
#[cfg(any(feature = "aws-kms", feature = "gcp-kms"))]
use super::kms::{Cloud, CloudKey};
use super::remote_signer::RemoteSigner;
use gapless_config as config;
use gapless_domain::Address;

/// Each key is a separate remote signer, so that a failing key does not affect the others. With the configured address.
pub(super) type CloudKeys = Vec<(Arc<dyn RemoteSigner>, Option<Address>)>;

#[cfg(feature = "aws-kms")]
pub(super) fn of_aws(config: &config::AwsKms) -> Result<CloudKeys, String> {
    Ok(keys_of(Arc::new(AwsKms::new(config)?), &config.keys))
}

#[cfg(not(feature = "aws-kms"))]
pub(super) fn of_aws(_: &config::AwsKms) -> Result<CloudKeys, String> {
    Err("this build has no support for AWS KMS (cargo feature aws-kms)".into())
}

#[cfg(feature = "gcp-kms")]
pub(super) fn of_google(config: &config::GcpKms) -> Result<CloudKeys, String> {
    Ok(keys_of(Arc::new(GcpKms::new(config)), &config.keys))
}

#[cfg(not(feature = "gcp-kms"))]
pub(super) fn of_google(_: &config::GcpKms) -> Result<CloudKeys, String> {
    Err("this build has no support for Google Cloud KMS (cargo feature gcp-kms)".into())
}

#[cfg(any(feature = "aws-kms", feature = "gcp-kms"))]
fn keys_of(cloud: Arc<dyn Cloud>, keys: &[config::CloudKey]) -> CloudKeys {
    let key_of = |key: &config::CloudKey| -> (Arc<dyn RemoteSigner>, Option<Address>) {
        (Arc::new(CloudKey::new(Arc::clone(&cloud), &key.id)), key.address)
    };
    keys.iter().map(key_of).collect()
}

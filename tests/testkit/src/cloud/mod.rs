//! Local cloud key management services: moto for AWS, and a fake of Google Cloud KMS.

mod aws;
mod connection_switch;
mod google;

pub use aws::{AwsKms, AwsUser, REGION};
pub use google::{GoogleBehaviour, GoogleKms};

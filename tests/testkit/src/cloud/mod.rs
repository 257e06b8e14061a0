//! Local cloud key management services: moto for AWS, and a fake of Google Cloud KMS.

mod aws;
mod connection_switch;
mod credential_server;
mod google;

pub use aws::{AwsKms, AwsUser, REGION, TemporaryCredentials};
pub use credential_server::CredentialServer;
pub use google::{GoogleBehaviour, GoogleKms, TOKEN_HEAD};

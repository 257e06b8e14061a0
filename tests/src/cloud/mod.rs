//! Key management services of clouds, on this machine: moto for AWS, and a server after Google's documentation.

mod aws;
mod gate;
mod google;

pub use aws::{AwsKms, AwsUser, REGION};
pub use google::{GoogleKms, GoogleManner};

//! The parts of webhook delivery that need no database: signing secrets and their encryption, signatures, the check of
//! target addresses, the sender, and the retry schedule. Which event goes to which webhook, and what was delivered, is
//! not decided here.

mod address;
mod excerpt;
mod key_ring;
mod outcome;
mod resolver;
mod schedule;
mod sealed;
mod secret;
mod sender;
mod signature;
mod target;
#[cfg(test)]
mod test_server;

pub use reqwest::header::{HeaderMap, HeaderValue};

pub use address::{AddressPolicy, InvalidAllow, RefusedAddress, RefusedReason};
pub use key_ring::{InvalidKeyId, InvalidKeyRing, KeyRing, NewKeyError, new_key_line};
pub use outcome::Outcome;
pub use schedule::{EmptySchedule, RetrySchedule};
pub use sealed::{OpenError, Sealed};
pub use secret::{InvalidSecret, SigningSecret};
pub use sender::{Sender, Timeouts};
pub use signature::sign;
pub use target::{InvalidTarget, TargetUrl};

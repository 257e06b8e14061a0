//! Sends one delivery and returns its outcome. It makes no retries: the caller stores the outcome and plans them.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;
use reqwest::{Client, Response};
use tokio::time::{Instant, timeout_at};

use gapless_http_client::client_builder;

use crate::address::{AddressPolicy, RefusedAddress};
use crate::excerpt::one_line;
use crate::outcome::Outcome;
use crate::resolver::{CheckedResolver, Lookup, LookupError, SystemLookup};
use crate::target::TargetUrl;

const USER_AGENT: &str = concat!("gapless/", env!("CARGO_PKG_VERSION"));
/// Enough for an error message; responses to deliveries have no other use.
const MAX_BODY_BYTES: usize = 1024;
/// Shorter than the idle timeouts of common servers, so that a pooled connection is not closed during a request.
const POOL_IDLE: Duration = Duration::from_secs(30);

/// Limits of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Lookup, connection and TLS. Shorter than the whole, so that a second address of the receiver can be tried.
    pub connect: Duration,
    /// From the lookup to the end of the response.
    pub total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts { connect: Duration::from_secs(5), total: Duration::from_secs(15) }
    }
}

/// An HTTP client for deliveries. Clones share its connections.
#[derive(Clone)]
pub struct Sender {
    client: Client,
    policy: Arc<AddressPolicy>,
    timeouts: Timeouts,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sender { client: _, policy, timeouts } = self;
        f.debug_struct("Sender").field("policy", policy).field("timeouts", timeouts).finish_non_exhaustive()
    }
}

impl Sender {
    /// Fails if the certificates of the system cannot be loaded.
    pub fn new(policy: AddressPolicy, timeouts: Timeouts) -> Result<Sender, reqwest::Error> {
        Sender::with_lookup(policy, timeouts, Arc::new(SystemLookup))
    }

    pub(crate) fn with_lookup(
        policy: AddressPolicy,
        timeouts: Timeouts,
        lookup: Arc<dyn Lookup>,
    ) -> Result<Sender, reqwest::Error> {
        let policy = Arc::new(policy);
        let client = client_builder()
            .user_agent(USER_AGENT)
            .connect_timeout(timeouts.connect)
            .pool_idle_timeout(POOL_IDLE)
            .dns_resolver(CheckedResolver { lookup, policy: policy.clone() })
            // Another server, whose address nobody has checked, would get the delivery.
            .redirect(Policy::none())
            // A proxy resolves names itself.
            .no_proxy()
            .build()?;
        Ok(Sender { client, policy, timeouts })
    }

    /// Sends one POST request. `headers` are those of the signature and the content type.
    pub async fn send(&self, target: &TargetUrl, headers: HeaderMap, body: Vec<u8>) -> Outcome {
        // The client does not ask its resolver for these.
        if let Err(refused) = self.policy.check_literal(target) {
            return refused.into();
        }
        let deadline = Instant::now() + self.timeouts.total;
        let request = self.client.post(target.url().clone()).headers(headers).body(body);
        let mut response = match timeout_at(deadline, request.send()).await {
            Err(_) => return Outcome::TimedOut { after: self.timeouts.total },
            Ok(Err(error)) => return self.failed(error),
            Ok(Ok(response)) => response,
        };
        let mut beginning = Vec::new();
        // The status is known and decides; a body that does not end in time changes nothing.
        let _ = timeout_at(deadline, read_beginning(&mut response, &mut beginning)).await;
        Outcome::of_response(target, response.status(), response.headers(), &beginning, SystemTime::now())
    }

    fn failed(&self, error: reqwest::Error) -> Outcome {
        if let Some(refused) = cause::<RefusedAddress>(&error) {
            return (*refused).into();
        }
        let text = if let Some(lookup) = cause::<LookupError>(&error) {
            format!("the name could not be resolved: {lookup}")
        } else if error.is_timeout() {
            format!("no connection within {:?}", self.timeouts.connect)
        } else {
            // A certificate may have any number of names.
            one_line(&innermost(&error.without_url()))
        };
        Outcome::ConnectionFailed { text }
    }
}

impl From<RefusedAddress> for Outcome {
    fn from(RefusedAddress { address, reason }: RefusedAddress) -> Outcome {
        Outcome::AddressRefused { address, reason }
    }
}

/// Reads to the end, so that the connection can be used again, but not beyond the limit: dropping the response then
/// closes the connection.
async fn read_beginning(response: &mut Response, beginning: &mut Vec<u8>) {
    while let Ok(Some(chunk)) = response.chunk().await {
        let free = MAX_BODY_BYTES - beginning.len();
        beginning.extend_from_slice(&chunk[..chunk.len().min(free)]);
        if chunk.len() > free {
            return;
        }
    }
}

fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

fn cause<T: Error + 'static>(error: &reqwest::Error) -> Option<&T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// The innermost error; the outer one is only "error sending request".
fn innermost(error: &reqwest::Error) -> String {
    causes(error).last().map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
#[path = "sender_tests.rs"]
mod tests;

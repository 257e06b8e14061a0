//! A submitter's policy: which calls are allowed, and how much value. The worker checks it before it assigns a nonce
//! and again before signing; the API checks it early, for a faster error.
//!
//! Rules look only at the transaction itself. They do not limit fees: `fees.max_fee_per_gas` does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ethers_core::types::{Address, U256};

use super::payload::Payload;
use super::tx_error::{ErrorCode, TxError};

pub type Selector = [u8; 4];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Absent: every call to every address.
    pub allow: Option<BTreeMap<Address, Calls>>,
    /// Whether contracts may be deployed.
    pub deploy: bool,
    /// Wei per transaction.
    pub max_value: Option<U256>,
    /// Wei of all transactions that got a nonce on one day (UTC, database clock).
    pub max_value_per_day: Option<U256>,
}

/// What may be called at one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Calls {
    Any,
    Only {
        selectors: BTreeSet<Selector>,
        /// Transfers without call data.
        plain: bool,
    },
}

/// The rules, named as in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    Allow,
    Deploy,
    MaxValue,
    MaxValuePerDay,
}

impl Rule {
    pub const ALL: [Rule; 4] = [Rule::Allow, Rule::Deploy, Rule::MaxValue, Rule::MaxValuePerDay];

    pub fn as_str(self) -> &'static str {
        match self {
            Rule::Allow => "allow",
            Rule::Deploy => "deploy",
            Rule::MaxValue => "max_value",
            Rule::MaxValuePerDay => "max_value_per_day",
        }
    }

    pub fn code(self) -> ErrorCode {
        match self {
            Rule::Allow => ErrorCode::CallNotAllowed,
            Rule::Deploy => ErrorCode::DeployNotAllowed,
            Rule::MaxValue => ErrorCode::ValueCapExceeded,
            Rule::MaxValuePerDay => ErrorCode::DayCapExceeded,
        }
    }
}

/// A policy violation. The message is also shown to clients: it describes the request, not what would be allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    pub rule: Rule,
    pub to: Option<Address>,
    pub call: Call,
    /// Wei of the transaction.
    pub value: U256,
    /// Wei; only for the rules with a limit.
    pub limit: Option<U256>,
    /// Wei already counted that day; only for `max_value_per_day`.
    pub spent: Option<U256>,
}

impl Breach {
    pub fn error(&self) -> TxError {
        TxError::new(self.rule.code(), self.to_string())
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, limit) = (self.value, self.limit.unwrap_or_default());
        match (self.rule, self.to) {
            (Rule::Allow, Some(to)) => {
                write!(f, "the submitter's policy does not allow {} to {to:#x}", self.call)
            }
            (Rule::Allow | Rule::Deploy, _) => {
                f.write_str("the submitter's policy does not allow deployments")
            }
            (Rule::MaxValue, _) => {
                write!(f, "a value of {value} wei exceeds the submitter's max_value of {limit} wei")
            }
            (Rule::MaxValuePerDay, _) => write!(
                f,
                "a value of {value} wei plus today's {} wei exceeds the submitter's max_value_per_day of {limit} wei",
                self.spent.unwrap_or_default()
            ),
        }
    }
}

/// How the called contract dispatches the data: by selector, as a plain transfer, or to its fallback if the data is
/// too short for a selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Plain,
    Short,
    Selector(Selector),
}

impl Call {
    pub fn of(payload: &Payload) -> Call {
        match payload.data.first_chunk::<4>() {
            Some(selector) => Call::Selector(*selector),
            None if payload.data.is_empty() => Call::Plain,
            None => Call::Short,
        }
    }

    pub fn selector(self) -> Option<Selector> {
        match self {
            Call::Selector(selector) => Some(selector),
            Call::Plain | Call::Short => None,
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Plain => f.write_str("a plain transfer"),
            Call::Short => f.write_str("call data without a selector"),
            Call::Selector(selector) => write!(f, "a call with selector 0x{}", hex::encode(selector)),
        }
    }
}

impl Policy {
    /// Checks every rule that depends on this transaction only. `from` is the submitter.
    pub fn check(&self, from: Address, payload: &Payload) -> Result<(), Box<Breach>> {
        if is_noop(from, payload) {
            return Ok(());
        }
        let call = Call::of(payload);
        let breach = |rule, limit, spent| {
            Err(Box::new(Breach { rule, to: payload.to, call, value: payload.value, limit, spent }))
        };
        let allowed = match (&payload.to, &self.allow) {
            (None, _) if !self.deploy => return breach(Rule::Deploy, None, None),
            (None, _) | (Some(_), None) => true,
            (Some(to), Some(allow)) => allow.get(to).is_some_and(|calls| calls.include(call)),
        };
        if !allowed {
            return breach(Rule::Allow, None, None);
        }
        if self.max_value.is_some_and(|limit| payload.value > limit) {
            return breach(Rule::MaxValue, self.max_value, None);
        }
        // A value above the daily limit can never be sent.
        self.check_day(payload, U256::zero())
    }

    /// Checks the daily limit. `spent`: wei already counted that day.
    pub fn check_day(&self, payload: &Payload, spent: U256) -> Result<(), Box<Breach>> {
        let Some(limit) = self.max_value_per_day else { return Ok(()) };
        // A transaction without value is allowed even if the limit is used up.
        if payload.value.is_zero() || spent.checked_add(payload.value).is_some_and(|sum| sum <= limit) {
            return Ok(());
        }
        Err(Box::new(Breach {
            rule: Rule::MaxValuePerDay,
            to: payload.to,
            call: Call::of(payload),
            value: payload.value,
            limit: Some(limit),
            spent: Some(spent),
        }))
    }
}

/// No value and no data, from the submitter to itself: a placeholder. Always allowed, because it is needed to consume
/// abandoned nonces.
fn is_noop(from: Address, payload: &Payload) -> bool {
    payload.to == Some(from) && payload.value.is_zero() && payload.data.is_empty()
}

impl Calls {
    fn include(&self, call: Call) -> bool {
        match (self, call) {
            (Calls::Any, _) => true,
            (Calls::Only { selectors, .. }, Call::Selector(selector)) => selectors.contains(&selector),
            (Calls::Only { plain, .. }, Call::Plain) => *plain,
            (Calls::Only { .. }, Call::Short) => false,
        }
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;

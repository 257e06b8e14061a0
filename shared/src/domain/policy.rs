//! What a submitter may do: which calls, and how much value. The worker asks before it gives a nonce and again where it
//! signs; the API asks as a courtesy.
//!
//! A rule looks at what will be on chain and at nothing else. It does not limit fees: `fees.max_fee_per_gas` does.

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
    /// Whether contracts may be made.
    pub deploy: bool,
    /// Wei of one transaction.
    pub max_value: Option<U256>,
    /// Wei of all transactions that were given a nonce on one day (UTC, by the database's clock).
    pub max_value_per_day: Option<U256>,
}

/// What may be called at one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Calls {
    Any,
    Only {
        selectors: BTreeSet<Selector>,
        /// Without call data: a transfer.
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

/// What a payload broke. Its words are for clients, too: they say what was asked, and not what would be allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    pub rule: Rule,
    pub to: Option<Address>,
    pub call: Call,
    /// Wei of the transaction.
    pub value: U256,
    /// Wei; of the rules that have one.
    pub limit: Option<U256>,
    /// Wei that the day had counted before; of the rule about days.
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
                write!(f, "a value of {value} wei is above the submitter's max_value of {limit}")
            }
            (Rule::MaxValuePerDay, _) => write!(
                f,
                "a value of {value} wei on top of the day's {} is above the submitter's max_value_per_day of {limit}",
                self.spent.unwrap_or_default()
            ),
        }
    }
}

/// How the called contract sees the data: by selector, as a plain transfer, or as bytes too short for a selector, which
/// reach its fallback.
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
            Call::Selector(selector) => write!(f, "a call of 0x{}", hex::encode(selector)),
        }
    }
}

impl Policy {
    /// Every rule that needs no memory. `from` is the submitter.
    pub fn judge(&self, from: Address, payload: &Payload) -> Result<(), Box<Breach>> {
        if is_nothing(from, payload) {
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
        // More than a day may have does not fit into any day.
        self.judge_day(payload, U256::zero())
    }

    /// The rule that needs to know what the day has counted before.
    pub fn judge_day(&self, payload: &Payload, spent: U256) -> Result<(), Box<Breach>> {
        let Some(limit) = self.max_value_per_day else { return Ok(()) };
        // A transaction without value takes nothing from the day, even from one that has nothing left.
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

/// Nothing, from the submitter to itself: what placeholders are. Always allowed, or a nonce could stay unconsumed.
fn is_nothing(from: Address, payload: &Payload) -> bool {
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

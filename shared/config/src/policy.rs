//! Policy of a submitter: `[submitter."0x…".policy]`. Duplicate, empty and contradictory settings are errors at
//! startup, because a policy with a mistake is worse than none.

use std::collections::{BTreeMap, BTreeSet};

use ethers_core::types::{Address, U256};
use serde::Deserialize;

use super::fees::wei;
use gapless_domain::abi;
use gapless_domain::hex_text::{parse_address, parse_bytes};
use gapless_domain::policy::{Calls, Policy};

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySettings {
    /// Absent: all calls.
    pub allow: Option<Vec<AllowedCalls>>,
    /// Whether contracts may be deployed.
    pub deploy: bool,
    /// Maximum wei per transaction. Absent: unlimited.
    #[serde(deserialize_with = "wei")]
    pub max_value: Option<U256>,
    /// Maximum wei of all transactions per UTC day. Absent: unlimited.
    #[serde(deserialize_with = "wei")]
    pub max_value_per_day: Option<U256>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedCalls {
    pub to: String,
    /// Selectors or signatures; `0x` is a plain transfer. Absent: all calls.
    pub selectors: Option<Vec<String>>,
}

impl PolicySettings {
    /// An error is the invalid key and the problem.
    pub(super) fn check(&self) -> Result<Policy, (String, String)> {
        let bad = |key: &str, problem: &str| Err((key.to_owned(), problem.to_owned()));
        if self.allow.is_none() && self.max_value.is_none() && self.max_value_per_day.is_none() {
            return bad("", "restricts nothing; set allow, max_value or max_value_per_day");
        }
        if let (Some(one), Some(day)) = (self.max_value, self.max_value_per_day)
            && one > day
        {
            return bad("max_value", "is above max_value_per_day and has no effect");
        }
        let allow = self.allow.as_deref().map(allowed).transpose()?;
        Ok(Policy {
            allow,
            deploy: self.deploy,
            max_value: self.max_value,
            max_value_per_day: self.max_value_per_day,
        })
    }
}

fn allowed(entries: &[AllowedCalls]) -> Result<BTreeMap<Address, Calls>, (String, String)> {
    if entries.is_empty() {
        return Err(("allow".to_owned(), "allows nothing; to stop a submitter, pause it".to_owned()));
    }
    let mut allow = BTreeMap::new();
    for (index, entry) in entries.iter().enumerate() {
        let key = |field: &str| format!("allow[{index}].{field}");
        let to =
            parse_address(&entry.to).map_err(|problem| (key("to"), format!("`{}` {problem}", entry.to)))?;
        let calls = match &entry.selectors {
            None => Calls::Any,
            Some(texts) => calls(texts).map_err(|problem| (key("selectors"), problem))?,
        };
        // Two entries for one contract: the intended restriction would be unclear.
        if allow.insert(to, calls).is_some() {
            return Err((key("to"), format!("{to:#x} has two entries")));
        }
    }
    Ok(allow)
}

fn calls(texts: &[String]) -> Result<Calls, String> {
    if texts.is_empty() {
        return Err("allows no call; omit it to allow all calls".to_owned());
    }
    let (mut selectors, mut plain) = (BTreeSet::new(), false);
    for text in texts {
        match text.strip_prefix("0x") {
            Some("") => plain = true,
            Some(_) => {
                let bytes = parse_bytes(text).map_err(|problem| format!("`{text}` {problem}"))?;
                let selector = <[u8; 4]>::try_from(bytes).map_err(|_| {
                    format!("`{text}` is not a selector: use 0x and 8 hex digits, or 0x for a plain transfer")
                })?;
                selectors.insert(selector);
            }
            None => {
                selectors.insert(abi::selector(text)?);
            }
        }
    }
    Ok(Calls::Only { selectors, plain })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed";

    fn policy(toml: &str) -> Result<Policy, (String, String)> {
        toml::from_str::<PolicySettings>(toml).unwrap().check()
    }

    fn refused(toml: &str) -> (String, String) {
        policy(toml).expect_err(toml)
    }

    #[test]
    fn a_selector_may_be_written_as_one_or_as_a_signature() {
        let of = |text: &str| policy(&format!("allow = [{{ to = \"{TOKEN}\", selectors = [{text}] }}]"));
        let bytes = of("\"0xa9059cbb\"").unwrap();
        assert_eq!(of("\"transfer(address,uint256)\"").unwrap(), bytes);
        assert_eq!(of("\"function transfer(address to, uint amount) returns (bool)\"").unwrap(), bytes);
        assert_eq!(of("\"0xA9059CBB\", \"transfer(address,uint256)\"").unwrap(), bytes);
        let calls = |policy: Policy| policy.allow.unwrap().into_values().next().unwrap();
        let selectors = BTreeSet::from([[0xa9, 0x05, 0x9c, 0xbb]]);
        assert_eq!(calls(bytes), Calls::Only { selectors, plain: false });
        assert_eq!(calls(of("\"0x\"").unwrap()), Calls::Only { selectors: BTreeSet::new(), plain: true });
        let any = policy(&format!("allow = [{{ to = \"{TOKEN}\" }}]")).unwrap();
        assert_eq!(calls(any), Calls::Any);
    }

    #[test]
    fn values_are_written_as_elsewhere() {
        let policy = policy("max_value = 5\nmax_value_per_day = \"0x3e8\"").unwrap();
        assert_eq!((policy.max_value, policy.max_value_per_day), (Some(5.into()), Some(1000.into())));
        assert!(!policy.deploy && policy.allow.is_none());
        for bad in ["-1", "1.5", "\"1 ether\"", "\"\""] {
            assert!(toml::from_str::<PolicySettings>(&format!("max_value = {bad}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn invalid_settings_are_rejected_with_their_key() {
        let entry = |rest: &str| format!("allow = [{{ to = \"{TOKEN}\"{rest} }}]");
        for (toml, key, words) in [
            (String::new(), "", "restricts nothing"),
            ("deploy = true".to_owned(), "", "restricts nothing"),
            ("allow = []".to_owned(), "allow", "pause"),
            (entry(", selectors = []"), "allow[0].selectors", "allows no call"),
            (entry(", selectors = [\"0xa9059c\"]"), "allow[0].selectors", "0xa9059c"),
            (entry(", selectors = [\"0xa9059cbb00\"]"), "allow[0].selectors", "not a selector"),
            (entry(", selectors = [\"0xzz\"]"), "allow[0].selectors", "hex digit"),
            (entry(", selectors = [\"transfer\"]"), "allow[0].selectors", "not a signature"),
            ("allow = [{ to = \"bob\" }]".to_owned(), "allow[0].to", "bob"),
            (
                format!("allow = [{{ to = \"{}\" }}]", TOKEN.replacen("aaeb", "aAEb", 1)),
                "allow[0].to",
                "checksum",
            ),
            (
                format!("allow = [{{ to = \"{TOKEN}\" }}, {{ to = \"{TOKEN}\", selectors = [\"0x\"] }}]"),
                "allow[1].to",
                "two entries",
            ),
            ("max_value = 2\nmax_value_per_day = 1".to_owned(), "max_value", "no effect"),
        ] {
            let (refused_key, problem) = refused(&toml);
            assert_eq!(refused_key, key, "{toml}");
            assert!(problem.contains(words), "{problem}");
        }
        for unknown in ["max_valu = 1", "allow = [{ to = \"0x\", selector = [] }]"] {
            assert!(toml::from_str::<PolicySettings>(unknown).is_err(), "{unknown}");
        }
    }
}

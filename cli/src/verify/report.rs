//! The audit's report, as text and as JSON.

use gapless_domain::TxState;
use serde_json::{Value, json};

use super::checks::{CHECKS, Check, NEEDS_SCAN, Rules};
use super::facts::SubmitterFacts;
use super::gather::Gathered;
use crate::output;

/// Maximum number of violations printed for each check; JSON lists all.
const SHOWN: usize = 20;

#[derive(Debug)]
pub(super) struct Report {
    pub(super) chains: Vec<ChainReport>,
}

#[derive(Debug)]
pub(super) struct ChainReport {
    name: String,
    chain_id: u64,
    head: u64,
    scanned_from: Option<u64>,
    totals: Totals,
    /// As long as `CHECKS`, in its order.
    violations: Vec<Vec<Violation>>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    submitters: usize,
    protected: usize,
    intents: usize,
    unfinished: usize,
    attempts: usize,
    mined: usize,
}

#[derive(Debug)]
struct Violation {
    address: String,
    what: String,
}

impl Report {
    pub(super) fn is_sound(&self) -> bool {
        self.chains.iter().all(|chain| chain.violations.iter().all(Vec::is_empty))
    }

    pub(super) fn print(&self, json: bool) {
        if json {
            let chains: Vec<Value> = self.chains.iter().map(ChainReport::json).collect();
            return output::json(&json!({ "sound": self.is_sound(), "chains": chains }));
        }
        self.chains.iter().for_each(ChainReport::print);
        output::line(if self.is_sound() { "sound: no violation found" } else { "NOT SOUND: see above" });
    }
}

impl ChainReport {
    pub(super) fn new(name: String, gathered: Gathered, rules: Rules) -> ChainReport {
        let run = |(_, check): &(&str, Check)| {
            let found = gathered.submitters.iter().flat_map(|facts| {
                let address = &facts.address;
                check(facts, rules).into_iter().map(|what| Violation { address: address.clone(), what })
            });
            found.collect()
        };
        ChainReport {
            name,
            chain_id: gathered.chain_id,
            head: gathered.head,
            scanned_from: gathered.scanned_from,
            totals: Totals::of(&gathered.submitters),
            violations: CHECKS.iter().map(run).collect(),
        }
    }

    fn json(&self) -> Value {
        let checks = CHECKS.iter().zip(&self.violations).map(|((check, _), violations)| {
            let violations = violations
                .iter()
                .map(|violation| json!({ "submitter": violation.address, "what": violation.what }));
            json!({ "check": check, "violations": violations.collect::<Vec<_>>() })
        });
        json!({
            "name": self.name,
            "chainId": self.chain_id,
            "head": self.head,
            "scannedFrom": self.scanned_from,
            "submitters": self.totals.submitters,
            "protected": self.totals.protected,
            "requests": self.totals.intents,
            "unfinished": self.totals.unfinished,
            "attempts": self.totals.attempts,
            "mined": self.totals.mined,
            "checks": checks.collect::<Vec<_>>(),
        })
    }

    fn print(&self) {
        let Totals { submitters, protected, intents, unfinished, attempts, mined } = &self.totals;
        let scan = match self.scanned_from {
            Some(from) => format!("blocks {from} to {} scanned", self.head),
            None => format!("blocks not scanned, head {}", self.head),
        };
        output::line(format!(
            "chain {} ({}): {submitters} submitters, {protected} in PROTECT; {intents} requests, {unfinished} \
             unfinished; {attempts} attempts, {mined} mined; {scan}",
            self.name, self.chain_id
        ));
        let result = |check: &str, violations: &Vec<Violation>| match violations.len() {
            0 if check == NEEDS_SCAN && self.scanned_from.is_none() => "not checked".to_owned(),
            0 => "ok".to_owned(),
            count => format!("{count} VIOLATIONS"),
        };
        let checks = CHECKS.iter().zip(&self.violations);
        let rows: Vec<Vec<String>> =
            checks.map(|((check, _), found)| vec![(*check).to_owned(), result(check, found)]).collect();
        output::table(&["CHECK", "RESULT"], &rows);
        for ((check, _), violations) in
            CHECKS.iter().zip(&self.violations).filter(|(_, found)| !found.is_empty())
        {
            output::line(format!("\n{check}:"));
            for violation in violations.iter().take(SHOWN) {
                output::line(format!("  {}  {}", violation.address, violation.what));
            }
            if violations.len() > SHOWN {
                output::line(format!("  and {} more; --json lists all", violations.len() - SHOWN));
            }
        }
        output::line("");
    }
}

impl Totals {
    fn of(submitters: &[SubmitterFacts]) -> Totals {
        let states = || submitters.iter().flat_map(|facts| &facts.intents).map(|intent| intent.state);
        let protected = |facts: &&SubmitterFacts| facts.cursor.as_ref().is_some_and(|c| c.protect.is_some());
        Totals {
            submitters: submitters.len(),
            protected: submitters.iter().filter(protected).count(),
            intents: states().count(),
            unfinished: states().filter(|state: &TxState| !state.is_terminal()).count(),
            attempts: submitters.iter().map(|facts| facts.attempts.len()).sum(),
            mined: submitters.iter().map(|facts| facts.mined.len()).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::{CursorFacts, IntentFacts};
    use super::*;

    fn gathered(next: u64) -> Gathered {
        let intent = IntentFacts { tx_id: "a".into(), state: TxState::Queued, nonce: None };
        let facts = SubmitterFacts {
            address: "0x1".into(),
            cursor: Some(CursorFacts { start: 0, next, open_from: 0, protect: None }),
            shared: false,
            external: Vec::new(),
            intents: vec![intent],
            attempts: Vec::new(),
            reservations: Vec::new(),
            counts: Vec::new(),
            chain_count: 0,
            mined: Default::default(),
            in_blocks: None,
        };
        Gathered { chain_id: 1, head: 9, scanned_from: None, submitters: vec![facts] }
    }

    #[test]
    fn one_violation_anywhere_is_enough() {
        let report = |next| ChainReport::new("one".into(), gathered(next), Rules::default());
        assert!(Report { chains: vec![report(0)] }.is_sound());
        let unsound = Report { chains: vec![report(0), report(1)] };
        assert!(!unsound.is_sound());
        let json = unsound.chains[1].json();
        let broken: Vec<&Value> = json["checks"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|check| check["violations"] != json!([]))
            .collect();
        assert_eq!(broken.len(), 1);
        assert_eq!(broken[0]["violations"][0]["submitter"], "0x1");
        assert_eq!((&json["requests"], &json["unfinished"]), (&json!(1), &json!(1)));
    }
}

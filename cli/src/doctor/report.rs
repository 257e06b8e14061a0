//! Results of the checks, as text and as JSON.

use serde_json::{Value, json};

use crate::output;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    /// Works, but should be looked at. The deployment still counts as sound.
    Warning,
    Problem,
    /// With the reason as the message. No statement about the subject.
    NotChecked,
}

impl Outcome {
    fn text(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Warning => "warning",
            Outcome::Problem => "problem",
            Outcome::NotChecked => "not checked",
        }
    }

    fn in_json(self) -> &'static str {
        match self {
            Outcome::NotChecked => "not_checked",
            other => other.text(),
        }
    }
}

/// The part of a deployment that a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    Configuration,
    Database,
    Nodes,
    Signers,
    Submitters,
    Listeners,
}

impl Area {
    pub(crate) const ALL: [Area; 6] =
        [Area::Configuration, Area::Database, Area::Nodes, Area::Signers, Area::Submitters, Area::Listeners];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Area::Configuration => "configuration",
            Area::Database => "database",
            Area::Nodes => "nodes",
            Area::Signers => "signers",
            Area::Submitters => "submitters",
            Area::Listeners => "listeners",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) area: Area,
    pub(crate) name: &'static str,
    /// What was checked: a file, an address, a node.
    pub(crate) subject: String,
    pub(crate) outcome: Outcome,
    pub(crate) message: String,
    /// What to do about a problem or a warning.
    pub(crate) advice: Option<String>,
}

/// Makes the checks of one subject.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) area: Area,
    pub(crate) name: String,
}

impl Subject {
    pub(crate) fn new(area: Area, name: impl Into<String>) -> Subject {
        Subject { area, name: name.into() }
    }

    fn check(
        &self,
        name: &'static str,
        outcome: Outcome,
        message: impl Into<String>,
        advice: Option<String>,
    ) -> Check {
        let message = message.into();
        Check { area: self.area, name, subject: self.name.clone(), outcome, message, advice }
    }

    pub(crate) fn ok(&self, name: &'static str, message: impl Into<String>) -> Check {
        self.check(name, Outcome::Ok, message, None)
    }

    pub(crate) fn not_checked(&self, name: &'static str, why: impl Into<String>) -> Check {
        self.check(name, Outcome::NotChecked, why, None)
    }

    pub(crate) fn warning(
        &self,
        name: &'static str,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) -> Check {
        self.check(name, Outcome::Warning, message, Some(advice.into()))
    }

    pub(crate) fn problem(
        &self,
        name: &'static str,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) -> Check {
        self.check(name, Outcome::Problem, message, Some(advice.into()))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) checks: Vec<Check>,
}

impl Report {
    pub(crate) fn is_sound(&self) -> bool {
        self.count(Outcome::Problem) == 0
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.checks.iter().filter(|check| check.outcome == outcome).count()
    }

    pub(crate) fn print(&self, json: bool) {
        if json {
            return output::json(&self.json());
        }
        for line in self.lines() {
            output::line(line);
        }
    }

    fn json(&self) -> Value {
        let checks: Vec<Value> = self
            .checks
            .iter()
            .map(|check| {
                json!({
                    "area": check.area.as_str(),
                    "name": check.name,
                    "subject": check.subject,
                    "result": check.outcome.in_json(),
                    "message": check.message,
                    "advice": check.advice,
                })
            })
            .collect();
        json!({ "sound": self.is_sound(), "checks": checks })
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for area in Area::ALL {
            let of_area: Vec<&Check> = self.checks.iter().filter(|check| check.area == area).collect();
            if of_area.is_empty() {
                continue;
            }
            lines.push(area.as_str().to_owned());
            for check in of_area {
                let outcome = check.outcome.text();
                lines.push(format!("  {outcome:11}  {}: {}: {}", check.name, check.subject, check.message));
                lines.extend(check.advice.iter().map(|advice| format!("               do: {advice}")));
            }
        }
        lines.push(self.summary());
        lines
    }

    fn summary(&self) -> String {
        let count = |outcome, one: &str, many: &str| match self.count(outcome) {
            1 => format!("1 {one}"),
            other => format!("{other} {many}"),
        };
        format!(
            "{}, {}, {} not checked, {} ok",
            count(Outcome::Problem, "problem", "problems"),
            count(Outcome::Warning, "warning", "warnings"),
            self.count(Outcome::NotChecked),
            self.count(Outcome::Ok)
        )
    }

    /// One line for each problem.
    pub(crate) fn problems(&self) -> Vec<String> {
        let problems = self.checks.iter().filter(|check| check.outcome == Outcome::Problem);
        problems
            .map(|check| {
                let advice = check.advice.as_ref().map(|advice| format!(" (do: {advice})"));
                let Check { area, name, subject, message, .. } = check;
                format!("{}: {name}: {subject}: {message}{}", area.as_str(), advice.unwrap_or_default())
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_grouped_and_only_a_problem_makes_a_deployment_unsound() {
        let (nodes, database) = (Subject::new(Area::Nodes, "n"), Subject::new(Area::Database, "d"));
        let mut report = Report {
            checks: vec![
                nodes.ok("head", "block 7"),
                database.warning("durability", "fsync is off", "turn it on"),
                database.not_checked("schema", "no connection"),
            ],
        };
        assert!(report.is_sound());
        assert_eq!(
            report.lines(),
            [
                "database",
                "  warning      durability: d: fsync is off",
                "               do: turn it on",
                "  not checked  schema: d: no connection",
                "nodes",
                "  ok           head: n: block 7",
                "0 problems, 1 warning, 1 not checked, 1 ok",
            ]
        );
        assert!(report.problems().is_empty());
        report.checks.push(nodes.problem("chain id", "it is 1", "correct it"));
        assert!(!report.is_sound());
        assert_eq!(report.json()["sound"], false);
        assert_eq!(report.json()["checks"][2]["result"], "not_checked");
        assert_eq!(report.json()["checks"][3]["advice"], "correct it");
        assert_eq!(report.problems(), ["nodes: chain id: n: it is 1 (do: correct it)"]);
    }
}

//! Prints a run: progress lines, the table, the summary line.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use gapless_testkit::AuditResult;

use super::ChaosRun;
use super::checker::{Evidence, Rule, Violation, longest_stall};
use super::history::{Direction, Entry, Event};
use super::schedule::{Kind, Operation};
use super::upgrade::phases::{PhaseCount, count, rolled};

/// Number of violations printed in full.
const SHOWN: usize = 20;

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    pub violations: Vec<Violation>,
    /// Number of injected faults by kind.
    pub faults: BTreeMap<Kind, usize>,
    /// Number of performed operations by kind.
    pub operations: BTreeMap<Operation, usize>,
    pub requests: usize,
    /// Number of samples of submitters with open intents.
    pub samples: usize,
    /// Time from the last fault until everything was final. `None`: limit exceeded.
    pub settled: Option<Duration>,
    /// Phases of an upgrade run, in order.
    pub phases: Vec<PhaseCount>,
    /// Result of `gapless verify`; `None` for the reference worker.
    pub audit: Option<AuditResult>,
    /// The printed table.
    pub table: String,
    /// The last line of the output.
    pub summary: String,
    /// Directory of history, configuration and logs, if the run failed or `keep` is set.
    pub artifacts: Option<PathBuf>,
}

impl Outcome {
    pub(crate) async fn new(
        run: ChaosRun,
        evidence: &Evidence,
        violations: Vec<Violation>,
        audit: Option<AuditResult>,
        settled: Option<Duration>,
    ) -> Outcome {
        let faults = faults(&evidence.history);
        let operations = operations(&evidence.history);
        let requests = requests(&evidence.history);
        let samples = samples(evidence);
        let (sum, done) = (faults.values().sum::<usize>(), operations.values().sum::<usize>());
        let end = match settled {
            Some(settled) => format!("settled {:.1} s after the last fault", settled.as_secs_f64()),
            None => format!("not settled {:?} after the last fault", run.options.settle),
        };
        let early = if run.stop_faults.is_cancelled() { " (ended early)" } else { "" };
        let name = if run.options.upgrade.is_some() { "upgrade" } else { "chaos" };
        let summary = format!(
            "{name}: seed {}, {} s{early}, {requests} requests, {sum} faults, {done} operations, {} violations, {end}",
            run.options.seed,
            run.options.length.as_secs(),
            violations.len()
        );
        let table = table(evidence, &violations, (&faults, &operations), audit.as_ref(), settled);
        let sound = is_sound(&violations, audit.as_ref());
        let keep = !sound || run.options.keep;
        let artifacts = run.stack.close(keep).await;
        Outcome {
            violations,
            faults,
            operations,
            requests,
            samples,
            settled,
            phases: count(&evidence.history),
            audit,
            table,
            summary,
            artifacts,
        }
    }

    pub fn is_sound(&self) -> bool {
        is_sound(&self.violations, self.audit.as_ref())
    }

    pub fn broke(&self, rule: Rule) -> bool {
        self.violations.iter().any(|violation| violation.rule == rule)
    }

    /// The violations, one per line.
    pub fn describe_violations(&self) -> String {
        let mut lines: Vec<String> = self.violations.iter().take(SHOWN).map(ToString::to_string).collect();
        if self.violations.len() > SHOWN {
            lines.push(format!("… and {} more", self.violations.len() - SHOWN));
        }
        if let Some(audit) = self.audit.as_ref().filter(|audit| !audit.sound) {
            lines.push(format!("gapless verify: {:#}", audit.report));
        }
        lines.join("\n")
    }
}

fn is_sound(violations: &[Violation], audit: Option<&AuditResult>) -> bool {
    violations.is_empty() && audit.is_none_or(|audit| audit.sound)
}

fn faults(history: &[Entry]) -> BTreeMap<Kind, usize> {
    let mut faults: BTreeMap<Kind, usize> = Kind::ALL.into_iter().map(|kind| (kind, 0)).collect();
    for entry in history {
        if let Event::Fault { kind, .. } = &entry.event {
            *faults.entry(*kind).or_default() += 1;
        }
    }
    faults
}

fn operations(history: &[Entry]) -> BTreeMap<Operation, usize> {
    let mut operations: BTreeMap<Operation, usize> =
        Operation::ALL.into_iter().map(|kind| (kind, 0)).collect();
    for entry in history {
        if let Event::Operation { kind, .. } = &entry.event {
            *operations.entry(*kind).or_default() += 1;
        }
    }
    operations
}

fn requests(history: &[Entry]) -> usize {
    let sent = history.iter().filter_map(|entry| match &entry.event {
        Event::Submit { request, .. } => Some(request),
        _ => None,
    });
    sent.collect::<BTreeSet<_>>().len()
}

/// Number of samples of submitters with open intents.
fn samples(evidence: &Evidence) -> usize {
    evidence.samples.iter().filter(|sample| sample.open > 0).count()
}

/// Number of nonces that intents lost.
fn displaced(evidence: &Evidence) -> usize {
    let given: BTreeSet<(&str, u64)> =
        evidence.attempts.iter().map(|attempt| (attempt.tx_id.as_str(), attempt.nonce)).collect();
    let intents: BTreeSet<&str> = given.iter().map(|(tx_id, _)| *tx_id).collect();
    given.len() - intents.len()
}

/// The part of the table about an upgrade; empty for other runs.
fn upgrade_rows(evidence: &Evidence) -> Vec<(String, String)> {
    let Some(upgrade) = &evidence.upgrade else { return Vec::new() };
    let history = &evidence.history;
    let migrated = history.iter().find_map(|entry| match entry.event {
        Event::Migrated { added, tries, .. } => Some(format!("{added} / {tries}")),
        _ => None,
    });
    let (forward, back) = (rolled(history, Direction::Forward), rolled(history, Direction::Back));
    let late = |entry: &&Entry| matches!(entry.event, Event::Rolled { started: false, .. });
    let late = history.iter().filter(late).count();
    let (previous, present) = upgrade.started;
    let mut rows = vec![
        ("upgrade: migrations added / tries".to_owned(), migrated.unwrap_or_else(|| "none".to_owned())),
        ("  processes rolled forward / back".to_owned(), format!("{forward} / {back}")),
        ("  of them not started within 10 s".to_owned(), late.to_string()),
        ("  processes started, previous / this".to_owned(), format!("{previous} / {present}")),
        ("  v1 answers checked".to_owned(), upgrade.checked.answers.values().sum::<usize>().to_string()),
    ];
    let phases = count(history);
    rows.push(("phases, with accepted / finished / faults".to_owned(), phases.len().to_string()));
    let phase = |one: PhaseCount| {
        let counts = format!("{} / {} / {}", one.accepted, one.finished, one.faults);
        (format!("  {}", one.phase.label()), counts)
    };
    rows.extend(phases.into_iter().map(phase));
    rows
}

/// A progress line.
pub(crate) fn progress(history: &[Entry], since: Duration, unfinished: &str) -> String {
    let sum: usize = faults(history).values().sum();
    let last = history.iter().rev().find_map(|entry| match &entry.event {
        Event::Fault { kind, what, .. } => Some(format!("{}: {what}", kind.label())),
        _ => None,
    });
    format!(
        "{:>5} s  {:>5} requests, {unfinished:>3} unfinished, {sum:>4} faults; last: {}",
        since.as_secs(),
        requests(history),
        last.as_deref().unwrap_or("none")
    )
}

fn table(
    evidence: &Evidence,
    violations: &[Violation],
    (faults, operations): (&BTreeMap<Kind, usize>, &BTreeMap<Operation, usize>),
    audit: Option<&AuditResult>,
    settled: Option<Duration>,
) -> String {
    let count = |meant: fn(&Event) -> bool| evidence.history.iter().filter(|e| meant(&e.event)).count();
    let ended = |state: &str| evidence.intents.iter().filter(|intent| intent.state == state).count();
    let requested = |action: &str| {
        let is_meant =
            |entry: &&Entry| matches!(&entry.event, Event::Operator { action: one, .. } if one == action);
        evidence.history.iter().filter(is_meant).count()
    };
    let forbidden =
        evidence.intents.iter().filter(|i| i.code.as_deref() == Some("value_cap_exceeded")).count();
    let displaced = displaced(evidence);
    let late = evidence.intents.iter().filter(|i| i.code.as_deref() == Some("deadline_passed")).count();
    let replacements = evidence.attempts.iter().filter(|attempt| !attempt.original).count();
    let mut rows: Vec<(&str, String)> = vec![
        ("requests", requests(&evidence.history).to_string()),
        ("  sends including retries", count(|event| matches!(event, Event::Submit { .. })).to_string()),
        ("  without response", count(|event| matches!(event, Event::NoAnswer { .. })).to_string()),
        (
            "  answered with 5xx",
            count(|event| matches!(event, Event::Answer { status: 500.., .. })).to_string(),
        ),
        (
            "  confirmed / failed / cancelled",
            format!("{} / {} / {}", ended("CONFIRMED"), ended("FAILED"), ended("CANCELLED")),
        ),
        (
            "  speed-ups requested / done",
            format!(
                "{} / {}",
                count(|event| matches!(event, Event::SpeedUp { .. })),
                count(|event| matches!(event, Event::SpeedUp { status: 200, .. }))
            ),
        ),
        ("  cancelled by a deadline", late.to_string()),
        ("  rejected by a policy", forbidden.to_string()),
        ("  nonces consumed externally", displaced.to_string()),
        ("  replacements", replacements.to_string()),
        ("transactions on chain", evidence.mined.len().to_string()),
        ("leases claimed", evidence.claims.to_string()),
        ("faults", faults.values().sum::<usize>().to_string()),
    ];
    let fault_labels: Vec<(String, usize)> =
        faults.iter().map(|(kind, count)| (format!("  {}", kind.label()), *count)).collect();
    rows.extend(fault_labels.iter().map(|(label, count)| (label.as_str(), count.to_string())));
    rows.push(("operations", operations.values().sum::<usize>().to_string()));
    let operation_labels: Vec<(String, usize)> =
        operations.iter().map(|(kind, count)| (format!("  {}", kind.label()), *count)).collect();
    rows.extend(operation_labels.iter().map(|(label, count)| (label.as_str(), count.to_string())));
    rows.push((
        "  operator: release / adopt / adopt with takenBy",
        format!("{} / {} / {}", requested("release"), requested("adopt"), requested("adopt with takenBy")),
    ));
    let upgrade_rows = upgrade_rows(evidence);
    rows.extend(upgrade_rows.iter().map(|(label, value)| (label.as_str(), value.clone())));
    rows.push(("violations", violations.len().to_string()));
    let rule_labels: Vec<(String, usize)> = Rule::ALL
        .into_iter()
        .map(|rule| (format!("  {}", rule.label()), violations.iter().filter(|v| v.rule == rule).count()))
        .collect();
    rows.extend(rule_labels.iter().map(|(label, count)| (label.as_str(), count.to_string())));
    rows.push(("samples of submitters with work", samples(evidence).to_string()));
    rows.push(("longest stall of a submitter", format!("{:.1} s", longest_stall(evidence))));
    let settled = settled.map_or("never".to_owned(), |settled| format!("{:.1} s", settled.as_secs_f64()));
    rows.push(("all final after the last fault", settled));
    if let Some(audit) = audit {
        rows.push(("gapless verify", if audit.sound { "sound" } else { "unsound" }.into()));
    }
    let width = rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    let line = |(label, value): (&str, String)| {
        let gap = " ".repeat(width - label.chars().count());
        format!("{label}{gap}  {value:>18}")
    };
    rows.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

//! `gapless events enable`, `disable`, `status` and `reset`: the recording of events, in the database.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use gapless_store::events::{EventLogStatus, Recording};
use gapless_store::{Store, Timeouts};
use nix::unistd::{Uid, User};
use serde_json::{Map, Value, json};

use crate::args::{EventsCommand, ResetEvents};
use crate::commands::migrate::database_url;
use crate::output;

pub(super) async fn run(config: Option<&Path>, command: &EventsCommand, json: bool) -> Result<ExitCode> {
    if let EventsCommand::Reset(args) = command {
        confirm(args)?;
    }
    let store = Store::new(&database_url(config)?, "gapless-events", 1, Timeouts::default())?;
    let outcome = async {
        store.check_schema().await?;
        match command {
            EventsCommand::Enable => switch(&store, true, json).await,
            EventsCommand::Disable => switch(&store, false, json).await,
            EventsCommand::Status => status(&store, json).await,
            EventsCommand::Reset(args) => reset(&store, args, json).await,
        }
    };
    let outcome = outcome.await;
    store.close().await;
    outcome.map(|()| ExitCode::SUCCESS)
}

async fn switch(store: &Store, enabled: bool, json: bool) -> Result<()> {
    let verb = if enabled { "enable" } else { "disable" };
    let changed = async {
        store.set_event_recording(enabled, &operator()).await?;
        store.event_recording().await
    };
    let recording = changed.await.with_context(|| format!("cannot {verb} the recording of events"))?;
    if json {
        output::json(&Value::Object(recording_json(&recording)));
        return Ok(());
    }
    output::line(format!("recording  {}", recording_text(&recording)));
    output::say(match enabled {
        true => "All programs record events at once. To see them: gapless events --follow",
        false => {
            "No program records events any more, at once. Recorded events can be read until events.retention has passed."
        }
    });
    Ok(())
}

async fn status(store: &Store, json: bool) -> Result<()> {
    let read = async {
        let recording = store.event_recording().await?;
        Ok::<_, gapless_store::StoreError>((recording, store.event_log_status().await?))
    };
    let (recording, log) = read.await.context("cannot read the state of events")?;
    if json {
        output::json(&status_json(&recording, &log));
    } else {
        const ORDER: [&str; 6] = ["recording", "epoch", "oldest", "newest", "not ordered", "partitions"];
        output::fields(&ORDER, &status_text(&recording, &log));
    }
    Ok(())
}

fn confirm(args: &ResetEvents) -> Result<()> {
    if args.reason.trim().is_empty() {
        bail!("--reason must not be empty");
    }
    if !args.yes {
        bail!(
            "a new epoch makes the cursor of every consumer invalid: each is notified that events may be missing, and goes on \
             with the oldest event, which it may have seen. Use it only after a restore from a snapshot of the disk, and \
             repeat the command with --yes"
        );
    }
    Ok(())
}

async fn reset(store: &Store, args: &ResetEvents, json: bool) -> Result<()> {
    let before = store.event_log_status().await.context("cannot read the epoch")?.epoch;
    let epoch = store.renew_event_epoch(true).await.context("cannot begin a new epoch")?;
    if json {
        let (by, reason) = (operator(), &args.reason);
        output::json(&json!({ "epoch": epoch, "previousEpoch": before, "by": by, "reason": reason }));
    } else {
        output::line(format!("epoch  {epoch}, was {before}; by {}: {}", operator(), args.reason));
        output::say(
            "Every consumer is reset: it is notified that events may be missing, and goes on with the oldest event.",
        );
    }
    Ok(())
}

fn recording_json(recording: &Recording) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("recording".into(), recording.enabled.into());
    fields.insert("byOperator".into(), recording.by_operator.into());
    fields.insert("changedBy".into(), recording.changed_by.clone().into());
    fields.insert("changedAt".into(), recording.changed_at.to_rfc3339().into());
    fields
}

fn status_json(recording: &Recording, log: &EventLogStatus) -> Value {
    let ends = ends(log);
    let mut fields = recording_json(recording);
    fields.extend([
        ("epoch".into(), log.epoch.clone().into()),
        ("databaseChanged".into(), (!log.same_database).into()),
        ("oldestPosition".into(), ends.map(|(oldest, _)| oldest).into()),
        ("oldestAt".into(), log.oldest_at.map(|time| time.to_rfc3339()).into()),
        ("newestPosition".into(), ends.map(|(_, newest)| newest).into()),
        ("newestAt".into(), log.newest_at.map(|time| time.to_rfc3339()).into()),
        ("notOrdered".into(), log.waiting.into()),
        ("notOrderedIsCapped".into(), is_capped(log).into()),
        ("notOrderedAgeSeconds".into(), log.waiting_seconds.into()),
        ("partitions".into(), log.partitions.into()),
        ("partitionsEnd".into(), log.end_position.into()),
    ]);
    fields.into()
}

fn status_text(recording: &Recording, log: &EventLogStatus) -> Map<String, Value> {
    let at = |time: Option<chrono::DateTime<chrono::Utc>>| {
        time.map(|time| format!(", {}", time.to_rfc3339())).unwrap_or_default()
    };
    let (oldest, newest) = match ends(log) {
        Some((oldest, newest)) => (
            format!("position {oldest}{}", at(log.oldest_at)),
            format!("position {newest}{}", at(log.newest_at)),
        ),
        None => ("none".to_owned(), format!("none, the next has position {}", log.position + 1)),
    };
    let changed = match log.same_database {
        true => "",
        false => "; the database was restored or failed over: the next reader begins a new one",
    };
    let waiting = match log.waiting_seconds {
        Some(age) => {
            let more = if is_capped(log) { " or more" } else { "" };
            format!("{}{more}, the oldest for {:.1} s", log.waiting, age.max(0.0))
        }
        None => log.waiting.to_string(),
    };
    let fields = [
        ("recording", recording_text(recording)),
        ("epoch", format!("{}{changed}", log.epoch)),
        ("oldest", oldest),
        ("newest", newest),
        ("not ordered", waiting),
        ("partitions", format!("{}, up to position {}", log.partitions, log.end_position - 1)),
    ];
    fields.into_iter().map(|(name, text)| (name.to_owned(), text.into())).collect()
}

fn recording_text(recording: &Recording) -> String {
    let state = if recording.enabled { "enabled" } else { "disabled" };
    let decided = match recording.by_operator {
        true => "; events.mode does not change it",
        false => "",
    };
    format!("{state} by {} at {}{decided}", recording.changed_by, recording.changed_at.to_rfc3339())
}

/// Positions of the oldest and the newest event; `None`: the log is empty.
fn ends(log: &EventLogStatus) -> Option<(i64, i64)> {
    (log.first_position <= log.position).then_some((log.first_position, log.position))
}

fn is_capped(log: &EventLogStatus) -> bool {
    log.waiting >= EventLogStatus::MAX_WAITING
}

fn operator() -> String {
    format!("operator {}", user_name())
}

/// Of the system. A container may run as a user without a name.
fn user_name() -> String {
    let user = User::from_uid(Uid::current()).ok().flatten();
    user.map(|user| user.name).unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording() -> Recording {
        Recording {
            enabled: true,
            by_operator: true,
            changed_by: "operator alice".into(),
            changed_at: "2026-11-17T22:13:20Z".parse().unwrap(),
        }
    }

    fn log() -> EventLogStatus {
        EventLogStatus {
            epoch: "5f3a9c21".into(),
            same_database: true,
            position: 1042,
            first_position: 1001,
            newest_at: Some("2026-11-17T22:13:20Z".parse().unwrap()),
            oldest_at: Some("2026-11-10T22:13:20Z".parse().unwrap()),
            partitions: 2,
            end_position: 3001,
            waiting: 0,
            waiting_seconds: None,
        }
    }

    #[test]
    fn the_status_says_who_decided_and_where_the_log_ends() {
        let text = status_text(&recording(), &log());
        assert_eq!(
            text["recording"],
            "enabled by operator alice at 2026-11-17T22:13:20+00:00; events.mode does not change it"
        );
        assert_eq!(text["epoch"], "5f3a9c21");
        assert_eq!(text["oldest"], "position 1001, 2026-11-10T22:13:20+00:00");
        assert_eq!(text["newest"], "position 1042, 2026-11-17T22:13:20+00:00");
        assert_eq!(text["not ordered"], "0");
        assert_eq!(text["partitions"], "2, up to position 3000");
        let json = status_json(&recording(), &log());
        assert_eq!((&json["recording"], &json["oldestPosition"]), (&true.into(), &1001.into()));
        assert_eq!((&json["notOrdered"], &json["notOrderedAgeSeconds"]), (&0.into(), &Value::Null));
    }

    #[test]
    fn an_empty_log_and_a_full_outbox_are_shown() {
        let empty = EventLogStatus {
            position: 0,
            first_position: 1,
            newest_at: None,
            oldest_at: None,
            same_database: false,
            waiting: EventLogStatus::MAX_WAITING,
            waiting_seconds: Some(61.25),
            ..log()
        };
        let text = status_text(&recording(), &empty);
        assert_eq!(
            (&text["oldest"], &text["newest"]),
            (&"none".into(), &"none, the next has position 1".into())
        );
        assert_eq!(text["not ordered"], "10000 or more, the oldest for 61.2 s");
        assert!(text["epoch"].as_str().unwrap().contains("restored"), "{text:?}");
        let json = status_json(&recording(), &empty);
        assert_eq!((&json["newestPosition"], &json["notOrderedIsCapped"]), (&Value::Null, &true.into()));
    }

    #[test]
    fn a_reset_needs_a_reason_and_a_confirmation() {
        let args = |reason: &str, yes| ResetEvents { reason: reason.into(), yes };
        assert!(confirm(&args("restored", true)).is_ok());
        assert!(confirm(&args(" ", true)).unwrap_err().to_string().contains("--reason"));
        assert!(confirm(&args("restored", false)).unwrap_err().to_string().contains("--yes"));
    }
}

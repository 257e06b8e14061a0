//! Options and help of `gapless webhooks`.

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand, ValueEnum};
use gapless_domain::WebhookId;
use uuid::Uuid;

use super::EventFilterArgs;

pub(super) const EXAMPLES: &str = "A webhook gets events with POST, signed as in the Standard Webhooks specification: \
docs/guide/webhooks.md. A key sees the webhooks that it created; the scope admin shows all. Keys that encrypt secrets: \
docs/operate/webhooks.md.

Examples:
  gapless webhooks create https://example.com/hooks --type tx.confirmed,tx.failed,tx.cancelled
  gapless webhooks list
  gapless webhooks test 0190a5c2-…
  gapless webhooks deliveries 0190a5c2-… --state exhausted";

#[derive(Debug, Subcommand)]
pub enum Webhooks {
    /// Create a webhook and print its signing secret once
    #[command(after_help = "Examples:\n  \
                            gapless webhooks create https://example.com/hooks --description payouts\n  \
                            gapless webhooks create https://example.com/hooks --submitter 0xAb… --type tx.confirmed\n  \
                            gapless webhooks create https://example.com/hooks --secret-file old.secret")]
    Create(Box<CreateWebhook>),
    /// List webhooks with their state
    List,
    /// Show a webhook with its filter and the state of its deliveries
    #[command(after_help = "Example:\n  gapless webhooks show 0190a5c2-…")]
    Show(WebhookArg),
    /// Change URL, description or filter, or enable or disable a webhook
    #[command(after_help = "An option for the filter replaces the whole filter.\n\n\
                            Examples:\n  gapless webhooks update 0190a5c2-… --enable\n  \
                            gapless webhooks update 0190a5c2-… --url https://example.com/new --type tx.confirmed\n  \
                            gapless webhooks update 0190a5c2-… --all-events")]
    Update(Box<UpdateWebhook>),
    /// Delete a webhook; what was not delivered yet is lost
    #[command(after_help = "Example:\n  gapless webhooks delete 0190a5c2-…")]
    Delete(WebhookArg),
    /// Replace the signing secret and print the new one once
    #[command(
        after_help = "For events.webhook.rotation_overlap, deliveries have signatures of both secrets.\n\n\
                            Example:\n  gapless webhooks rotate 0190a5c2-…"
    )]
    Rotate(RotateWebhook),
    /// Deliver a test event and show the result; exit status 1 if it was not delivered
    #[command(after_help = "Example:\n  gapless webhooks test 0190a5c2-… && echo works")]
    Test(WebhookArg),
    /// List deliveries, newest first
    #[command(after_help = "Successful deliveries are listed for events.webhook.delivered_retention.\n\n\
                            Examples:\n  gapless webhooks deliveries 0190a5c2-…\n  \
                            gapless webhooks deliveries 0190a5c2-… --state exhausted --limit 1000")]
    Deliveries(Deliveries),
    /// Deliver events again, by id or by time
    #[command(
        after_help = "At most 10,000 events, of those that are still in the log. The receiver gets them with the same \
                            ids as before.\n\n\
                            Examples:\n  \
                            gapless webhooks replay 0190a5c2-… --from 2026-11-18T09:00:00Z --only-failed\n  \
                            gapless webhooks replay 0190a5c2-… --event 6d1f0a52-2c1e-4a70-9f53-0d2b9d1c7a11"
    )]
    Replay(ReplayWebhook),
    /// Print a line with a new key for the file events.webhook.key_file; uses neither API nor database
    #[command(
        after_help = "The first line of the file encrypts secrets, all lines decrypt them. To replace a key: add \
                            a new first line, restart the workers, then the APIs, run `gapless webhooks reseal`, remove \
                            the old line.\n\n\
                            Example:\n  (umask 077; gapless webhooks new-key > webhook.keys)"
    )]
    NewKey(NewWebhookKey),
    /// Encrypt all signing secrets again with the first key of events.webhook.key_file; writes to the database
    #[command(
        after_help = "Run it after a new first line was added to the file and all workers and APIs were restarted. Then older \
                            keys can be removed from the file. Signing secrets stay the same.\n\n\
                            Example:\n  gapless --config gapless.toml webhooks reseal"
    )]
    Reseal,
}

#[derive(Debug, Args)]
pub struct WebhookArg {
    /// Id of the webhook
    #[arg(value_name = "WEBHOOK_ID")]
    pub id: WebhookId,
}

#[derive(Debug, Args)]
pub struct CreateWebhook {
    /// Where deliveries go: https:// or http://
    #[arg(value_name = "URL")]
    pub url: String,
    /// A note, at most 200 characters
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    #[command(flatten)]
    pub filter: EventFilterArgs,
    #[command(flatten)]
    pub secret: OwnSecret,
}

#[derive(Debug, Args)]
pub struct OwnSecret {
    /// File with a signing secret of your own (whsec_…), for receivers that keep theirs; a new one if omitted
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct UpdateWebhook {
    #[command(flatten)]
    pub webhook: WebhookArg,
    /// New URL
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// New note, at most 200 characters
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// Deliver again, also the events since it was disabled
    #[arg(long, conflicts_with = "disable")]
    pub enable: bool,
    /// Deliver nothing until it is enabled
    #[arg(long)]
    pub disable: bool,
    /// Remove the filter: deliver all events that the key may see
    #[arg(long, conflicts_with_all = ["kinds", "submitter", "chain", "tx"])]
    pub all_events: bool,
    #[command(flatten)]
    pub filter: EventFilterArgs,
}

#[derive(Debug, Args)]
pub struct RotateWebhook {
    #[command(flatten)]
    pub webhook: WebhookArg,
    #[command(flatten)]
    pub secret: OwnSecret,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeliveryState {
    Pending,
    Retrying,
    Delivered,
    Exhausted,
}

#[derive(Debug, Args)]
pub struct Deliveries {
    #[command(flatten)]
    pub webhook: WebhookArg,
    /// Only deliveries in this state
    #[arg(long, value_enum)]
    pub state: Option<DeliveryState>,
    /// At most this number of deliveries
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

#[derive(Debug, Args)]
pub struct ReplayWebhook {
    #[command(flatten)]
    pub webhook: WebhookArg,
    /// Id of an event; repeatable
    #[arg(long = "event", value_name = "EVENT_ID", required_unless_present = "from", conflicts_with_all = ["from", "until", "only_failed"])]
    pub events: Vec<Uuid>,
    /// Events since this time, RFC 3339
    #[arg(long, value_name = "TIME")]
    pub from: Option<DateTime<Utc>>,
    /// Events before this time, RFC 3339 [default: now]
    #[arg(long, value_name = "TIME", requires = "from")]
    pub until: Option<DateTime<Utc>>,
    /// Only events whose delivery is exhausted
    #[arg(long, requires = "from")]
    pub only_failed: bool,
}

#[derive(Debug, Args)]
pub struct NewWebhookKey {
    /// Name of the key: 1 to 32 letters, digits, `-`, `_` and `.`; unique in the file [default: the date]
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    const ID: &str = "0190a5c2-0000-7000-8000-000000000000";

    fn webhooks(words: &[&str]) -> Result<Webhooks, clap::Error> {
        let words = ["gapless", "webhooks"].iter().chain(words);
        match Cli::try_parse_from(words)?.command {
            Command::Webhooks(command) => Ok(command),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_webhook_is_created_with_a_filter() {
        let words =
            ["create", "https://e.com", "--type", "tx.failed,tx.confirmed", "--chain", "1", "--tx", ID];
        let Ok(Webhooks::Create(create)) = webhooks(&words) else { panic!("no create") };
        assert_eq!(create.filter.kinds, ["tx.failed", "tx.confirmed"]);
        assert_eq!((create.filter.chain, create.url.as_str()), (Some(1), "https://e.com"));
        assert!(webhooks(&["create"]).is_err());
        assert!(webhooks(&["show", "1"]).is_err());
    }

    #[test]
    fn a_change_does_not_contradict_itself() {
        assert!(webhooks(&["update", ID, "--enable", "--url", "https://e.com"]).is_ok());
        for wrong in [&["--enable", "--disable"][..], &["--all-events", "--type", "tx.failed"]] {
            assert!(webhooks(&[&["update", ID], wrong].concat()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_replay_is_by_id_or_by_time() {
        let time = "2026-11-18T09:00:00Z";
        for right in [
            &["--event", ID, "--event", ID][..],
            &["--from", time],
            &["--from", time, "--until", "2026-11-18T10:00:00+01:00", "--only-failed"],
        ] {
            assert!(webhooks(&[&["replay", ID], right].concat()).is_ok(), "{right:?}");
        }
        for wrong in [
            &[][..],
            &["--event", "1"],
            &["--event", ID, "--from", time],
            &["--event", ID, "--only-failed"],
            &["--until", time],
            &["--from", "yesterday"],
        ] {
            assert!(webhooks(&[&["replay", ID], wrong].concat()).is_err(), "{wrong:?}");
        }
    }
}

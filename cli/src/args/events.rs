//! Options and help of `gapless events`.

use clap::{Args, Subcommand};
use gapless_domain::TxId;

pub(super) const EXAMPLES: &str = "Without --follow, prints the oldest events of the log. With --follow, prints new events as they \
happen and connects again after a lost connection; Ctrl-C ends it. Events of a submitter are in order. With --json, each line is an \
event as CloudEvents. The options read from the API, the subcommands use the database.

Examples:
  gapless events --follow
  gapless events --follow --type tx.confirmed,tx.failed --submitter 0xAb…
  gapless events --tx 0190a5c2-…
  gapless --json events --follow --after 5f3a9c21.1042
  gapless --config gapless.toml events enable
  gapless --config gapless.toml events status";

#[derive(Debug, Args)]
pub struct Events {
    #[command(flatten)]
    pub read: ReadEvents,
    #[command(subcommand)]
    pub command: Option<EventsCommand>,
}

impl Events {
    /// The subcommand, which takes none of the options for reading. Not `args_conflicts_with_subcommands`: it would also
    /// refuse global options before the subcommand.
    pub fn subcommand(&self) -> anyhow::Result<Option<&EventsCommand>> {
        anyhow::ensure!(
            self.command.is_none() || self.read == ReadEvents::default(),
            "options for reading events cannot be used with a subcommand of `gapless events`"
        );
        Ok(self.command.as_ref())
    }
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub struct ReadEvents {
    /// Print new events as they happen, until Ctrl-C
    #[arg(long)]
    pub follow: bool,
    /// Begin after this cursor, with the oldest event (start) or with the next one (end) [default: start; end with
    /// --follow]
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<String>,
    #[command(flatten)]
    pub filter: EventFilterArgs,
    /// End after this number of events [default: 50; no limit with --follow]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

/// Which events are read or delivered.
#[derive(Debug, Default, PartialEq, Eq, Args)]
pub struct EventFilterArgs {
    /// Only these types, for example tx.confirmed; separated by commas
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    pub kinds: Vec<String>,
    /// Only this submitter
    #[arg(long, value_name = "ADDRESS")]
    pub submitter: Option<String>,
    /// Only this chain; required with --submitter if the deployment serves several chains
    #[arg(long, value_name = "ID")]
    pub chain: Option<u64>,
    /// Only this transaction
    #[arg(long, value_name = "TX_ID")]
    pub tx: Option<TxId>,
}

#[derive(Debug, Subcommand)]
pub enum EventsCommand {
    /// Record events from now on, whatever the configurations of the programs say; writes to the database
    #[command(
        after_help = "Refused while programs older than 0.2.0 are connected, because they record nothing.\n\n\
                            Example:\n  gapless --config gapless.toml events enable"
    )]
    Enable,
    /// Stop recording events, whatever the configurations of the programs say; writes to the database
    #[command(after_help = "Recorded events can be read until events.retention has passed.\n\n\
                            Example:\n  gapless --config gapless.toml events disable")]
    Disable,
    /// Show whether events are recorded, the ends of the log and what is not in it yet; reads the database
    #[command(after_help = "Examples:\n  gapless --config gapless.toml events status\n  \
                            gapless --config gapless.toml --json events status")]
    Status,
    /// Make all cursors invalid after the database was restored from a snapshot of its disk; writes to the database
    #[command(
        after_help = "After a restore, positions of lost events are assigned again: a consumer that goes on after its old \
                      cursor would miss events. A restore from a dump, a recovery to a point in time and a failover \
                      are noticed by themselves; a copy of the disk is not. Run it before API and workers \
                      start. Every consumer is then notified that events may be missing, and goes on with the oldest event.\n\n\
                      Example:\n  gapless --config gapless.toml events reset --reason 'restored the snapshot of Monday' --yes"
    )]
    Reset(ResetEvents),
}

#[derive(Debug, Args)]
pub struct ResetEvents {
    /// Reason, printed with the result; it is not stored
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Confirm that every consumer is reset
    #[arg(long)]
    pub yes: bool,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn events(words: &[&str]) -> Result<Events, clap::Error> {
        let words = ["gapless", "events"].iter().chain(words);
        match Cli::try_parse_from(words)?.command {
            Command::Events(events) => Ok(*events),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn events_are_read_unless_there_is_a_subcommand() {
        let tx = "0190a5c2-0000-7000-8000-000000000000";
        let words =
            ["--follow", "--type", "tx.confirmed,tx.failed", "--chain", "1", "--tx", tx, "--limit", "3"];
        let Events { read, command } = events(&words).unwrap();
        assert!(read.follow && command.is_none());
        assert_eq!(read.filter.kinds, ["tx.confirmed", "tx.failed"]);
        assert_eq!((read.filter.chain, read.limit, read.after), (Some(1), Some(3), None));
        assert!(matches!(events(&[]).unwrap().subcommand(), Ok(None)));
        // Global options may stand anywhere.
        for words in [&["status"][..], &["status", "--json"], &["--json", "status"]] {
            assert!(
                matches!(events(words).unwrap().subcommand(), Ok(Some(EventsCommand::Status))),
                "{words:?}"
            );
        }
        assert!(events(&["--follow", "status"]).unwrap().subcommand().is_err());
        for wrong in [&["--limit", "0"][..], &["--tx", "1"], &["reset"], &["stop"]] {
            assert!(events(wrong).is_err(), "{wrong:?}");
        }
    }
}

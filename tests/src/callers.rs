//! Callers outside of the worker: this process with the crate linked in, or a process that can be killed.

use gapless::config::Secret;
use gapless::domain::{ChainId, ReservationState, SubmitterKey, TxId};
use gapless::embed::Gapless;
use gapless_cli::localnet::{Launch, Process};
use uuid::Uuid;

use crate::eventually::eventually;
use crate::stack::Stack;
use crate::submitter::Submitter;

/// A reservation, straight from its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationRow {
    pub tx_id: TxId,
    pub state: ReservationState,
    pub nonce: Option<u64>,
    pub answered: bool,
}

impl Stack {
    /// The library as a program of somebody's own uses it.
    pub async fn gapless(&self) -> Gapless {
        Gapless::connect(&Secret::new(self.database_url())).await.expect("the schema is current")
    }

    /// A submitter on the first chain.
    pub fn key(&self, index: usize) -> SubmitterKey {
        let chain_id = ChainId(self.anvil().chain_id());
        SubmitterKey { chain_id, address: self.submitter(index).address() }
    }

    /// In the order they were asked for.
    pub async fn reservations(&self, submitter: &Submitter) -> Vec<ReservationRow> {
        let raw: Vec<(Uuid, String, Option<i64>, bool)> = sqlx::query_as(
            "SELECT tx_id, state, nonce, answered_at IS NOT NULL
             FROM nonce_reservation
             WHERE submitter = $1
             ORDER BY requested_at",
        )
        .bind(submitter.text())
        .fetch_all(self.db())
        .await
        .expect("the reservations");
        let row = |(tx_id, state, nonce, answered): (Uuid, String, Option<i64>, bool)| ReservationRow {
            tx_id: TxId(tx_id),
            state: state.parse().expect("a known state"),
            nonce: nonce.map(|nonce| nonce.unsigned_abs()),
            answered,
        };
        raw.into_iter().map(row).collect()
    }

    /// Until the last reservation of a submitter is in `state`.
    pub async fn wait_reservation(&self, submitter: &Submitter, state: ReservationState) -> ReservationRow {
        eventually(&format!("the last reservation of {} is {state}", submitter.text()), async || {
            let last = self.reservations(submitter).await.pop();
            last.clone().filter(|last| last.state == state).ok_or(last)
        })
        .await
    }

    /// Waits until the submitters are in this mode, as the workers announce it.
    pub async fn wait_low_level(&self, on: bool) {
        eventually(&format!("low-level is {on}"), async || {
            let modes: Vec<bool> =
                sqlx::query_scalar("SELECT low_level FROM submitter").fetch_all(self.db()).await.unwrap();
            if !modes.is_empty() && modes.iter().all(|mode| *mode == on) { Ok(()) } else { Err(modes) }
        })
        .await;
    }

    /// A process that asks for a nonce, says when it sees it, and never answers. It is neither an API nor a worker, and has
    /// the rights of neither: it comes as the owner of the tables, like the audit.
    pub fn start_caller(&self, index: usize, request_id: &str) -> Caller {
        let config = self.audit_config();
        let log = self.dir().join(format!("caller-{request_id}.log"));
        let launch = Launch::new("caller", self.program(), &log).args([
            "caller".to_owned(),
            "--config".to_owned(),
            config.to_str().expect("a UTF-8 path").to_owned(),
            "--chain-id".to_owned(),
            self.anvil().chain_id().to_string(),
            "--submitter".to_owned(),
            self.submitter(index).text(),
            "--request-id".to_owned(),
            request_id.to_owned(),
        ]);
        Caller { process: launch.spawn().expect("a caller starts"), log }
    }
}

#[derive(Debug)]
pub struct Caller {
    process: Process,
    log: std::path::PathBuf,
}

impl Caller {
    /// Until it has seen its nonce.
    pub async fn wait_saw_nonce(&mut self) {
        let (process, log) = (&mut self.process, &self.log);
        eventually("the caller sees its nonce", async || {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            if text.contains("the caller saw its nonce") {
                return Ok(());
            }
            assert!(process.exited().expect("it can be asked").is_none(), "the caller ended: {text}");
            Err(text)
        })
        .await;
    }

    pub fn kill9(&mut self) {
        self.process.kill9();
    }
}

//! Clients that reserve nonces: this process through the library, or a separate process that can be killed.

use gapless_config::Secret;
use gapless_domain::{ChainId, ReservationState, SubmitterKey, TxId};
use gapless_embed::Gapless;
use gapless_localnet::{Launch, Process};
use uuid::Uuid;

use crate::eventually::eventually;
use crate::stack::Stack;
use crate::submitter::Submitter;

/// A row of `nonce_reservation`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationRow {
    pub tx_id: TxId,
    pub state: ReservationState,
    pub nonce: Option<u64>,
    pub answered: bool,
}

impl Stack {
    /// The library, as an embedding program uses it.
    pub async fn gapless(&self) -> Gapless {
        Gapless::connect(&Secret::new(self.database_url())).await.expect("the schema is current")
    }

    /// Key of a submitter on the first chain.
    pub fn key(&self, index: usize) -> SubmitterKey {
        let chain_id = ChainId(self.anvil().chain_id());
        SubmitterKey { chain_id, address: self.submitter(index).address() }
    }

    /// In the order of the requests.
    pub async fn reservations(&self, submitter: &Submitter) -> Vec<ReservationRow> {
        let raw: Vec<(Uuid, String, Option<i64>, bool)> = sqlx::query_as(
            "SELECT tx_id, state, nonce, answered_at IS NOT NULL
             FROM nonce_reservation
             WHERE submitter = $1
             ORDER BY requested_at",
        )
        .bind(submitter.bytes())
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

    /// Waits until the last reservation of a submitter is in `state`.
    pub async fn wait_reservation(&self, submitter: &Submitter, state: ReservationState) -> ReservationRow {
        eventually(&format!("the last reservation of {} is {state}", submitter.text()), async || {
            let last = self.reservations(submitter).await.pop();
            last.clone().filter(|last| last.state == state).ok_or(last)
        })
        .await
    }

    /// Waits until the workers have announced this low-level mode for all submitters.
    pub async fn wait_low_level(&self, on: bool) {
        eventually(&format!("low-level is {on}"), async || {
            let modes: Vec<bool> =
                sqlx::query_scalar("SELECT low_level FROM submitter").fetch_all(self.db()).await.unwrap();
            if !modes.is_empty() && modes.iter().all(|mode| *mode == on) { Ok(()) } else { Err(modes) }
        })
        .await;
    }

    /// A process that reserves a nonce, logs when it gets it, and never returns a transaction. It connects as the
    /// owner of the tables, like the audit, not with the role of an API or a worker.
    pub fn start_reservation_client(&self, index: usize, request_id: &str) -> ReservationClient {
        let config = self.audit_config();
        let log = self.dir().join(format!("reservation-client-{request_id}.log"));
        let launch = Launch::new("reservation-client", self.program(), &log).args([
            "reservation-client".to_owned(),
            "--config".to_owned(),
            config.to_str().expect("a UTF-8 path").to_owned(),
            "--chain-id".to_owned(),
            self.anvil().chain_id().to_string(),
            "--submitter".to_owned(),
            self.submitter(index).text(),
            "--request-id".to_owned(),
            request_id.to_owned(),
        ]);
        ReservationClient { process: launch.spawn().expect("the reservation client starts"), log }
    }
}

#[derive(Debug)]
pub struct ReservationClient {
    process: Process,
    log: std::path::PathBuf,
}

impl ReservationClient {
    /// Waits until it has its nonce.
    pub async fn wait_for_nonce(&mut self) {
        let (process, log) = (&mut self.process, &self.log);
        eventually("the reservation client has its nonce", async || {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            if text.contains("the client received its nonce") {
                return Ok(());
            }
            assert!(
                process.exited().expect("it can be asked").is_none(),
                "the reservation client exited: {text}"
            );
            Err(text)
        })
        .await;
    }

    pub fn kill9(&mut self) {
        self.process.kill9();
    }
}

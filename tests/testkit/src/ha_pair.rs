//! A PostgreSQL primary with a standby, and one address that leads to the current primary.

use gapless_localnet::Postgres;
use sqlx::{Connection, PgConnection};

use crate::database_clock::DatabaseClock;
use crate::eventually::eventually;
use crate::servers;
use crate::switch::Switch;

#[derive(Debug)]
pub struct HaPair {
    primary: Postgres,
    standby: Postgres,
    switch: Switch,
    database: String,
}

impl HaPair {
    /// `synchronous`: a commit returns only after the standby has it.
    pub async fn start(synchronous: bool) -> HaPair {
        HaPair::start_with(synchronous, Vec::new()).await
    }

    /// A synchronous pair whose standby uses another clock.
    pub async fn with_standby_clock(clock: &DatabaseClock) -> HaPair {
        HaPair::start_with(true, clock.env()).await
    }

    async fn start_with(synchronous: bool, standby_env: Vec<(String, String)>) -> HaPair {
        let mut primary = servers::own_postgres().await;
        let url = servers::create_database(&primary).await;
        let standby = primary.standby("standby", synchronous, standby_env).await.expect("a standby");
        let database = url.rsplit('/').next().expect("a name").to_owned();
        let switch = Switch::to(primary.port()).await;
        HaPair { primary, standby, switch, database }
    }

    /// URL of the primary, and of the standby after its promotion.
    pub fn url(&self) -> String {
        let direct = self.primary.url(&self.database);
        direct.replace(&format!(":{}/", self.primary.port()), &format!(":{}/", self.switch.port()))
    }

    /// Kills the primary and promotes the standby.
    pub async fn fail_over(&mut self) {
        self.primary.kill9();
        self.standby.promote().await.expect("the standby is promoted");
        self.switch.turn_to(self.standby.port());
    }

    /// Stops the standby, and thereby replication.
    pub async fn stop_standby(&mut self) {
        self.standby.stop().await.expect("the standby stops");
    }

    pub async fn start_standby(&mut self) {
        self.standby.restart().await.expect("the standby starts");
    }

    pub fn kill_primary(&mut self) {
        self.primary.kill9();
    }

    /// Waits until the standby has replayed everything.
    pub async fn wait_replayed(&self) {
        let written: String =
            ask(&self.primary.url(&self.database), "SELECT pg_current_wal_lsn()::TEXT").await;
        let url = self.standby.url(&self.database);
        eventually("the standby has replayed everything", async || {
            let replayed: String = ask(&url, "SELECT pg_last_wal_replay_lsn()::TEXT").await;
            if position(&replayed) >= position(&written) { Ok(()) } else { Err((replayed, written.clone())) }
        })
        .await;
    }
}

async fn ask(url: &str, question: &'static str) -> String {
    let mut connection = PgConnection::connect(url).await.expect("the server answers");
    let answer = sqlx::query_scalar(question).fetch_one(&mut connection).await.expect("an answer");
    connection.close().await.expect("the connection closes");
    answer
}

/// An LSN such as `16/B374D848` as a number.
fn position(text: &str) -> u64 {
    let (high, low) = text.split_once('/').expect("two halves");
    let half = |hex: &str| u64::from_str_radix(hex, 16).expect("a number");
    (half(high) << 32) + half(low)
}

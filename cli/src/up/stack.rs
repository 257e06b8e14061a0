//! The processes of one run: started in dependency order, stopped in reverse.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gapless_config::Secret;
use gapless_localnet::{
    Anvil, AnvilOptions, AnvilProgram, Launch, Mining, Port, Postgres, PostgresBinaries, PostgresOptions,
    Process, StateFile,
};
use gapless_store::Contract;
use serde_json::json;

use super::consistency::ConsistencyCheck;
use super::home::Home;
use super::reason::with_progress;
use super::settings::{self, BLOCK_SECONDS, CHAIN_ID, Places};
use crate::api_address::DEFAULT_API_PORT;
use crate::args;
use crate::commands::migrate;
use crate::output::say;

const DATABASE: &str = "gapless";
/// 1,000 ether.
const FUNDS: &str = "0x3635c9adc5dea00000";
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// A server of the stack and its default port; a free one is chosen if that is in use.
struct Server {
    name: &'static str,
    option: &'static str,
    default_port: u16,
}

const API: Server = Server { name: "the API", option: "--api-port", default_port: DEFAULT_API_PORT };
const WORKER: Server = Server { name: "the worker", option: "--worker-port", default_port: 9090 };
const ANVIL: Server = Server { name: "anvil", option: "--anvil-port", default_port: 8545 };
const POSTGRES: Server = Server { name: "PostgreSQL", option: "--postgres-port", default_port: 54329 };
/// Anvil writes its whole state each time: every second while the file is small, so that confirmed transactions (two
/// blocks deep) survive a kill. The interval grows by one second for each of these bytes.
const STATE_BYTES_PER_SECOND: u64 = 10_000_000;

#[derive(Debug, Default)]
pub(super) struct Stack {
    worker: Option<Process>,
    api: Option<Process>,
    anvil: Option<Anvil>,
    postgres: Option<Postgres>,
    places: Option<Places>,
    /// Reserved for this run until it ends.
    ports: Vec<Port>,
}

impl Stack {
    /// Starts database and chain, and writes the configuration.
    pub(super) async fn start(&mut self, home: &Home, args: &args::Up) -> Result<()> {
        // Before anything is started, so that a port that is in use is reported at once.
        let api = self.port(&API, args.api_port)?;
        let worker = self.port(&WORKER, args.worker_port)?;
        let anvil = self.port(&ANVIL, args.anvil_port)?;
        let database =
            with_progress("PostgreSQL is starting", self.start_database(home, args.postgres_port)).await?;
        let rpc = with_progress("anvil is starting", self.start_chain(home, anvil)).await?;
        let places = Places { database, rpc, api, worker };
        settings::write(home, &places)?;
        self.places = Some(places);
        Ok(())
    }

    /// The port that was asked for, or the default one, or any if that is in use.
    fn port(&mut self, server: &Server, asked: Option<u16>) -> Result<u16> {
        let Server { name, option, default_port } = server;
        let port = match (Port::if_free(asked.unwrap_or(*default_port))?, asked) {
            (Some(port), _) => port,
            (None, Some(number)) => bail!("{option}: port {number} is in use"),
            (None, None) => {
                let port = Port::claim()?;
                say(&format!("port {default_port} is in use: {name} uses {} ({option})", port.number()));
                port
            }
        };
        let number = port.number();
        self.ports.push(port);
        Ok(number)
    }

    /// Returns the URL of the node.
    async fn start_chain(&mut self, home: &Home, port: u16) -> Result<String> {
        let program = tokio::task::spawn_blocking(|| AnvilProgram::obtain(say)).await??;
        let path = home.chain_state();
        let bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
        let every_secs = 1 + bytes / STATE_BYTES_PER_SECOND;
        let options = AnvilOptions {
            chain_id: CHAIN_ID,
            port: Some(port),
            mining: Mining::Interval(BLOCK_SECONDS),
            state: Some(StateFile { path, every_secs }),
            accounts: 0,
            log: Some(home.log("anvil")?),
            ..AnvilOptions::default()
        };
        let anvil = Anvil::start(&program, options).await?;
        home.note_child("anvil", anvil.pid())?;
        say(&format!("anvil       {} (chain {CHAIN_ID})", anvil.url()));
        let url = anvil.url();
        self.anvil = Some(anvil);
        Ok(url)
    }

    /// Migrates the database of DATABASE_URL, or of a server started here. Returns the URL only in the second case.
    async fn start_database(&mut self, home: &Home, port: Option<u16>) -> Result<Option<String>> {
        if let Ok(url) = std::env::var("DATABASE_URL") {
            say("PostgreSQL  from DATABASE_URL");
            // Other programs may use it.
            migrate::migrate(&Secret::new(url), Contract::Later).await?;
            return Ok(None);
        }
        let binaries = tokio::task::spawn_blocking(|| PostgresBinaries::obtain(say)).await??;
        let options = PostgresOptions {
            port: Some(self.port(&POSTGRES, port)?),
            log: Some(home.log("postgres")?),
            ..PostgresOptions::durable(home.dir())
        };
        let postgres = Postgres::start(&binaries, options).await?;
        home.note_child("PostgreSQL", postgres.pid())?;
        postgres.ensure_database(DATABASE).await?;
        let url = postgres.url(DATABASE);
        self.postgres = Some(postgres);
        say(&format!("PostgreSQL  {url}"));
        migrate::migrate(&Secret::new(url.as_str()), Contract::Now).await?;
        Ok(Some(url))
    }

    fn anvil(&self) -> Result<&Anvil> {
        self.anvil.as_ref().context("the chain is not started")
    }

    pub(super) fn consistency_check(&self, submitters: &[String]) -> Result<ConsistencyCheck> {
        let database = match &self.places().database {
            Some(url) => url.clone(),
            None => std::env::var("DATABASE_URL").context("DATABASE_URL is not set")?,
        };
        let (database, anvil) = (Secret::new(database), self.anvil()?.client());
        Ok(ConsistencyCheck { database, anvil, submitters: submitters.to_vec() })
    }

    /// Funds submitters with a zero balance.
    pub(super) async fn fund(&self, submitters: &[String]) -> Result<()> {
        let anvil = self.anvil()?;
        for address in submitters {
            if anvil.rpc("eth_getBalance", json!([address, "latest"])).await? == json!("0x0") {
                anvil.rpc("anvil_setBalance", json!([address, FUNDS])).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn start_services(&mut self, home: &Home) -> Result<()> {
        self.api = Some(service(home, "gapless-api")?);
        self.worker = Some(service(home, "gapless-worker")?);
        Ok(())
    }

    fn places(&self) -> &Places {
        self.places.as_ref().expect("the stack is started first")
    }

    pub(super) fn api_port(&self) -> u16 {
        self.places().api
    }

    pub(super) fn api_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.places().api)
    }

    pub(super) fn worker_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.places().worker)
    }

    pub(super) fn rpc_url(&self) -> &str {
        &self.places().rpc
    }

    /// For display: a URL from the environment may contain a password.
    pub(super) fn database_shown(&self) -> &str {
        self.places().database.as_deref().unwrap_or("$DATABASE_URL")
    }

    /// A report about the first child that exited by itself.
    pub(super) fn exited_child(&mut self) -> Option<String> {
        let processes = [
            self.postgres.as_mut().map(Postgres::process),
            self.anvil.as_mut().map(Anvil::process),
            self.api.as_mut(),
            self.worker.as_mut(),
        ];
        processes.into_iter().flatten().find_map(|process| {
            let status = process.exited().ok().flatten()?;
            Some(format!(
                "{} exited ({status}); end of {}:\n{}",
                process.name(),
                process.log().display(),
                process.log_tail(25)
            ))
        })
    }

    /// Stops worker, API, chain and database, in this order.
    pub(super) async fn stop(&mut self) {
        for process in [self.worker.take(), self.api.take()].into_iter().flatten() {
            let mut process = process;
            report(process.stop(STOP_LIMIT).await.map(drop));
        }
        if let Some(mut anvil) = self.anvil.take() {
            report(anvil.stop().await);
        }
        if let Some(mut postgres) = self.postgres.take() {
            report(postgres.stop().await);
        }
    }
}

fn report(outcome: Result<()>) {
    if let Err(error) = outcome {
        say(&format!("{error:#}"));
    }
}

fn service(home: &Home, name: &str) -> Result<Process> {
    let program = sibling_binary(name)?;
    let config = home.config().to_str().context("the path of the configuration is not UTF-8")?.to_owned();
    let log = home.log(name)?;
    let process = Launch::new(name, program, log).args(["--config".to_owned(), config]).spawn()?;
    home.note_child(name, process.pid())?;
    Ok(process)
}

/// The binaries are in the same directory as this program.
fn sibling_binary(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name(name);
    if !program.is_file() {
        bail!("{} is missing; run `make build`", program.display());
    }
    Ok(program)
}

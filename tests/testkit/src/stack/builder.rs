//! Configures and starts a stack.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ethers_core::types::U256;
use gapless_cli::commands::migrate::migrate;
use gapless_config::Secret;
use gapless_localnet::{Mining, Settings};
use gapless_store::Contract;
use serde_json::Value;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Mutex;

use super::audit::migrate_by;
use super::{Database, Stack};
use crate::node::Node;
use crate::nodes::{NodeKind, NodeOptions};
use crate::proxy::Proxy;
use crate::recording::Recording;
use crate::servers;
use crate::service::ADMIN_TOKEN;
use crate::submitter::Submitter;

const FIRST_CHAIN_ID: u64 = 31337;
/// In the directory of the stack.
const WEBHOOK_KEYS: &str = "webhook.keys";

#[derive(Debug)]
pub struct StackBuilder {
    program: PathBuf,
    node: NodeKind,
    submitters: usize,
    chains: u64,
    mining: Mining,
    balance: U256,
    proxied: bool,
    own_postgres: bool,
    database_at: Option<String>,
    recording: Option<Recording>,
    migrated_by: Option<PathBuf>,
    node_args: Vec<String>,
    webhooks: bool,
    settings: Settings,
}

impl StackBuilder {
    /// `program` is the path of `gapless-stack`. Defaults for fast tests: a window of 1, one confirmation, a short
    /// lease.
    pub fn new(program: &str) -> StackBuilder {
        let mut settings = Settings::default();
        settings.set("api.admin_token", ADMIN_TOKEN);
        settings.set("lease.duration", "3s");
        settings.set("lease.renew_interval", "700ms");
        settings.set("lease.clock_skew", "200ms");
        settings.set("worker.poll_interval", "200ms");
        settings.set("worker.linger", "500ms");
        settings.set("confirmations.required", 1);
        settings.set("rpc.poll_interval", "50ms");
        settings.set("nonce.max_reservation", "10m");
        settings.set("log.level", "info,gapless=debug,gapless_worker=debug,gapless_api=debug");
        StackBuilder {
            program: program.into(),
            node: NodeKind::Anvil,
            submitters: 1,
            chains: 1,
            mining: Mining::Instant,
            balance: U256::exp10(21),
            proxied: false,
            own_postgres: false,
            database_at: None,
            recording: None,
            migrated_by: None,
            node_args: Vec::new(),
            webhooks: false,
            settings,
        }
    }

    /// Sets a configuration key for every process: `set("resubmit.interval", "1s")`.
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.settings.set(key, value);
        self
    }

    /// Number of submitters.
    pub fn submitters(mut self, count: usize) -> Self {
        self.submitters = count;
        self
    }

    /// `nonce.max_in_flight`.
    pub fn window(self, nonces: u32) -> Self {
        self.set("nonce.max_in_flight", nonces)
    }

    /// `confirmations.required`.
    pub fn confirmations(self, blocks: u64) -> Self {
        self.set("confirmations.required", blocks)
    }

    /// Leases of two seconds, for tests that wait for their expiry.
    pub fn short_lease(self) -> Self {
        self.set("lease.duration", "2s").set("lease.renew_interval", "500ms")
    }

    /// Default: a block for every transaction.
    pub fn mining(mut self, mining: Mining) -> Self {
        self.mining = mining;
        self
    }

    /// Default: anvil.
    pub fn node(mut self, kind: NodeKind) -> Self {
        self.node = kind;
        self
    }

    /// Additional command line arguments of every anvil.
    pub fn anvil_args(mut self, args: &[&str]) -> Self {
        self.node_args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// Initial balance of every submitter in wei. Default: 1,000 ether.
    pub fn balance(mut self, wei: impl Into<U256>) -> Self {
        self.balance = wei.into();
        self
    }

    /// Several chains with the same submitters. Requests then need a `chainId`.
    pub fn chains(mut self, count: u64) -> Self {
        self.chains = count;
        self
    }

    /// Puts a `Proxy` between the workers and the first chain.
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Records events, and delivers them to webhooks also on 127.0.0.1.
    pub fn webhooks(mut self) -> Self {
        self.webhooks = true;
        self.set("events.mode", "mq_outbox").set("events.webhook.allow", vec!["127.0.0.1"])
    }

    /// A separate PostgreSQL, for tests that kill it.
    pub fn own_postgres(mut self) -> Self {
        self.own_postgres = true;
        self
    }

    /// Begins with the recorded rows in the schema that they had, the recorded chain, and its keys.
    pub fn recording(mut self, recording: Recording) -> Self {
        self.recording = Some(recording);
        self
    }

    /// Uses this empty database, which the test provides.
    pub fn database_at(mut self, url: &str) -> Self {
        self.database_at = Some(url.to_owned());
        self
    }

    /// The `gapless-stack` that creates the schema, for example that of the previous release. Default: this version.
    pub fn migrated_by(mut self, program: Option<PathBuf>) -> Self {
        self.migrated_by = program;
        self
    }

    /// Starts database and chains and creates keys; no Gapless process yet.
    pub async fn start(mut self) -> Stack {
        let dir = tempfile::Builder::new().prefix("gapless-stack-").tempdir().unwrap();
        let (database, database_url) = self.database().await;
        match (&self.migrated_by, &self.recording) {
            (None, None) => {
                let url = Secret::new(database_url.as_str());
                migrate(&url, Contract::Later).await.expect("the schema");
            }
            (Some(program), _) => {
                let output = migrate_by(program, &database_url).await;
                assert_eq!(output.code, 0, "{}: {output:?}", program.display());
            }
            (None, Some(recording)) => recording.restore_rows(&database_url).await,
        }
        self.settings.set("database.url", database_url.as_str());
        if self.webhooks {
            let file = dir.path().join(WEBHOOK_KEYS);
            write_webhook_keys(&file, &[&new_webhook_key("k1")]);
            self.settings.set("events.webhook.key_file", file.to_str().expect("a UTF-8 path"));
        }

        let mut nodes = Vec::new();
        for index in 0..self.chains {
            let log = dir.path().join(format!("node-{index}.log"));
            if let Some(recording) = &self.recording {
                recording.restore_chain(&log.with_extension("json"));
            }
            let extra = self.node_args.clone();
            let options = NodeOptions { extra, ..NodeOptions::new(FIRST_CHAIN_ID + index, self.mining) };
            nodes.push(Node::start_as(self.node, options, &log).await);
        }
        for (index, node) in nodes.iter().enumerate() {
            let name = Stack::chain_name(index);
            self.settings.set(&format!("chain.{name}.id"), node.chain_id());
            self.settings.set(&format!("chain.{name}.rpc.urls"), vec![node.url()]);
        }
        // The audit connects to the chain directly, without the proxy of the workers.
        let audit_config = self.settings.write(&dir.path().join("audit.toml")).unwrap();
        let proxy = match self.proxied {
            true => Some(Proxy::start(nodes[0].url()).await),
            false => None,
        };
        if let Some(proxy) = &proxy {
            self.settings.set(&format!("chain.{}.rpc.urls", Stack::chain_name(0)), vec![proxy.url()]);
        }
        let submitters: Vec<Submitter> = match &self.recording {
            Some(recording) => recording.submitters(),
            None => (0..self.submitters).map(|_| Submitter::random()).collect(),
        };
        for node in nodes.iter().filter(|_| self.recording.is_none()) {
            // In parallel, because some tests have thousands.
            for some in submitters.chunks(50) {
                let funding =
                    some.iter().map(|submitter| node.set_balance(submitter.address(), self.balance));
                futures::future::join_all(funding).await;
            }
        }
        let key_names: Vec<String> = (0..submitters.len()).map(Stack::key_name).collect();
        self.settings.set("signer.raw_key_env", key_names);
        let db = PgPoolOptions::new().max_connections(4).connect_lazy(&database_url).expect("a database URL");
        Stack {
            program: self.program,
            settings: self.settings,
            audit_config,
            nodes,
            proxy,
            submitters,
            db,
            database,
            services: Default::default(),
            accepted: Default::default(),
            finished: false,
            dir: Some(dir),
        }
    }

    /// `start`, plus one API and one worker.
    pub async fn up(self) -> Stack {
        let stack = self.start().await;
        stack.start_api().await;
        stack.start_worker().await;
        stack
    }

    async fn database(&self) -> (Database, String) {
        if let Some(url) = &self.database_at {
            return (Database::Given, url.clone());
        }
        if self.own_postgres {
            let server = servers::own_postgres().await;
            let url = servers::create_database(&server).await;
            return (Database::Own(Box::new(Mutex::new(server))), url);
        }
        (Database::Shared, servers::create_database(servers::shared_postgres().await).await)
    }
}

/// A line of `events.webhook.key_file` with a new key.
pub fn new_webhook_key(id: &str) -> String {
    gapless_webhook::new_key_line(id).expect("random numbers").to_string()
}

fn write_webhook_keys(file: &Path, lines: &[&str]) {
    std::fs::write(file, lines.join("\n")).unwrap();
    std::fs::set_permissions(file, PermissionsExt::from_mode(0o600)).unwrap();
}

impl Stack {
    /// The lines of `events.webhook.key_file`.
    pub fn webhook_keys(&self) -> String {
        std::fs::read_to_string(self.dir().join(WEBHOOK_KEYS)).unwrap()
    }

    /// Replaces `events.webhook.key_file`. Processes read it when they start.
    pub fn set_webhook_keys(&self, lines: &[&str]) {
        write_webhook_keys(&self.dir().join(WEBHOOK_KEYS), lines);
    }
}

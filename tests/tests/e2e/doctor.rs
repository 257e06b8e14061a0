//! `gapless doctor`: faults are planted one at a time in a working deployment, and each is named. The control is the
//! same deployment without the fault.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gapless_store::ProgramRole;
use gapless_testkit::{
    Address, Authority, ClockedPostgres, Fault, Mining, Mode, Node, Pooler, Service, Stack, StackBuilder,
    TxState, Unknown, eventually, payload,
};
use serde_json::{Value, json};

use crate::stack;

/// Far more than the timeouts of all checks together.
const RUN_LIMIT: Duration = Duration::from_secs(60);
/// In every URL and file that doctor must not quote.
const SECRET: &str = "hunter2hunter2";

/// A stack with one API and one worker, and the variables that describe it to doctor.
struct Deployment {
    stack: Stack,
    env: Vec<(String, String)>,
    /// Keeps the port of the worker reserved.
    _worker: Service,
}

/// What doctor said.
#[derive(Debug)]
struct Diagnosis {
    code: i32,
    report: Value,
}

impl Diagnosis {
    fn checks(&self) -> &Vec<Value> {
        self.report["checks"].as_array().expect("a list of checks")
    }

    fn with_result(&self, result: &str) -> Vec<&Value> {
        self.checks().iter().filter(|check| check["result"] == result).collect()
    }

    /// The fault is named as a problem, with something to do.
    #[track_caller]
    fn names(&self, area: &str, name: &str, subject: &str) -> &Value {
        let problem = self.with_result("problem").into_iter().find(|check| {
            let is_it = check["area"] == area && check["name"] == name;
            is_it && check["subject"].as_str().is_some_and(|found| found.contains(subject))
        });
        let problem = problem.unwrap_or_else(|| panic!("{area}, {name}, {subject}: {:#}", self.report));
        assert_eq!((self.code, &self.report["sound"]), (1, &json!(false)), "{:#}", self.report);
        assert!(problem["advice"].as_str().is_some_and(|advice| !advice.is_empty()), "{problem:#}");
        problem
    }

    /// And nothing else is a problem.
    #[track_caller]
    fn names_only(&self, area: &str, name: &str, subject: &str) -> &Value {
        let problem = self.names(area, name, subject);
        assert_eq!(self.with_result("problem"), [problem], "{:#}", self.report);
        problem
    }

    #[track_caller]
    fn is_sound(&self) {
        assert_eq!((self.code, &self.report["sound"]), (0, &json!(true)), "{:#}", self.report);
        assert!(self.with_result("problem").is_empty(), "{:#}", self.report);
    }
}

impl Deployment {
    async fn start(builder: StackBuilder) -> Deployment {
        let stack = builder.start().await;
        let api = stack.start_api().await;
        // Directly at the node, so that faults of a proxy are doctor's alone.
        let worker = stack.worker().rpc(&[stack.anvil().url()]).start().await;
        let tx_id = stack.create(stack.submitter(0), "one", &payload(Address::repeat_byte(0x99), 1)).await;
        stack.wait_for(tx_id, TxState::Confirmed).await;
        let host = |url: &str| url.split("://").nth(1).expect("a URL").to_owned();
        let mut deployment = Deployment { stack, env: Vec::new(), _worker: worker };
        deployment.set("GAPLESS__API__BIND", &host(&api.url()));
        deployment.set("GAPLESS__WORKER__METRICS_BIND", &host(deployment._worker.metrics_url()));
        deployment.set("GAPLESS__SIGNER__RAW_KEY_ENV", &format!("[\"{}\"]", Stack::key_name(0)));
        deployment.set(&Stack::key_name(0), &deployment.stack.submitter(0).key_hex());
        deployment
    }

    /// Sets a variable for every later run.
    fn set(&mut self, name: &str, value: &str) {
        self.env.push((name.to_owned(), value.to_owned()));
    }

    async fn doctor(&self) -> Diagnosis {
        self.doctor_with(&[]).await
    }

    /// With variables that plant a fault. Checks that neither form of the report contains a secret.
    async fn doctor_with(&self, fault: &[(&str, &str)]) -> Diagnosis {
        let own = self.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let env: Vec<(&str, &str)> = own.chain(fault.iter().copied()).collect();
        let begun = Instant::now();
        let output = self.stack.cli_with(&env, &["--json", "doctor"]).await;
        assert!(begun.elapsed() < RUN_LIMIT, "{:?}", begun.elapsed());
        let key = self.stack.submitter(0).key_hex();
        for secret in [SECRET, key.as_str()] {
            assert!(!output.stdout.contains(secret) && !output.stderr.contains(secret), "{output:?}");
        }
        let report = serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("no report: {output:?}"));
        Diagnosis { code: output.code, report }
    }

    /// With these nodes.
    async fn doctor_on(&self, urls: &[&str], more: &[(&str, &str)]) -> Diagnosis {
        let urls = json!(urls).to_string();
        self.doctor_with(&[&[("GAPLESS__CHAIN__C0__RPC__URLS", urls.as_str())], more].concat()).await
    }

    /// Ends the test; the audit runs without the variables.
    async fn finish(self) {
        self.stack.finish().await;
    }
}

fn of_node(index: usize) -> String {
    format!("chain c0 node {index}")
}

/// Scenario 99: the control.
#[tokio::test(flavor = "multi_thread")]
async fn a_working_deployment_is_sound_and_the_text_says_so() {
    let deployment = Deployment::start(stack()).await;
    let healthy = deployment.doctor().await;
    healthy.is_sound();
    for area in ["configuration", "database", "nodes", "signers", "submitters", "listeners"] {
        let mut ok = healthy.with_result("ok").into_iter();
        assert!(ok.any(|check| check["area"] == area), "{area}: {:#}", healthy.report);
    }
    // Everything that is checked in a deployment is: what is left out is named.
    let left_out: Vec<&Value> = healthy.with_result("not_checked");
    assert!(left_out.is_empty(), "{left_out:#?}");
    let env: Vec<(&str, &str)> = deployment.env.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let text = deployment.stack.cli_with(&env, &["doctor"]).await;
    assert_eq!(text.code, 0, "{text:?}");
    assert!(text.stdout.starts_with("configuration\n  ok           file: "), "{}", text.stdout);
    assert!(text.stdout.trim_end().lines().last().unwrap().starts_with("0 problems, "), "{}", text.stdout);
    let bad = deployment.stack.cli(&["doctor", "--no-such-option"]).await;
    assert_eq!(bad.code, 2, "{bad:?}");
    deployment.finish().await;
}

/// Scenario 99: nothing is written, neither to the database nor to a chain.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_only_reads() {
    let deployment = Deployment::start(stack().proxied()).await;
    let proxy = deployment.stack.proxy();
    let read_only = format!("{}?options[default_transaction_read_only]=on", deployment.stack.database_url());
    // The control: this URL refuses writes.
    let pool = sqlx::PgPool::connect(&read_only).await.unwrap();
    assert!(sqlx::query("DELETE FROM worker").execute(&pool).await.is_err());
    pool.close().await;
    let found = deployment.doctor_on(&[proxy.url()], &[("DATABASE_URL", &read_only)]).await;
    found.is_sound();
    assert!(found.with_result("not_checked").is_empty(), "{:#}", found.report);
    // Every call is one of these.
    let reads = [
        "eth_blockNumber",
        "eth_chainId",
        "eth_feeHistory",
        "eth_gasPrice",
        "eth_getBalance",
        "eth_getBlockByNumber",
        "eth_getTransactionCount",
        "eth_getTransactionReceipt",
        "eth_syncing",
    ];
    let counted: u64 = reads.into_iter().map(|method| proxy.calls(method)).sum();
    assert!(counted > 0);
    assert_eq!(counted, proxy.all_calls());
    deployment.finish().await;
}

/// Scenario 99.
#[tokio::test(flavor = "multi_thread")]
async fn faults_of_the_configuration_and_the_database_are_named() {
    let deployment = Deployment::start(stack()).await;
    let stack = &deployment.stack;
    let unknown = deployment.doctor_with(&[("GAPLESS__API__BND", SECRET)]).await;
    unknown.names_only("configuration", "file", "audit.toml");
    assert_eq!(unknown.with_result("not_checked").len(), 5, "{:#}", unknown.report);

    let nowhere = format!("postgres://gapless:{SECRET}@127.0.0.1:1/gapless");
    let unreachable = deployment.doctor_with(&[("DATABASE_URL", &nowhere)]).await;
    unreachable.names_only("database", "connection", "127.0.0.1:1/gapless");
    let missing = stack.database_url().rsplit_once('/').unwrap().0.to_owned() + "/no_such_database";
    let missing = deployment.doctor_with(&[("DATABASE_URL", &missing)]).await;
    let advice = missing.names_only("database", "connection", "no_such_database")["advice"].to_string();
    assert!(advice.contains("create the database"), "{advice}");

    let empty = stack.empty_database().await;
    let old = deployment.doctor_with(&[("DATABASE_URL", &empty)]).await;
    let advice = old.names_only("database", "schema", "127.0.0.1")["advice"].to_string();
    assert!(advice.contains("gapless migrate"), "{advice}");

    let pooler = Pooler::start(stack.database_url(), Mode::Transaction, Unknown::Ignored).await;
    let pooled = pooler.url(stack.database_url());
    deployment.doctor_with(&[("DATABASE_URL", &pooled)]).await.names_only("database", "pooler", "127.0.0.1");
    deployment.doctor().await.is_sound();
    deployment.finish().await;
}

/// Scenario 99.
#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_of_the_database_user_are_named() {
    let deployment = Deployment::start(stack()).await;
    let stack = &deployment.stack;
    // The roles of the programs have what they need.
    for role in ProgramRole::ALL {
        let url = stack.database_url_as(role.name());
        deployment.doctor_with(&[("DATABASE_URL", &url)]).await.is_sound();
    }
    // Another database of the server may have created it already.
    stack
        .sql(
            "DO $$ BEGIN CREATE ROLE gapless_test_no_rights; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$",
        )
        .await;
    let no_rights = stack.database_url_as("gapless_test_no_rights");
    let found = deployment.doctor_with(&[("DATABASE_URL", &no_rights)]).await;
    let problem = found.names_only("database", "rights", "127.0.0.1");
    assert!(problem["message"].to_string().contains("gapless_test_no_rights"), "{problem:#}");

    stack.sql("REVOKE INSERT ON managed_tx FROM gapless_api").await;
    let api = stack.database_url_as("gapless_api");
    let found = deployment.doctor_with(&[("DATABASE_URL", &api)]).await;
    let problem = found.names_only("database", "rights", "127.0.0.1");
    assert!(problem["message"].to_string().contains("INSERT on managed_tx"), "{problem:#}");
    assert!(problem["advice"].to_string().contains("gapless_grant_roles"), "{problem:#}");
    stack.sql("SELECT gapless_grant_roles()").await;
    deployment.doctor_with(&[("DATABASE_URL", &api)]).await.is_sound();
    deployment.finish().await;
}

/// The list of rights that doctor checks is the one that migrations grant.
#[tokio::test(flavor = "multi_thread")]
async fn the_checked_rights_are_those_that_migrations_grant() {
    let stack = stack().start().await;
    for role in ProgramRole::ALL {
        let granted: Vec<(String, String)> = sqlx::query_as(
            "SELECT c.relname::TEXT, a.privilege_type
             FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
             WHERE c.relkind IN ('r', 'p') AND a.grantee = $1::regrole
             UNION
             SELECT c.relname::TEXT, a.privilege_type
             FROM pg_class c
             JOIN pg_attribute t ON t.attrelid = c.oid
             CROSS JOIN LATERAL aclexplode(t.attacl) a
             WHERE c.relkind IN ('r', 'p') AND a.grantee = $1::regrole",
        )
        .bind(role.name())
        .fetch_all(stack.db())
        .await
        .unwrap();
        let granted: BTreeSet<(String, String)> = granted.into_iter().collect();
        let checked = role.rights().iter().flat_map(|(table, rights)| {
            rights.iter().map(|right| ((*table).to_owned(), (*right).to_owned()))
        });
        assert_eq!(checked.collect::<BTreeSet<_>>(), granted, "{}", role.name());
    }
    stack.finish().await;
}

/// Scenario 99.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_of_the_database_that_is_off_is_named() {
    let database = ClockedPostgres::start().await;
    let deployment = Deployment::start(stack().database_at(database.url())).await;
    deployment.doctor().await.is_sound();
    database.clock.set(30);
    deployment.doctor().await.names("database", "clock", "127.0.0.1");
    database.clock.set(0);
    eventually("the deployment is sound again", async || {
        let found = deployment.doctor().await;
        if found.code == 0 { Ok(()) } else { Err(found) }
    })
    .await;
    deployment.finish().await;
}

/// Scenario 99.
#[tokio::test(flavor = "multi_thread")]
async fn faults_of_nodes_are_named() {
    let deployment = Deployment::start(stack().proxied()).await;
    let (anvil, proxy) = (deployment.stack.anvil().url(), deployment.stack.proxy());
    deployment.doctor_on(&[proxy.url()], &[]).await.is_sound();

    let closed = format!("http://127.0.0.1:1/v3/{SECRET}");
    let found = deployment.doctor_on(&[anvil, &closed], &[]).await;
    found.names_only("nodes", "reachable", &of_node(1));
    let found = deployment.doctor_with(&[("GAPLESS__CHAIN__C0__ID", "5")]).await;
    found.names_only("nodes", "chain id", &of_node(0));

    let syncing = json!({ "startingBlock": "0x0", "currentBlock": "0x5", "highestBlock": "0x500" });
    let refused = |message: &str| Fault::Error { code: -32601, message: message.into() };
    for (method, fault, name) in [
        ("eth_syncing", Fault::Result(syncing), "syncing"),
        ("eth_syncing", Fault::Close, "syncing"),
        ("eth_feeHistory", refused("the method eth_feeHistory does not exist"), "fees"),
        ("eth_feeHistory", Fault::Result(json!({})), "fees"),
        ("*", Fault::Hang, "reachable"),
        ("*", Fault::Status(401, SECRET.into()), "reachable"),
        ("*", Fault::Html(SECRET.into()), "reachable"),
    ] {
        proxy.always(method, fault.clone());
        let found = deployment.doctor_on(&[anvil, proxy.url()], &[]).await;
        found.names_only("nodes", name, &of_node(1));
        proxy.clear();
    }
    proxy.accept_batches(false);
    let found = deployment.doctor_on(&[anvil, proxy.url()], &[]).await;
    let advice = found.names_only("nodes", "batches", &of_node(1))["advice"].to_string();
    assert!(advice.contains("rpc.max_batch = 1"), "{advice}");
    // As advised.
    let alone = [("GAPLESS__RPC__MAX_BATCH", "1")];
    deployment.doctor_on(&[anvil, proxy.url()], &alone).await.is_sound();
    proxy.accept_batches(true);
    deployment.doctor_on(&[anvil, proxy.url()], &[]).await.is_sound();
    deployment.finish().await;
}

/// Scenario 99.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_lag_forget_or_disagree_are_named() {
    let deployment = Deployment::start(stack().proxied()).await;
    let (node, proxy) = (deployment.stack.anvil(), deployment.stack.proxy());
    // The transaction of the start is in the first block, so that the block ten below the head has one.
    node.mine(9).await;
    let deep = [("GAPLESS__CONFIRMATIONS__REQUIRED", "10")];
    let both = [node.url(), proxy.url()];
    deployment.doctor_on(&both, &deep).await.is_sound();

    proxy.freeze_at(node.head().await - 7);
    deployment.doctor_on(&both, &[]).await.names_only("nodes", "lag", &of_node(1));
    proxy.thaw();

    proxy.keep_states(5);
    deployment.doctor_on(&both, &deep).await.names_only("nodes", "state", &of_node(1));
    deployment.doctor_on(&both, &[("GAPLESS__CONFIRMATIONS__REQUIRED", "3")]).await.is_sound();
    proxy.keep_all_states();

    proxy.show_blocks();
    deployment.doctor_on(&both, &deep).await.names_only("nodes", "transaction lookup", &of_node(1));
    proxy.show_transactions();

    let tagged = [("GAPLESS__CONFIRMATIONS__REQUIRED", "finalized")];
    proxy.always("eth_getBlockByNumber", Fault::Result(Value::Null));
    deployment.doctor_on(&both, &tagged).await.names("nodes", "head", &of_node(1));
    proxy.clear();

    // Another chain with the same id: other blocks, and another block 0 than the one of the database.
    let log = deployment.stack.dir().join("other-node.log");
    let other = Node::start(node.chain_id(), Mining::Instant, &log).await;
    other.mine(node.head().await).await;
    let found = deployment.doctor_on(&[node.url(), other.url()], &[]).await;
    found.names("nodes", "agreement", "chain c0");
    found.names("nodes", "genesis", &of_node(1));
    drop(other);
    deployment.doctor_on(&both, &deep).await.is_sound();
    deployment.finish().await;
}

/// Scenario 99.
#[tokio::test(flavor = "multi_thread")]
async fn faults_of_signers_and_submitters_are_named() {
    let deployment = Deployment::start(stack()).await;
    let stack = &deployment.stack;
    let dir = tempfile::tempdir().unwrap();
    let (keystore, password) = (dir.path().join("keys"), dir.path().join("password"));
    std::fs::write(&password, "correct horse").unwrap();
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let (keystore, password) = (text(&keystore), text(&password));
    let made =
        stack.cli(&["--json", "keys", "new", "--keystore", &keystore, "--password-file", &password]).await;
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    let address: Address = made["address"].as_str().unwrap().parse().unwrap();
    stack.anvil().set_balance(address, 10u64.pow(18)).await;
    let keys = [("GAPLESS__SIGNER__KEYSTORE", &*keystore), ("GAPLESS__SIGNER__PASSWORD_FILE", &*password)];
    deployment.doctor_with(&keys).await.is_sound();
    std::fs::write(&password, SECRET).unwrap();
    let found = deployment.doctor_with(&keys).await;
    let problem = found.names_only("signers", "local key", &keystore);
    assert_eq!(problem["message"], "the password does not decrypt it");
    let found =
        deployment.doctor_with(&[("GAPLESS__SIGNER__RAW_KEY_ENV", "[\"GAPLESS_TEST_NO_KEY\"]")]).await;
    found.names("signers", "local key", "GAPLESS_TEST_NO_KEY");
    found.names("signers", "keys", "signer");
    let lost = |check: &&Value| check["area"] == "signers" && check["name"] == "submitters";
    assert!(found.with_result("warning").iter().any(lost), "its submitter is known: {:#}", found.report);
    let closed = format!("[{{url=\"http://127.0.0.1:1/{SECRET}\"}}]");
    let found = deployment.doctor_with(&[("GAPLESS__SIGNER__HTTP", &closed)]).await;
    found.names_only("signers", "remote signer", "signer.http.0 (http://127.0.0.1:1)");

    let submitter = stack.submitter(0);
    let balance = stack.anvil().balance(submitter.address()).await;
    let low = [("GAPLESS__BALANCE__LOW", &*(balance + 1).to_string())];
    let found = deployment.doctor_with(&low).await;
    found.is_sound();
    let warned =
        |check: &&Value| check["name"] == "funds" && check["subject"].to_string().contains(&submitter.text());
    assert!(found.with_result("warning").iter().any(warned), "{:#}", found.report);
    stack.anvil().set_balance(submitter.address(), 0).await;
    deployment.doctor().await.names_only("submitters", "funds", &submitter.text());
    stack.anvil().set_balance(submitter.address(), balance).await;

    stack.submitter_action(submitter, "pause", "a planted pause").await;
    let found = deployment.doctor().await;
    found.is_sound();
    let paused = |check: &&Value| check["name"] == "state" && check["message"] == "paused: a planted pause";
    assert!(found.with_result("warning").iter().any(paused), "{:#}", found.report);
    stack.submitter_action(submitter, "resume", "done").await;

    // The key is used outside.
    submitter.spend_outside(stack.anvil(), None).await;
    let second = stack.create(submitter, "two", &payload(Address::repeat_byte(0x99), 1)).await;
    let reason = stack.wait_protected(submitter).await;
    let found = deployment.doctor().await;
    let problem = found.names_only("submitters", "state", &submitter.text());
    assert!(problem["message"].as_str().is_some_and(|message| message.contains(&reason)), "{problem:#}");
    stack.submitter_action(submitter, "adopt", "as advised").await;
    stack.wait_for(second, TxState::Confirmed).await;
    deployment.doctor().await.is_sound();
    deployment.finish().await;
}

/// Scenario 99.
#[tokio::test(flavor = "multi_thread")]
async fn faults_of_listeners_and_certificates_are_named() {
    let deployment = Deployment::start(stack()).await;
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "authority");
    // The node answers there, in HTTP, and is not the API.
    let taken = deployment.stack.anvil().url().split("://").nth(1).unwrap().to_owned();
    let found = deployment.doctor_with(&[("GAPLESS__API__BIND", &taken)]).await;
    found.names_only("listeners", "port", "api.bind");
    let found = deployment.doctor_with(&[("GAPLESS__WORKER__METRICS_BIND", &taken)]).await;
    found.names_only("listeners", "port", "worker.metrics_bind");
    // Other machines can connect, first without and then with an API key.
    let open = deployment.env[0].1.replace("127.0.0.1", "0.0.0.0");
    let open = [("GAPLESS__API__BIND", open.as_str())];
    deployment.doctor_with(&open).await.names_only("listeners", "api keys", "api.bind");
    deployment.stack.api_key(&[]).await;
    deployment.doctor_with(&open).await.is_sound();
    // Not an address of this machine.
    let elsewhere = [("GAPLESS__API__BIND", "192.0.2.1:8080")];
    deployment.doctor_with(&elsewhere).await.names_only("listeners", "port", "api.bind");

    // An API with a certificate of its own.
    let (cert, key) = authority.issue(&["localhost"]).write(dir.path(), "valid");
    let api = deployment.stack.api().set("api.tls.cert", cert.as_str()).set("api.tls.key", key.as_str());
    let bind = api.start().await.url().split("://").nth(1).unwrap().to_owned();
    let with = |cert: &str, key: &str| {
        [("GAPLESS__API__TLS__CERT", cert), ("GAPLESS__API__TLS__KEY", key), ("GAPLESS__API__BIND", &bind)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    for (name, identity, is_valid) in [
        ("valid", authority.issue(&["localhost"]), true),
        ("expired", authority.issue_expired(&["localhost"]), false),
    ] {
        let (cert, key) = identity.write(dir.path(), name);
        let env = with(&cert, &key);
        let env: Vec<(&str, &str)> = env.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let found = deployment.doctor_with(&env).await;
        match is_valid {
            true => found.is_sound(),
            false => {
                let problem = found.names_only("listeners", "certificate", &cert);
                assert!(problem["message"].to_string().contains("expired on 2020-01-01"), "{problem:#}");
            }
        }
    }
    let (_, other_key) = authority.issue(&["localhost"]).write(dir.path(), "other");
    let env = with(&cert, &other_key);
    let env: Vec<(&str, &str)> = env.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    deployment.doctor_with(&env).await.names_only("listeners", "certificate", &cert);
    deployment.finish().await;
}

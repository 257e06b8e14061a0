//! A PostgreSQL with authentication: password authentication, optionally over TLS, and client certificates for one
//! role. Only the harness connects as the owner without a password.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use gapless_localnet::Postgres;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::authority::Identity;
use crate::eventually::eventually;
use crate::servers;

/// The role of the product, with a password.
const USER: &str = "service";
/// The role that authenticates with a client certificate.
pub const CERTIFIED: &str = "certified";

#[derive(Debug)]
pub struct TlsPostgres {
    server: Postgres,
    url: String,
    password: String,
}

impl TlsPostgres {
    pub async fn start(password: &str) -> TlsPostgres {
        let server = servers::own_postgres().await;
        let url = servers::create_database(&server).await;
        let postgres = TlsPostgres { server, url, password: password.to_owned() };
        postgres.run(&format!("CREATE ROLE {USER} SUPERUSER LOGIN PASSWORD '{password}'")).await;
        postgres.run(&format!("CREATE ROLE {CERTIFIED} SUPERUSER LOGIN")).await;
        postgres.set_hba(&["host all service 127.0.0.1/32 scram-sha-256"]).await;
        postgres
    }

    /// Requires TLS from now on, with this server certificate. `clients`: CA certificates of client certificates.
    pub async fn secure(&self, identity: &Identity, clients: &str) {
        self.certify(identity).await;
        self.write("clients.crt", clients);
        self.run("ALTER SYSTEM SET ssl_ca_file = 'clients.crt'").await;
        self.run("ALTER SYSTEM SET ssl = on").await;
        let lines =
            ["hostssl all service 127.0.0.1/32 scram-sha-256", "hostssl all certified 127.0.0.1/32 cert"];
        self.set_hba(&lines).await;
        eventually("the server has TLS enabled", async || {
            let on: String = self.ask("SHOW ssl").await;
            if on == "on" { Ok(()) } else { Err(on) }
        })
        .await;
    }

    /// Replaces the server certificate for new connections.
    pub async fn certify(&self, identity: &Identity) {
        self.write("server.crt", &identity.certificate);
        self.write("server.key", &identity.key);
        self.reload().await;
    }

    /// URL of the owner, without password and TLS.
    pub fn owner_url(&self) -> &str {
        &self.url
    }

    /// URL of the product's role, with this host name.
    pub fn url(&self, host: &str, rest: &str) -> String {
        self.url_as(&format!("{USER}:{}", self.password), host, rest)
    }

    pub fn url_as(&self, user: &str, host: &str, rest: &str) -> String {
        let (_, path) = self.url.rsplit_once('@').expect("a user");
        let (_, path) = path.split_once(':').expect("a port");
        format!("postgres://{user}@{host}:{path}?{rest}")
    }

    pub async fn restart(&mut self) {
        self.server.restart().await.expect("PostgreSQL starts again");
    }

    pub fn kill9(&mut self) {
        self.server.kill9();
    }

    /// Writes `pg_hba.conf` with these lines and reloads.
    async fn set_hba(&self, lines: &[&str]) {
        let owner = "host all gapless 127.0.0.1/32 trust";
        self.write("pg_hba.conf", &format!("{owner}\n{}\n", lines.join("\n")));
        self.reload().await;
    }

    /// Reloads the configuration and waits until `pg_conf_load_time` changes.
    async fn reload(&self) {
        let loaded: String = self.ask("SELECT pg_conf_load_time()::TEXT").await;
        self.ask::<bool>("SELECT pg_reload_conf()").await;
        eventually("the configuration is reloaded", async || {
            let now: String = self.ask("SELECT pg_conf_load_time()::TEXT").await;
            if now == loaded { Err(now) } else { Ok(()) }
        })
        .await;
    }

    /// Writes a file into the data directory, with the owner and mode the server requires.
    fn write(&self, name: &str, text: &str) {
        let dir = self.server.data_dir();
        let (path, owner) = (dir.join(name), std::fs::metadata(dir).unwrap());
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }

    async fn run(&self, statement: &str) {
        let mut connection = PgConnection::connect(&self.url).await.expect("the server answers");
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(&mut connection)
            .await
            .expect("the statement succeeds");
    }

    async fn ask<T>(&self, question: &'static str) -> T
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
    {
        let mut connection = PgConnection::connect(&self.url).await.expect("the server answers");
        sqlx::query_scalar(question).fetch_one(&mut connection).await.expect("an answer")
    }
}

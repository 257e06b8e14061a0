//! The rows and the chain of a stack, recorded to files: what a database of an earlier release contains.

use std::path::{Path, PathBuf};

use gapless_config::Secret;
use gapless_store::{Contract, Migrations, Store, Timeouts};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::stack::Stack;
use crate::submitter::Submitter;

/// The recorded rows and keys. The chain is a file beside it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Recording {
    /// The newest migration of the recorded database.
    pub schema: i64,
    /// Made for the recording; they are used nowhere else.
    keys: Vec<String>,
    /// Rows by table, as JSON objects.
    rows: Map<String, Value>,
    #[serde(skip)]
    dir: PathBuf,
}

const ROWS: &str = "rows.json";
const CHAIN: &str = "chain.json";

impl Recording {
    pub fn read(dir: &Path) -> Recording {
        let path = dir.join(ROWS);
        let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let recording: Recording = serde_json::from_slice(&text).expect("a recording");
        Recording { dir: dir.to_owned(), ..recording }
    }

    /// Rows of one table.
    pub fn rows(&self, table: &str) -> Vec<Value> {
        self.rows.get(table).and_then(Value::as_array).cloned().unwrap_or_default()
    }

    pub(crate) fn submitters(&self) -> Vec<Submitter> {
        self.keys.iter().map(|key| Submitter::from_hex(key)).collect()
    }

    /// Copies the chain to where a new anvil reads its state.
    pub(crate) fn restore_chain(&self, state: &Path) {
        std::fs::copy(self.dir.join(CHAIN), state).expect("the recorded chain");
    }

    /// Makes the schema of that release and inserts the rows as they were: guards and foreign keys have checked them
    /// before.
    pub(crate) async fn restore_rows(&self, url: &str) {
        let store = Store::new(&Secret::new(url), "recording", 1, Timeouts::default()).unwrap();
        let schema = Migrations::embedded().up_to(self.schema);
        store.migrate_with(&schema, Contract::Later).await.expect("the schema");
        store.close().await;
        let mut connection = PgConnection::connect(url).await.unwrap();
        run(&mut connection, "SET session_replication_role = replica").await;
        for (table, rows) in &self.rows {
            let columns: String = sqlx::query_scalar(
                "SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns
                 WHERE table_schema = current_schema() AND table_name = $1 AND is_generated = 'NEVER'",
            )
            .bind(table)
            .fetch_one(&mut connection)
            .await
            .unwrap();
            // A migration may have inserted rows.
            let empty = format!("DELETE FROM {table}");
            sqlx::query(AssertSqlSafe(empty)).execute(&mut connection).await.unwrap();
            let insert = format!(
                "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE
                 SELECT {columns} FROM jsonb_populate_recordset(NULL::{table}, $1)"
            );
            let inserted = sqlx::query(AssertSqlSafe(insert)).bind(rows).execute(&mut connection).await;
            inserted.unwrap_or_else(|error| panic!("{table}: {error}"));
        }
        run(&mut connection, "SET session_replication_role = origin").await;
        // New rows must have numbers of their own.
        run(
            &mut connection,
            "DO $$ DECLARE c RECORD; BEGIN
                FOR c IN SELECT table_name, column_name FROM information_schema.columns
                         WHERE table_schema = current_schema() AND is_identity = 'YES' LOOP
                    EXECUTE format('SELECT setval(pg_get_serial_sequence(%L, %L), coalesce(max(%I), 0) + 1, FALSE) FROM %I',
                                   c.table_name, c.column_name, c.column_name, c.table_name);
                END LOOP;
            END $$",
        )
        .await;
        connection.close().await.unwrap();
    }
}

async fn run(connection: &mut PgConnection, statement: &'static str) {
    sqlx::raw_sql(statement).execute(connection).await.unwrap();
}

impl Stack {
    /// Kills every process and writes rows, keys and the first chain to `dir`.
    pub async fn record(&self, dir: &Path) {
        self.services().iter().for_each(|service| service.kill9());
        let tables: Vec<String> = sqlx::query_scalar(
            "SELECT table_name::TEXT FROM information_schema.tables
             WHERE table_schema = current_schema() AND table_type = 'BASE TABLE' AND table_name <> '_sqlx_migrations'
             ORDER BY 1",
        )
        .fetch_all(self.db())
        .await
        .unwrap();
        let mut rows = Map::new();
        for table in tables {
            let all = format!("SELECT coalesce(json_agg(t), '[]') FROM {table} t");
            let all: Value = sqlx::query_scalar(AssertSqlSafe(all)).fetch_one(self.db()).await.unwrap();
            if all != Value::Array(Vec::new()) {
                rows.insert(table, all);
            }
        }
        let schema: i64 = sqlx::query_scalar("SELECT max(version) FROM _sqlx_migrations")
            .fetch_one(self.db())
            .await
            .unwrap();
        let keys = self.submitters().iter().map(Submitter::key_hex).collect();
        let recording = Recording { schema, keys, rows, dir: dir.to_owned() };
        std::fs::create_dir_all(dir).unwrap();
        let text = serde_json::to_string_pretty(&recording).unwrap();
        std::fs::write(dir.join(ROWS), text + "\n").unwrap();
        // It writes its state when it stops.
        self.anvil().restart().await;
        std::fs::copy(self.anvil().state_file(), dir.join(CHAIN)).unwrap();
    }
}

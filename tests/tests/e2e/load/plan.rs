//! Execution plans of the store's statements: scans, and touched rows of `managed_tx`. Counted by EXPLAIN ANALYZE, so
//! that the load of the machine does not matter.

use gapless_testkit::Stack;
use serde_json::Value;
use sqlx::AssertSqlSafe;

/// Sources of the statements that search and claim work, and that check the queue limit.
const SOURCES: [&str; 5] = [
    include_str!("../../../../shared/store/src/fleet.rs"),
    include_str!("../../../../shared/store/src/intake.rs"),
    include_str!("../../../../shared/store/src/lease.rs"),
    include_str!("../../../../shared/store/src/load.rs"),
    include_str!("../../../../shared/store/src/queue.rs"),
];

/// The SQL that starts with the name of its function.
fn statement(name: &str) -> &'static str {
    let opening = format!("\"-- {name}\n");
    let source = SOURCES.iter().find_map(|source| source.split_once(opening.as_str()));
    let (_, rest) = source.unwrap_or_else(|| panic!("the store has no statement `{name}`"));
    rest.split('"').next().expect("a statement ends")
}

/// Touched rows, of `managed_tx` unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Touched {
    pub(super) rows: u64,
    /// Scans of the whole table.
    pub(super) whole: u64,
    /// Rows of `submitter`.
    pub(super) submitters: u64,
}

/// Runs a statement of the store and rolls it back. `args` are SQL literals. Twice: with a custom plan, and with the
/// generic plan that a session uses after a few runs. Returns the worse.
pub(super) async fn touched(stack: &Stack, name: &str, args: &str) -> Touched {
    touched_with(stack, statement(name), args).await
}

/// The same for the text of a statement.
pub(super) async fn touched_with(stack: &Stack, sql: &str, args: &str) -> Touched {
    let mut worst = Touched::default();
    for mode in ["force_custom_plan", "force_generic_plan"] {
        let found = explained(stack, sql, args, mode).await;
        worst = Touched {
            rows: worst.rows.max(found.rows),
            whole: worst.whole.max(found.whole),
            submitters: worst.submitters.max(found.submitters),
        };
    }
    worst
}

/// The same for a statement of the test.
pub(super) async fn touched_by(stack: &Stack, sql: &str) -> Touched {
    explained(stack, sql, "", "auto").await
}

async fn explained(stack: &Stack, sql: &str, args: &str, mode: &str) -> Touched {
    let mut tx = stack.db().begin().await.unwrap();
    let prepare = format!("SET LOCAL plan_cache_mode = {mode}; PREPARE looked_at AS {sql}");
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *tx).await.unwrap();
    let call = if args.is_empty() { String::new() } else { format!("({args})") };
    let explain = format!("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE looked_at{call}");
    let plan: Value =
        sqlx::query_scalar(AssertSqlSafe(explain)).persistent(false).fetch_one(&mut *tx).await.unwrap();
    sqlx::raw_sql("DEALLOCATE looked_at").execute(&mut *tx).await.unwrap();
    tx.rollback().await.unwrap();
    let mut touched = Touched::default();
    add(&plan[0]["Plan"], &mut touched);
    touched
}

fn add(node: &Value, touched: &mut Touched) {
    let number = |name: &str| node[name].as_f64().unwrap_or(0.0);
    if node["Node Type"] != "ModifyTable" && number("Actual Loops") > 0.0 {
        let each = number("Actual Rows")
            + number("Rows Removed by Filter")
            + number("Rows Removed by Index Recheck");
        // The server rounds per loop: a loop that finds one row in three shows none.
        let rows = (each * number("Actual Loops")).ceil() as u64;
        match node["Relation Name"].as_str() {
            Some("managed_tx") => {
                touched.rows += rows;
                touched.whole += u64::from(node["Node Type"] == "Seq Scan");
            }
            Some("submitter") => touched.submitters += rows,
            _ => {}
        }
    }
    for child in node["Plans"].as_array().into_iter().flatten() {
        add(child, touched);
    }
}

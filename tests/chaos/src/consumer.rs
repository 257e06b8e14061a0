//! A consumer of the event stream, as the documentation tells one to be: it reads from any API, and after a disconnect it
//! goes on with its cursor at another one. It does not deduplicate: the checker does.

use std::time::{Duration, Instant};

use gapless_testkit::{EventStream, Stack};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::ChaosRun;
use super::checker::{Consumer, ReceivedEvent};
use super::options::ConsumerCursor;

/// A stream without an event for this long is opened again, at another API.
const QUIET: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(100);
/// Time to read the rest after everything is final.
const REST: Duration = Duration::from_secs(60);

/// Follows the events until the run is over and every event is read.
pub(crate) async fn follow(run: &ChaosRun) -> Consumer {
    match run.options.consumer {
        ConsumerCursor::Position => follow_stream(run).await,
        ConsumerCursor::OutboxId => follow_outbox(run).await,
    }
}

/// Keeps a copy of the outbox for `follow_outbox`. Some inserts take a little longer, as on a busy disk.
pub(crate) async fn copy_outbox(stack: &Stack) {
    let statements = "
        CREATE TABLE outbox_copy (event_id BIGINT PRIMARY KEY, id UUID NOT NULL, kind TEXT NOT NULL);
        CREATE FUNCTION copy_outbox() RETURNS TRIGGER LANGUAGE plpgsql SECURITY DEFINER AS $$
        BEGIN
            INSERT INTO outbox_copy VALUES (NEW.event_id, NEW.id, NEW.kind);
            IF random() < 0.2 THEN PERFORM pg_sleep(0.003); END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER copy_outbox AFTER INSERT ON outbox_event FOR EACH ROW EXECUTE FUNCTION copy_outbox();";
    sqlx::raw_sql(statements).execute(stack.db()).await.expect("the copy can be made");
}

/// The negative control: reads rows with a higher id than the last one.
async fn follow_outbox(run: &ChaosRun) -> Consumer {
    let (mut received, mut last) = (Consumer::new("stream"), 0_i64);
    let query = "SELECT event_id, id::TEXT, kind FROM outbox_copy WHERE event_id > $1 ORDER BY event_id";
    loop {
        let is_over = run.abandon.is_cancelled();
        let rows: Result<Vec<(i64, String, String)>, _> =
            sqlx::query_as(query).bind(last).fetch_all(run.stack.db()).await;
        for (event_id, id, kind) in rows.unwrap_or_default() {
            last = event_id;
            received.received.push(ReceivedEvent { id, kind, sequence: event_id, content: String::new() });
        }
        if is_over {
            return received;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn follow_stream(run: &ChaosRun) -> Consumer {
    let (mut received, mut cursor) = (Consumer::new("stream"), "start".to_owned());
    let mut rng = StdRng::seed_from_u64(run.options.seed ^ 0xe7e7);
    let mut over: Option<Instant> = None;
    loop {
        if run.abandon.is_cancelled() {
            let since = *over.get_or_insert_with(Instant::now);
            if is_all(run, &cursor).await || since.elapsed() > REST {
                return received;
            }
        }
        let api = &run.apis[rng.random_range(0..run.apis.len())];
        let opened = tokio::time::timeout(QUIET, EventStream::connect(&api.url(), &cursor)).await;
        let Ok(Ok(mut stream)) = opened else {
            tokio::time::sleep(RETRY).await;
            continue;
        };
        // Sometimes it ends by itself, so that resuming is tried often.
        let limit = rng.random_range(1..200);
        for _ in 0..limit {
            let Some(message) = stream.next_within(QUIET).await else { break };
            cursor.clone_from(&message.id);
            if message.event == "reset" {
                received.resets += 1;
                continue;
            }
            let text = |name: &str| message.data[name].as_str().unwrap_or_default().to_owned();
            received.received.push(ReceivedEvent {
                id: text("id"),
                kind: text("type"),
                sequence: text("sequence").parse().expect("a number"),
                content: message.data.to_string(),
            });
        }
    }
}

/// Whether the cursor is at the end of the log and nothing waits for its position.
async fn is_all(run: &ChaosRun, cursor: &str) -> bool {
    let position = cursor.split('.').nth(1).and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
    let query = "SELECT gapless_event_position(), (SELECT count(*) FROM outbox_event)";
    let state: Option<(i64, i64)> = sqlx::query_as(query).fetch_one(run.stack.db()).await.ok();
    state.is_some_and(|(head, left)| head == position && left == 0)
}

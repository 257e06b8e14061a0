//! A log line in JSON: the fields of the event and of its spans, all at the top level, so that one query finds all
//! lines of a submitter.
//!
//! The formatter of `tracing-subscriber` writes the event; it would nest the fields of spans. The crate `json-subscriber`
//! would repeat a key that both event and span have.

use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Json, JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

#[derive(Debug)]
pub(super) struct JsonLine {
    event: Format<Json>,
}

impl JsonLine {
    pub(super) fn new() -> JsonLine {
        let event = Format::default().json().flatten_event(true);
        JsonLine { event: event.with_current_span(false).with_span_list(false) }
    }
}

impl<S> FormatEvent<S, JsonFields> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.event.format_event(context, Writer::new(&mut line), event)?;
        line.truncate(line.trim_end().len() - 1);
        let own = event.metadata().fields();
        let mut written: Vec<String> = Vec::new();
        // The innermost span first: its value counts.
        for span in context.event_scope().into_iter().flatten() {
            let extensions = span.extensions();
            let Some(fields) = extensions.get::<FormattedFields<JsonFields>>() else { continue };
            let fields: Map<String, Value> = serde_json::from_str(fields).unwrap_or_default();
            for (key, value) in fields {
                if own.field(&key).is_none() && !written.contains(&key) {
                    write!(line, ",{}:{value}", Value::from(key.as_str()))?;
                    written.push(key);
                }
            }
        }
        writeln!(writer, "{line}}}")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What `log` writes.
    fn logged(log: impl FnOnce()) -> Vec<String> {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer()
            .fmt_fields(JsonFields::new())
            .event_format(JsonLine::new())
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        let text = String::from_utf8(lines.0.lock().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn parsed(line: &str) -> Map<String, Value> {
        serde_json::from_str(line).expect(line)
    }

    #[test]
    fn fields_of_spans_are_at_the_top_level_and_no_key_is_repeated() {
        let lines = logged(|| {
            let lane = tracing::error_span!("lane", chain.id = 1, submitter = "0x\"1");
            let _lane = lane.entered();
            let _step = tracing::error_span!("step", submitter = "0x2").entered();
            tracing::info!(chain.id = 7, "first");
            tracing::info!("second");
        });
        let (first, second) = (parsed(&lines[0]), parsed(&lines[1]));
        assert_eq!((&first["chain.id"], &first["submitter"]), (&7.into(), &"0x2".into()), "{lines:?}");
        assert_eq!((&second["chain.id"], &second["message"]), (&1.into(), &"second".into()), "{lines:?}");
        for line in &lines {
            assert_eq!(line.matches("\"chain.id\"").count(), 1, "{line}");
            assert_eq!(line.matches("\"submitter\"").count(), 1, "{line}");
        }
    }

    #[test]
    fn an_event_without_spans_is_one_object() {
        let lines = logged(|| tracing::info!(value = "}", "alone"));
        let line = parsed(&lines[0]);
        assert_eq!((&line["value"], &line["level"]), (&"}".into(), &"INFO".into()));
    }
}

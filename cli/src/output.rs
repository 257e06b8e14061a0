//! All output: data goes to standard output, messages go to standard error.
//!
//! Write errors such as a closed pipe (`gapless submitters | head -1`) are ignored.

use std::io::Write;

use serde_json::{Map, Value};

/// One line of data.
pub fn line(text: impl AsRef<str>) {
    let _ = try_line(text);
}

/// One line of data of an endless command, which ends when nobody reads it any more.
pub fn try_line(text: impl AsRef<str>) -> std::io::Result<()> {
    writeln!(std::io::stdout().lock(), "{}", text.as_ref())
}

/// One JSON document on one line, so that a stream of documents can be read line by line.
pub fn json(value: &Value) {
    line(value.to_string());
}

/// A progress or warning message.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// A table; each column is as wide as its widest cell.
pub fn table(head: &[&str], rows: &[Vec<String>]) {
    for text in format_table(head, rows) {
        line(text);
    }
}

fn format_table(head: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let lines = || std::iter::once(&head).chain(rows);
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            lines().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    lines()
        .map(|row| {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
            cells.join("  ").trim_end().to_owned()
        })
        .collect()
}

/// One line for each field that is not null, in the given order; fields that it does not name come last. Nested values
/// are shown as JSON.
pub fn fields(order: &[&str], fields: &Map<String, Value>) {
    let width = fields.keys().map(String::len).max().unwrap_or(0);
    for (name, value) in in_order(order, fields) {
        line(format!("{name:width$}  {}", cell(value)));
    }
}

fn in_order<'a>(order: &[&str], fields: &'a Map<String, Value>) -> Vec<(&'a str, &'a Value)> {
    let listed = order.iter().filter_map(|name| fields.get_key_value(*name));
    let others = fields.iter().filter(|(name, _)| !order.contains(&name.as_str()));
    let all = listed.chain(others).filter(|(_, value)| !value.is_null());
    all.map(|(name, value)| (name.as_str(), value)).collect()
}

/// A JSON value as text: strings without quotes, null as a dash.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["1".into(), "ACTIVE".into()], vec!["31337".into(), "-".into()]];
        let lines = format_table(&["CHAIN", "STATUS"], &rows);
        assert_eq!(lines, ["CHAIN  STATUS", "1      ACTIVE", "31337  -"]);
    }

    #[test]
    fn fields_are_shown_in_the_given_order_and_others_last() {
        let answer = json!({ "chainId": 1, "newField": 5, "receipt": null, "state": "QUEUED" });
        let fields = in_order(&["state", "receipt", "chainId"], answer.as_object().unwrap());
        let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["state", "chainId", "newField"]);
    }
}

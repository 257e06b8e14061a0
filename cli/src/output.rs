//! All output: data goes to standard output, messages go to standard error.
//!
//! Write errors such as a closed pipe (`gapless submitters | head -1`) are ignored.

use std::io::Write;

use serde_json::Value;

/// One line of data.
pub fn line(text: impl AsRef<str>) {
    let _ = writeln!(std::io::stdout().lock(), "{}", text.as_ref());
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
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["1".into(), "ACTIVE".into()], vec!["31337".into(), "-".into()]];
        let lines = format_table(&["CHAIN", "STATUS"], &rows);
        assert_eq!(lines, ["CHAIN  STATUS", "1      ACTIVE", "31337  -"]);
    }
}

//! The one place that writes for people and programs: data to standard output, remarks to standard error.
//!
//! A reader that went away (`gapless submitters | head -1`) is no error.

use std::io::Write;

use serde_json::Value;

/// One line of data.
pub fn line(text: impl AsRef<str>) {
    let _ = writeln!(std::io::stdout().lock(), "{}", text.as_ref());
}

/// One document, on one line so that a stream of them can be read line by line.
pub fn json(value: &Value) {
    line(value.to_string());
}

/// A remark about what is going on.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Columns as wide as their widest cell.
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

/// A field as a person reads it: strings without quotes, nothing as a dash.
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

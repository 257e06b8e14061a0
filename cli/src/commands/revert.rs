//! Formats revert data as text.

use serde_json::Value;

use crate::output;

/// One line for the error and one for each argument; empty if there was no revert. Contracts control these texts, so
/// control characters are removed.
pub fn lines(revert: &Value) -> Vec<String> {
    let Some(kind) = revert["kind"].as_str() else { return Vec::new() };
    let shown = |field: &str| plain(&output::cell(&revert[field]));
    let what = match kind {
        "error" => format!("reverted with reason: {}", shown("reason")),
        "panic" => format!("panicked: {} ({})", shown("reason"), shown("panicCode")),
        "custom" => format!("reverted with {}", shown("signature")),
        "empty" => "reverted without data".to_owned(),
        _ => format!("reverted with unrecognised data: {}", shown("data")),
    };
    let arguments = revert["arguments"].as_array().map(Vec::as_slice).unwrap_or_default();
    let width = arguments.iter().filter_map(|argument| argument["name"].as_str()).map(str::len).max();
    let argument = |argument: &Value| {
        let name = plain(argument["name"].as_str().unwrap_or_default());
        let value = plain(&output::cell(&argument["value"]));
        format!("            {name:width$}  {value}", width = width.unwrap_or_default())
    };
    let first = format!("          {what}");
    std::iter::once(first).chain(arguments.iter().map(argument)).collect()
}

fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_reads_as_a_sentence() {
        for (revert, expected) in [
            (
                json!({"kind": "error", "reason": "not\u{1b}[31m the owner", "data": "0x08"}),
                "reason: not [31m the owner",
            ),
            (
                json!({"kind": "panic", "reason": "division by zero", "panicCode": "0x12"}),
                "panicked: division by zero (0x12)",
            ),
            (json!({"kind": "empty", "data": "0x"}), "without data"),
            (json!({"kind": "unknown", "data": "0xdead"}), "0xdead"),
        ] {
            let lines = lines(&revert);
            assert!(lines.len() == 1 && lines[0].ends_with(expected), "{lines:?}");
        }
        assert!(lines(&Value::Null).is_empty());
    }

    #[test]
    fn arguments_stand_below_one_another() {
        let arguments = json!([
            {"name": "available", "type": "uint256", "value": "7"},
            {"name": "who", "type": "string", "value": "a\nb"},
            {"name": "", "type": "bool[]", "value": [true]},
        ]);
        let revert =
            json!({"kind": "custom", "signature": "Short(uint256,string,bool[])", "arguments": arguments});
        let lines: Vec<String> = lines(&revert).iter().map(|line| line.trim_start().to_owned()).collect();
        assert_eq!(
            lines,
            ["reverted with Short(uint256,string,bool[])", "available  7", "who        a b", "[true]"]
        );
    }
}

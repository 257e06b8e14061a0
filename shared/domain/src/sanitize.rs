//! Sanitizes text from nodes, signers and contracts for the database, logs and terminals.

/// Longer text is truncated; a revert reason can be arbitrarily long.
pub const MAX_CHARS: usize = 2_000;

/// Replaces control characters (PostgreSQL rejects NUL, terminals interpret others) and truncates to `MAX_CHARS`.
pub fn storable(text: &str) -> String {
    let mut clean: String =
        text.chars().take(MAX_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        clean.push('…');
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_truncated() {
        let text = storable(&"é".repeat(MAX_CHARS + 1));
        assert_eq!(text.chars().count(), MAX_CHARS + 1);
        assert!(text.ends_with('…'));
    }

    #[test]
    fn control_characters_become_spaces() {
        assert_eq!(storable("a\0b\u{1b}[31m\u{9b}c"), "a b [31m c");
    }
}

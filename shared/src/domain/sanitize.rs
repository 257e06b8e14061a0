//! Text that others wrote (nodes, signers, contracts), as a database, a log and a terminal can hold it.

/// A revert reason can be as long as a block is large.
pub const MAX_CHARS: usize = 2_000;

/// No control characters (PostgreSQL refuses NUL, a terminal obeys others), and not endless.
pub fn storable(text: &str) -> String {
    let mut kept: String =
        text.chars().take(MAX_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_text_is_cut() {
        let text = storable(&"é".repeat(MAX_CHARS + 1));
        assert_eq!(text.chars().count(), MAX_CHARS + 1);
        assert!(text.ends_with('…'));
    }

    #[test]
    fn control_characters_are_blanks() {
        assert_eq!(storable("a\0b\u{1b}[31m\u{9b}c"), "a b [31m c");
    }
}

//! Texts for clients, who must not see nonces.

/// Removes nonces from a message, because clients must not see them. If the text contains "nonce" or "sequence", every
/// decimal number is replaced by `…`. Words that only contain digits, such as hashes, stay.
pub fn redact_nonces(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    if !lower.contains("nonce") && !lower.contains("sequence") {
        return text.to_owned();
    }
    // A hyphen is part of a word, so that a UUID stays whole even if a group has only digits.
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let mut redacted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_word(c) != is_word(first)).unwrap_or(rest.len());
        let (run, tail) = rest.split_at(end);
        redacted.push_str(if run.bytes().all(|byte| byte.is_ascii_digit()) { "…" } else { run });
        rest = tail;
    }
    redacted
}

#[cfg(test)]
mod tests {
    use super::redact_nonces;

    #[test]
    fn numbers_are_redacted_in_texts_about_nonces() {
        assert_eq!(
            redact_nonces("nonce too low: next nonce 5, tx nonce 4"),
            "nonce too low: next nonce …, tx nonce …"
        );
        assert_eq!(redact_nonces("Nonce 7 taken by 0x12ab"), "Nonce … taken by 0x12ab");
        assert_eq!(
            redact_nonces("nonce: address 0xab, tx: 12 state:13"),
            "nonce: address 0xab, tx: … state:…"
        );
        assert_eq!(
            redact_nonces("the chain counts 8 transactions, this sequence explains 7"),
            "the chain counts … transactions, this sequence explains …"
        );
        assert_eq!(redact_nonces("needs 5 wei"), "needs 5 wei");
    }
}

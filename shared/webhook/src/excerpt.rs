//! Texts of receivers, shortened for messages.

use url::form_urlencoded;

use crate::target::TargetUrl;

/// Enough for the first sentence of an error.
const MAX_CHARS: usize = 200;
/// Shorter texts cannot be tokens, and other texts contain them by chance.
const MIN_TOKEN_BYTES: usize = 4;
/// A path segment of this length may be a token, also when the body repeats only the segment.
const MIN_SEGMENT_BYTES: usize = 16;

/// The body as one line. `None` if it is empty, or if it repeats a part of the URL that may be a token: error pages often
/// contain the path and the query of the request.
pub(crate) fn excerpt(target: &TargetUrl, body: &[u8]) -> Option<String> {
    let body = String::from_utf8_lossy(body);
    let repeats_token = may_be_tokens(target).iter().any(|part| body.contains(part));
    (!repeats_token).then(|| one_line(&body)).filter(|line| !line.is_empty())
}

/// The beginning of a text that others wrote, as one line of letters, digits and ASCII punctuation.
pub(crate) fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let line = words.map(printable).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Other characters can hide or reorder the text around them.
fn printable(word: &str) -> String {
    word.chars().map(|c| if c.is_alphanumeric() || c.is_ascii_graphic() { c } else { '?' }).collect()
}

/// The path, long segments of it, and the values of the query, as they are written and decoded.
///
/// The first characters count: the rest may be missing because only the beginning of the body was read.
fn may_be_tokens(target: &TargetUrl) -> Vec<String> {
    let url = target.url();
    let mut parts: Vec<String> = vec![url.path().to_owned()];
    let segments = url.path().split('/').filter(|segment| segment.len() >= MIN_SEGMENT_BYTES);
    parts.extend(segments.map(str::to_owned));
    for pair in url.query().unwrap_or_default().split('&') {
        // Without `=` the pair is one value.
        let raw = pair.split_once('=').map_or(pair, |(_, value)| value);
        let decoded = form_urlencoded::parse(raw.as_bytes()).map(|(name, _)| name.into_owned());
        parts.extend(decoded.chain([raw.to_owned()]));
    }
    parts.retain(|part| part.len() >= MIN_TOKEN_BYTES);
    parts.into_iter().map(|part| part.chars().take(MIN_SEGMENT_BYTES).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str, body: impl AsRef<[u8]>) -> Option<String> {
        excerpt(&TargetUrl::parse(url).unwrap(), body.as_ref())
    }

    #[test]
    fn a_body_becomes_one_short_line() {
        let url = "https://example.com/";
        for (body, expected) in [
            ("", None),
            (" \r\n\t", None),
            ("no", Some("no")),
            ("{\"error\":\n  \"bad signature\"}\n", Some("{\"error\": \"bad signature\"}")),
            ("a\u{1b}[31mred\u{7}\0b", Some("a [31mred b")),
            ("a\u{202e}b\u{200b}c", Some("a?b?c")),
            ("größer 大", Some("größer 大")),
        ] {
            assert_eq!(of(url, body).as_deref(), expected, "{body:?}");
        }
        assert_eq!(of(url, b"a\xff\xfeb").as_deref(), Some("a??b"));
        assert_eq!(of(url, "ü".repeat(200)), Some("ü".repeat(200)));
        assert_eq!(of(url, "ü".repeat(201)), Some("ü".repeat(200) + "…"));
    }

    #[test]
    fn a_body_that_repeats_a_part_of_the_url_is_not_shown() {
        let token = "T0123456789abcdefghijkl";
        for (url, body) in [
            (format!("https://a.example/hooks/{token}"), format!("no route for /hooks/{token}")),
            (format!("https://a.example/hooks/{token}"), format!("unknown hook {token}")),
            (format!("https://a.example/hooks/{token}"), format!("unknown hook {}", &token[..16])),
            (format!("https://a.example/?key={token}"), format!("bad key {token}")),
            ("https://a.example/?pin=1234".into(), "bad pin 1234".into()),
            ("https://a.example/?s3cret".into(), "s3cret?".into()),
            ("https://a.example/?a=1&key=a%2Fb%3Dc+d".into(), "bad key a/b=c d".into()),
            ("https://a.example/?a=1&key=a%2Fb%3Dc+d".into(), "bad key a%2Fb%3Dc+d".into()),
        ] {
            assert_eq!(of(&url, body), None, "{url}");
        }
    }

    #[test]
    fn a_body_with_common_words_of_the_url_is_shown() {
        let url = "https://a.example/webhook?retry=1&token=0123";
        assert_eq!(of(url, "invalid token for webhook 1").as_deref(), Some("invalid token for webhook 1"));
    }
}

//! Parser of server-sent events (`text/event-stream`, HTML standard), from parts of any size.
//!
//! It does not connect. A message that the stream ends within is dropped, as the standard says: it comes again after the
//! last id.

use std::time::Duration;

/// Largest message. More is not an event of ours.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// The fields up to an empty line. One without `data` is no event, but its id counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    /// `None`: the id of the message before it stays.
    pub(crate) id: Option<String>,
    /// The field `event`; `None` for ordinary messages.
    pub(crate) kind: Option<String>,
    pub(crate) data: Option<String>,
    /// How long to wait before the next connection.
    pub(crate) retry: Option<Duration>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MessageTooLong;

impl std::error::Error for MessageTooLong {}

impl std::fmt::Display for MessageTooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a message of the event stream is longer than {MAX_MESSAGE_BYTES} bytes")
    }
}

/// One for each connection.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    message: Message,
    /// The line that is not complete yet.
    line: Vec<u8>,
    /// Bytes of the message so far.
    length: usize,
    /// The last byte was a carriage return: a line feed after it belongs to the same end of line.
    after_return: bool,
    /// A byte order mark may only precede the first line.
    has_begun: bool,
}

impl Parser {
    /// The messages that this part completes.
    pub(crate) fn push(&mut self, part: &[u8]) -> Result<Vec<Message>, MessageTooLong> {
        let mut messages = Vec::new();
        for &byte in part {
            let is_rest_of_end = byte == b'\n' && self.after_return;
            self.after_return = byte == b'\r';
            match byte {
                b'\n' if is_rest_of_end => {}
                b'\n' | b'\r' => messages.extend(self.end_line()),
                _ if self.length == MAX_MESSAGE_BYTES => return Err(MessageTooLong),
                _ => {
                    self.length += 1;
                    self.line.push(byte);
                }
            }
        }
        Ok(messages)
    }

    fn end_line(&mut self) -> Option<Message> {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let line = match std::mem::replace(&mut self.has_begun, true) {
            true => &*line,
            false => line.trim_start_matches('\u{feff}'),
        };
        if line.is_empty() {
            self.length = 0;
            let message = std::mem::take(&mut self.message);
            return (message != Message::default()).then_some(message);
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        self.field(name, value.strip_prefix(' ').unwrap_or(value));
        None
    }

    /// A comment has an empty name. Other unknown names are ignored too.
    fn field(&mut self, name: &str, value: &str) {
        let message = &mut self.message;
        match name {
            "data" => match &mut message.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                none => *none = Some(value.to_owned()),
            },
            "event" => message.kind = Some(value.to_owned()),
            "id" if !value.contains('\0') => message.id = Some(value.to_owned()),
            "retry" if value.bytes().all(|c| c.is_ascii_digit()) => {
                message.retry = value.parse().ok().map(Duration::from_millis).or(message.retry);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Vec<Message> {
        Parser::default().push(text.as_bytes()).unwrap()
    }

    fn message(id: &str, data: &str) -> Message {
        Message { id: Some(id.to_owned()), data: Some(data.to_owned()), ..Message::default() }
    }

    #[test]
    fn a_stream_is_the_same_wherever_it_is_cut() {
        let text = "\u{feff}retry: 2000\nid: a.1\n\n: keep-alive\nid: a.2\n\nid: a.3\r\ndata: {\"x\":\"é…\"}\r\n\r\n\
                    event: reset\ndata: one\ndata:two\n\nid: a.4\rdata: last\r\r";
        let expected = [
            Message {
                id: Some("a.1".into()),
                retry: Some(Duration::from_millis(2000)),
                ..Message::default()
            },
            Message { id: Some("a.2".into()), ..Message::default() },
            message("a.3", "{\"x\":\"é…\"}"),
            Message { kind: Some("reset".into()), data: Some("one\ntwo".into()), ..Message::default() },
            message("a.4", "last"),
        ];
        assert_eq!(parse(text), expected);
        for size in 1..=text.len() {
            let mut parser = Parser::default();
            let parts = text.as_bytes().chunks(size);
            let found: Vec<Message> = parts.flat_map(|part| parser.push(part).unwrap()).collect();
            assert_eq!(found, expected, "parts of {size} bytes");
        }
    }

    #[test]
    fn comments_and_unknown_fields_are_no_messages() {
        assert_eq!(parse(": keep-alive\n\n\n:\nother: x\nother\n\n"), []);
    }

    #[test]
    fn values_lose_one_space_and_may_be_empty() {
        assert_eq!(parse("id:\ndata:  two: spaces\n\n"), [message("", " two: spaces")]);
        assert_eq!(parse("data\nid: 1\n\n"), [message("1", "")]);
        assert_eq!(parse("data\ndata:\nid: 1\n\n"), [message("1", "\n")]);
    }

    #[test]
    fn an_invalid_id_or_retry_is_ignored() {
        assert_eq!(parse("id: 1\nid: a\0b\nretry: 2s\nretry: -1\nretry: \ndata: x\n\n"), [message("1", "x")]);
    }

    #[test]
    fn a_message_that_is_not_complete_is_not_returned() {
        let mut parser = Parser::default();
        assert_eq!(parser.push(b"id: 1\ndata: x\n"), Ok(vec![]));
        assert_eq!(parser.push(b"\n"), Ok(vec![message("1", "x")]));
    }

    #[test]
    fn a_message_without_an_end_is_refused() {
        let mut parser = Parser::default();
        let line = [vec![b'x'; (1 << 20) - 1], vec![b'\n']].concat();
        let mut refused = false;
        for _ in 0..17 {
            refused |= parser.push(&line).is_err();
        }
        assert!(refused);
        assert_eq!(Parser::default().push(&line), Ok(vec![]));
    }
}

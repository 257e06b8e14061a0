//! W3C trace context: propagates `traceparent` from the client's request to every step of its transaction.

use std::fmt;
use std::str::FromStr;

/// A trace id and the id of the parent span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    span_id: u64,
    flags: u8,
}

impl TraceContext {
    /// Starts a new, sampled trace.
    pub fn start() -> TraceContext {
        // An id of all zeroes is invalid.
        TraceContext { trace_id: rand::random::<u128>() | 1, span_id: new_span_id(), flags: 1 }
    }

    /// A new span of the same trace.
    pub fn child(&self) -> TraceContext {
        TraceContext { span_id: new_span_id(), ..*self }
    }

    /// Continues the client's trace if the header is valid, otherwise starts a new one. An invalid header is not an
    /// error.
    pub fn continue_from(header: Option<&str>) -> TraceContext {
        match header.and_then(|text| text.parse::<TraceContext>().ok()) {
            Some(parent) => parent.child(),
            None => TraceContext::start(),
        }
    }

    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }
}

fn new_span_id() -> u64 {
    rand::random::<u64>() | 1
}

/// The format of the `traceparent` header and of `managed_tx.trace_context`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent")]
pub struct NotATraceparent;

impl FromStr for TraceContext {
    type Err = NotATraceparent;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('-');
        let mut part = || parts.next().ok_or(NotATraceparent);
        let (version, trace_id, span_id, flags) = (part()?, part()?, part()?, part()?);
        let [version] = lower_hex::<1>(version)?;
        // Version 255 is forbidden; later versions may add parts, version 0 may not.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return Err(NotATraceparent);
        }
        let context = TraceContext {
            trace_id: u128::from_be_bytes(lower_hex(trace_id)?),
            span_id: u64::from_be_bytes(lower_hex(span_id)?),
            flags: lower_hex::<1>(flags)?[0],
        };
        if context.trace_id == 0 || context.span_id == 0 {
            return Err(NotATraceparent);
        }
        Ok(context)
    }
}

fn lower_hex<const N: usize>(text: &str) -> Result<[u8; N], NotATraceparent> {
    let mut bytes = [0; N];
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(NotATraceparent);
    }
    hex::decode_to_slice(text, &mut bytes).map_err(|_| NotATraceparent)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_header_survives_and_its_child_stays_in_the_trace() {
        let context: TraceContext = HEADER.parse().unwrap();
        assert_eq!(context.to_string(), HEADER);
        let child = TraceContext::continue_from(Some(HEADER));
        assert_eq!(child.trace_id(), context.trace_id());
        assert_ne!(child, context);
    }

    #[test]
    fn a_bad_header_starts_a_new_trace() {
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert_eq!(bad.parse::<TraceContext>(), Err(NotATraceparent), "{bad}");
        }
        assert!(TraceContext::continue_from(Some("nonsense")).to_string().parse::<TraceContext>().is_ok());
    }
}

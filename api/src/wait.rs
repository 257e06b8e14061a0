//! `?wait=30s`.

use std::time::Duration;

use crate::error::ApiError;

/// `500ms`, `30s`, `2m`. Longer than the configured maximum means the maximum: the client asks again anyway.
pub(crate) fn parse_wait(text: Option<&str>, max: Duration) -> Result<Duration, ApiError> {
    let Some(text) = text else { return Ok(Duration::ZERO) };
    match humantime::parse_duration(text) {
        Ok(wait) => Ok(wait.min(max)),
        Err(_) => Err(ApiError::InvalidRequest(format!(
            "wait: `{text}` is not a duration such as 500ms, 30s or 2m"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_have_a_unit_and_a_maximum() {
        let parse = |text| parse_wait(Some(text), Duration::from_secs(60)).map_err(|error| error.to_string());
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(60)));
        assert_eq!(parse_wait(None, Duration::MAX).unwrap(), Duration::ZERO);
        for bad in ["", "30", "-1s", "s", "forever"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}

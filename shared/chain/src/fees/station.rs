//! Gas station client: an HTTP service that returns prices as JSON. Its response is untrusted: a late, oversized,
//! incomplete or invalid one is an error.

use ethers_core::types::U256;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};
use serde_json::Value;

use super::{BySpeed, scale};
use gapless_config::{GasStation, Multipliers, PricePaths, PriceUnit};
use gapless_domain::Speed;
use gapless_domain::amount::parse_amount;
use gapless_http_client::client_builder;

/// Usual responses are a few kilobytes.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Longer strings are not prices.
const MAX_PRICE_CHARS: usize = 100;
/// 10^77 is the largest power of ten below 2^256.
const MAX_EXPONENT: i64 = 77;

/// The gas station's prices for one speed, in wei per gas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StationPrice {
    pub tip: Option<U256>,
    pub cap: Option<U256>,
    pub gas_price: Option<U256>,
}

/// Messages never contain the URL, because it may contain an API key.
#[derive(Debug, thiserror::Error)]
pub(super) enum StationError {
    #[error("could not create the HTTP client")]
    NoClient,
    #[error("timeout")]
    Timeout,
    #[error("could not be reached: {0}")]
    Transport(String),
    #[error("returned HTTP {0}")]
    Status(u16),
    #[error("response larger than {MAX_ANSWER_BYTES} bytes")]
    Oversized,
    #[error("response is not JSON")]
    NotJson,
    #[error("response has no value at `{0}`")]
    Missing(String),
    #[error("response has no valid price at `{0}`")]
    NotAPrice(String),
}

#[derive(Debug)]
pub(super) struct Station {
    client: Option<Client>,
    pub(super) config: GasStation,
    multipliers: Multipliers,
}

impl Station {
    pub(super) fn new(config: &GasStation, multipliers: &Multipliers) -> Station {
        let mut builder =
            client_builder().timeout(config.timeout).connect_timeout(config.timeout).redirect(Policy::none());
        // The environment's proxy is not used for a local service.
        if config.url.as_ref().and_then(|url| Url::parse(url.expose()).ok()).is_some_and(is_loopback) {
            builder = builder.no_proxy();
        }
        Station { client: builder.build().ok(), config: config.clone(), multipliers: multipliers.clone() }
    }

    pub(super) async fn fetch(&self) -> Result<BySpeed<StationPrice>, StationError> {
        let answer = serde_json::from_slice(&self.get().await?).map_err(|_| StationError::NotJson)?;
        self.read(&answer)
    }

    async fn get(&self) -> Result<Vec<u8>, StationError> {
        let url = self.config.url.as_ref().ok_or(StationError::NoClient)?;
        let client = self.client.as_ref().ok_or(StationError::NoClient)?;
        let mut response = client.get(url.expose()).send().await.map_err(failed)?;
        if response.status() != StatusCode::OK {
            return Err(StationError::Status(response.status().as_u16()));
        }
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if answer.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(StationError::Oversized);
            }
            answer.extend_from_slice(&chunk);
        }
        Ok(answer)
    }

    /// A speed without its own paths uses the normal price times its multiplier.
    fn read(&self, answer: &Value) -> Result<BySpeed<StationPrice>, StationError> {
        let unit = self.config.unit;
        let normal = read_speed(answer, &self.config.normal, unit)?;
        let other = |paths: &PricePaths, speed: Speed| {
            if !paths.is_empty() {
                return read_speed(answer, paths, unit);
            }
            let scaled = |price: Option<U256>| price.map(|price| scale(price, self.multipliers.of(speed)));
            let StationPrice { tip, cap, gas_price } = normal;
            Ok(StationPrice { tip: scaled(tip), cap: scaled(cap), gas_price: scaled(gas_price) })
        };
        Ok(BySpeed {
            slow: other(&self.config.slow, Speed::Slow)?,
            normal,
            fast: other(&self.config.fast, Speed::Fast)?,
        })
    }
}

fn is_loopback(url: Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn failed(error: reqwest::Error) -> StationError {
    if error.is_timeout() {
        return StationError::Timeout;
    }
    let error = error.without_url();
    // The outer message is only "error sending request"; the innermost has the cause.
    let mut cause: &dyn std::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    StationError::Transport(cause.to_string())
}

fn read_speed(answer: &Value, paths: &PricePaths, unit: PriceUnit) -> Result<StationPrice, StationError> {
    let price = |path: &Option<String>, may_be_zero: bool| {
        let Some(path) = path else { return Ok(None) };
        let value = find(answer, path).ok_or_else(|| StationError::Missing(path.clone()))?;
        let price = read_price(value, unit).filter(|price| may_be_zero || !price.is_zero());
        price.map(Some).ok_or_else(|| StationError::NotAPrice(path.clone()))
    };
    Ok(StationPrice {
        tip: price(&paths.tip, true)?,
        cap: price(&paths.cap, false)?,
        gas_price: price(&paths.gas_price, false)?,
    })
}

fn find<'a>(answer: &'a Value, path: &str) -> Option<&'a Value> {
    if path.starts_with('/') {
        return answer.pointer(path);
    }
    path.split('.').try_fold(answer, |value, word| match value {
        Value::Object(members) => members.get(word),
        Value::Array(items) => items.get(word.parse::<usize>().ok()?),
        _ => None,
    })
}

/// A number, or a string with an integer, a decimal fraction, an exponent, or 0x hex. Rounded up to whole wei.
fn read_price(value: &Value, unit: PriceUnit) -> Option<U256> {
    let decimals = match unit {
        PriceUnit::Wei => 0,
        PriceUnit::Gwei => 9,
    };
    let text = match value {
        Value::String(text) => text.clone(),
        // JSON numbers have up to 17 significant digits.
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    if text.len() > MAX_PRICE_CHARS {
        return None;
    }
    if text.starts_with("0x") {
        return parse_amount(&text).ok()?.checked_mul(U256::exp10(decimals));
    }
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, i64::from(exponent.parse::<i32>().ok()?)),
        None => (text.as_str(), 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if whole.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = parse_amount(&digits).ok()?;
    shifted(digits, exponent + decimals as i64 - fraction.len() as i64)
}

/// `digits × 10^shift`, rounded up.
fn shifted(digits: U256, shift: i64) -> Option<U256> {
    let power = shift.abs();
    match (shift >= 0, power > MAX_EXPONENT) {
        _ if digits.is_zero() => Some(digits),
        (true, true) => None,
        (true, false) => digits.checked_mul(U256::exp10(power as usize)),
        (false, true) => Some(U256::one()),
        (false, false) => {
            let (whole, rest) = digits.div_mod(U256::exp10(power as usize));
            Some(if rest.is_zero() { whole } else { whole + 1 })
        }
    }
}

#[cfg(test)]
#[path = "station_tests.rs"]
mod tests;

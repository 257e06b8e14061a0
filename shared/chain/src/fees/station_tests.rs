//! Valid and invalid gas station responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use super::*;
use gapless_config::Secret;

fn paths(tip: &str, cap: &str, gas_price: &str) -> PricePaths {
    let path = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    PricePaths { tip: path(tip), cap: path(cap), gas_price: path(gas_price) }
}

fn station(url: &str) -> Station {
    let config = GasStation {
        url: Some(Secret::new(url)),
        timeout: Duration::from_millis(500),
        normal: paths("standard.tip", "standard.cap", ""),
        ..GasStation::default()
    };
    Station::new(&config, &Multipliers::default())
}

/// Answers every GET with these bytes and closes; with `None` it never answers.
async fn serve(answer: Option<Vec<u8>>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/prices?key=hunter2", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (answer, count) = (answer.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                while stream.read_line(&mut line).await.is_ok_and(|read| read > 2) {
                    line.clear();
                }
                count.fetch_add(1, SeqCst);
                match answer {
                    Some(bytes) => drop(stream.write_all(&bytes).await),
                    None => std::future::pending().await,
                }
            });
        }
    });
    (url, asked)
}

fn http(status: u16, body: &str) -> Option<Vec<u8>> {
    let head =
        format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    Some((head + body).into_bytes())
}

async fn fetched(answer: Option<Vec<u8>>) -> Result<BySpeed<StationPrice>, StationError> {
    station(&serve(answer).await.0).fetch().await
}

fn gwei(count: u64) -> Option<U256> {
    Some(U256::exp10(9) * count)
}

#[tokio::test]
async fn a_valid_response_is_read_at_its_paths_and_scaled_for_other_speeds() {
    let prices = fetched(http(200, r#"{"standard":{"tip":2,"cap":"40.0"}}"#)).await.unwrap();
    assert_eq!(prices.normal, StationPrice { tip: gwei(2), cap: gwei(40), gas_price: None });
    assert_eq!(
        prices.fast,
        StationPrice { tip: Some(2_500_000_000u64.into()), cap: gwei(50), gas_price: None }
    );
    assert_eq!(
        prices.slow,
        StationPrice { tip: Some(1_800_000_000u64.into()), cap: gwei(36), gas_price: None }
    );
}

#[tokio::test]
async fn speeds_may_have_their_own_paths_and_paths_may_index_arrays() {
    let mut station = station("http://localhost/");
    station.config.unit = PriceUnit::Wei;
    station.config.slow = paths("", "", "/a.b/0");
    station.config.normal = paths("", "", "list.1.price");
    station.config.fast = paths("", "", "fast");
    let answer = json!({ "a.b": ["5"], "list": [null, { "price": 7 }], "fast": "0x9" });
    let prices = station.read(&answer).unwrap();
    let each = [prices.slow, prices.normal, prices.fast].map(|price| price.gas_price.unwrap().as_u64());
    assert_eq!(each, [5, 7, 9]);
    for path in ["list.x.price", "list.2", "list.1.price.deeper", "a.b.0", "/a.b/9", "/nothing"] {
        station.config.normal = paths("", "", path);
        let error = station.read(&answer).unwrap_err();
        assert!(matches!(error, StationError::Missing(_)), "{path}: {error}");
    }
}

#[tokio::test]
async fn invalid_responses_are_refused() {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for (body, expected) in [
        ("", "not JSON"),
        ("<html>busy</html>", "not JSON"),
        (r#"{"standard":{"tip":2,"cap":40}"#, "not JSON"),
        (deep.as_str(), "not JSON"),
        (r#"{"standard":{"tip":2,"cap":1e400}}"#, "not JSON"),
        ("null", "no value at `standard.tip`"),
        (r#"{"standard":{"tip":2}}"#, "no value at `standard.cap`"),
        (r#"{"standard":{"tip":2,"cap":null}}"#, "no valid price at `standard.cap`"),
        (r#"{"standard":{"tip":-1,"cap":40}}"#, "no valid price at `standard.tip`"),
        (r#"{"standard":{"tip":2,"cap":0}}"#, "no valid price at `standard.cap`"),
        (r#"{"standard":{"tip":2,"cap":"0.0"}}"#, "no valid price at `standard.cap`"),
        (r#"{"standard":{"tip":2,"cap":1e300}}"#, "no valid price at `standard.cap`"),
        (r#"{"standard":{"tip":true,"cap":40}}"#, "no valid price at `standard.tip`"),
        (r#"{"standard":{"tip":[2],"cap":40}}"#, "no valid price at `standard.tip`"),
    ] {
        let error = fetched(http(200, body)).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{:.80}: {error}", body);
    }
    for status in [204, 302, 404, 429, 500] {
        let error = fetched(http(status, "")).await.unwrap_err();
        assert!(matches!(error, StationError::Status(found) if found == status), "{error}");
    }
}

#[tokio::test]
async fn timeouts_oversized_responses_and_connection_errors_are_reported() {
    assert!(matches!(fetched(None).await, Err(StationError::Timeout)));
    let oversized = http(200, &format!("\"{}\"", "x".repeat(2 << 20)));
    assert!(matches!(fetched(oversized).await, Err(StationError::Oversized)));
    let mut cut = http(200, r#"{"standard":{"tip":2,"cap":40}}"#).unwrap();
    cut.truncate(cut.len() - 3);
    assert!(matches!(fetched(Some(cut)).await, Err(StationError::Transport(_))));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/prices?key=hunter2", listener.local_addr().unwrap());
    drop(listener);
    let error = station(&url).fetch().await.unwrap_err();
    assert!(matches!(error, StationError::Transport(_)));
    assert!(
        !format!("{error} {error:?} {:?}", station(&url)).contains("hunter2"),
        "the API key must not be logged"
    );
}

#[test]
fn prices_are_exact_rounded_up_and_limited_to_256_bits() {
    let read = |value: Value, unit| read_price(&value, unit);
    let (wei, gwei) = (PriceUnit::Wei, PriceUnit::Gwei);
    for (value, unit, expected) in [
        (json!(30), gwei, 30_000_000_000u64),
        (json!(30.123456789), gwei, 30_123_456_789),
        (json!("30.1234567891"), gwei, 30_123_456_790),
        (json!("0.0000000001"), gwei, 1),
        (json!(1e-30), gwei, 1),
        (json!("1e-90"), wei, 1),
        (json!(1.5e3), wei, 1500),
        (json!("2E+2"), wei, 200),
        (json!("7.2"), wei, 8),
        (json!("0x1e"), gwei, 30_000_000_000),
        (json!("0x1e"), wei, 30),
        (json!("0"), wei, 0),
        (json!("0e999999"), wei, 0),
        (json!("5."), wei, 5),
    ] {
        assert_eq!(read(value.clone(), unit), Some(expected.into()), "{value}");
    }
    assert_eq!(read(json!(U256::MAX.to_string()), wei), Some(U256::MAX));
    assert_eq!(read(json!(format!("{}.5", U256::MAX)), wei), None);
    assert_eq!(read(json!(U256::MAX.to_string()), gwei), None);
    assert_eq!(read(json!(format!("{:#x}", U256::MAX)), gwei), None);
    assert_eq!(read(json!("1e77"), wei), Some(U256::exp10(77)));
    for bad in [
        "",
        ".",
        ".5",
        "-1",
        "+1",
        " 1",
        "1 ",
        "1,5",
        "1e",
        "e5",
        "1e99999999999",
        "1e78",
        "NaN",
        "inf",
        "0x",
        "0.x5",
        "1.2.3",
        "٣",
        "0xg",
        "1e5e5",
    ] {
        assert_eq!(read(json!(bad), wei), None, "{bad:?}");
    }
    assert_eq!(read(json!("1".repeat(101)), wei), None);
}

mod shared_lookups {
    use super::*;
    use crate::fees::FeeSource;
    use crate::fees::source::tests::Node;
    use gapless_config::{self as config, FeePolicyKind};
    use gapless_domain::{Address, Payload};

    fn source(url: &str, cache: Duration) -> FeeSource {
        let gas_station = GasStation { cache, ..station(url).config };
        FeeSource::new(&config::Fees {
            policy: FeePolicyKind::GasStation,
            gas_station,
            ..config::Fees::default()
        })
    }

    async fn cap(source: &FeeSource, head: u64) -> U256 {
        let payload = Payload::transfer(Address::zero(), U256::one());
        source.quote(&Node::default(), head, &payload).await.unwrap().cap()
    }

    #[tokio::test]
    async fn prices_are_shared_by_lanes_and_blocks_while_cached() {
        let (url, asked) = serve(http(200, r#"{"standard":{"tip":2,"cap":40}}"#)).await;
        let cached = source(&url, Duration::from_secs(600));
        let lanes = futures::future::join_all((0..50).map(|lane| cap(&cached, 7 + lane % 2))).await;
        assert!(lanes.iter().all(|cap| Some(*cap) == gwei(40)));
        assert_eq!(asked.load(SeqCst), 1);
        let uncached = source(&url, Duration::ZERO);
        for head in [7, 7, 8] {
            assert_eq!(Some(cap(&uncached, head).await), gwei(40));
        }
        assert_eq!(asked.load(SeqCst), 3, "once for each block");
    }

    #[tokio::test]
    async fn without_gas_station_prices_the_history_is_used_and_the_failure_cached() {
        let (url, asked) = serve(http(500, "")).await;
        let source = source(&url, Duration::from_secs(600));
        for head in 7..10 {
            assert_eq!(
                cap(&source, head).await,
                U256::from(5_000_200),
                "base fee 100, a median tip of 5,000,000"
            );
        }
        assert_eq!(asked.load(SeqCst), 1);
    }
}

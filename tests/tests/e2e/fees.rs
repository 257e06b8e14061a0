//! Fee policies, speeds and limits, as seen on the chain.

use gapless_testkit::{Address, Fault, Mining, Stack, TxId, TxRow, TxState, U256, eventually, payload};
use serde_json::{Value, json};

use self::station::Station;
use crate::stack;

/// In tenths of a gwei.
fn gwei(tenths: u64) -> U256 {
    U256::exp10(8) * tenths
}

/// A transfer with additional payload fields.
fn transfer(more: Value) -> Value {
    let mut payload = payload(Address::repeat_byte(0xfe), 1);
    payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    payload
}

async fn wait_sub_state(stack: &Stack, tx_id: TxId, sub_state: &str) -> TxRow {
    eventually(&format!("{tx_id} has sub-state {sub_state}"), async || {
        let row = stack.row(tx_id).await;
        if row.sub_state.as_deref() == Some(sub_state) { Ok(row) } else { Err(row) }
    })
    .await
}

/// (cap, tip) of a sent transaction, or twice the gas price.
async fn offered(stack: &Stack, tx_id: TxId) -> (U256, U256) {
    let hash = stack.row(tx_id).await.tx_hash.expect("a hash");
    let tx = stack.anvil().rpc("eth_getTransactionByHash", json!([hash])).await;
    let price = |name: &str| -> U256 { serde_json::from_value(tx[name].clone()).unwrap() };
    match tx["type"].as_str() {
        Some("0x2") => (price("maxFeePerGas"), price("maxPriorityFeePerGas")),
        _ => (price("gasPrice"), price("gasPrice")),
    }
}

/// Sends one transaction. Returns what it offered.
async fn priced(stack: &Stack, request_id: &str, more: Value) -> (U256, U256) {
    let tx_id = stack.create(stack.submitter(0), request_id, &transfer(more)).await;
    stack.wait_for(tx_id, TxState::Confirmed).await;
    offered(stack, tx_id).await
}

/// A base fee of one gwei, and tips of one, two and five.
fn history() -> Value {
    json!({
        "oldestBlock": "0x0", "gasUsedRatio": [0.5], "baseFeePerGas": ["0x3b9aca00", "0x3b9aca00"],
        "reward": [["0x3b9aca00", "0x77359400", "0x12a05f200"]],
    })
}

/// Default policy. Six intents of two submitters at one head need one query, for all speeds.
#[tokio::test(flavor = "multi_thread")]
async fn the_history_prices_every_speed_with_one_question_for_all_lanes() {
    let stack = stack().proxied().submitters(2).window(3).mining(Mining::Manual).up().await;
    stack.proxy().always("eth_feeHistory", Fault::Result(history()));
    let mut sent = Vec::new();
    for index in 0..2 {
        for (speed, tip) in [("slow", 10), ("normal", 20), ("fast", 50)] {
            let request = transfer(json!({ "speed": speed }));
            sent.push((stack.create(stack.submitter(index), speed, &request).await, tip));
        }
    }
    for (tx_id, tip) in &sent {
        stack.wait_for(*tx_id, TxState::Submitted).await;
        assert_eq!(
            offered(&stack, *tx_id).await,
            (gwei(20 + tip), gwei(*tip)),
            "twice the base fee and the tip"
        );
    }
    assert_eq!(stack.proxy().calls("eth_feeHistory"), 1);
    stack.anvil().mine(1).await;
    let ids: Vec<TxId> = sent.iter().map(|(tx_id, _)| *tx_id).collect();
    stack.wait_confirmed(&ids).await;
    stack.finish().await;
}

/// `fees.policy = "gas_price"`.
#[tokio::test(flavor = "multi_thread")]
async fn the_gas_price_of_the_node_prices_legacy_and_other_transactions() {
    let stack = stack().proxied().set("fees.policy", "gas_price").up().await;
    stack.proxy().always("eth_gasPrice", Fault::Result(json!("0xb2d05e00")));
    assert_eq!(priced(&stack, "legacy", json!({ "type": "legacy" })).await, (gwei(30), gwei(30)));
    let fast = json!({ "type": "legacy", "speed": "fast" });
    assert_eq!(priced(&stack, "fast", fast).await, (U256::from(3_750_000_000u64), 3_750_000_000u64.into()));
    let slow = json!({ "type": "legacy", "speed": "slow" });
    assert_eq!(priced(&stack, "slow", slow).await, (gwei(27), gwei(27)));
    let (cap, tip) = priced(&stack, "dynamic", json!({})).await;
    let base = (cap - tip) / 2;
    assert!(!base.is_zero());
    assert!(base + tip - gwei(30) <= U256::one(), "base fee and tip are the price: {base} {tip}");
    assert_eq!(priced(&stack, "own", json!({ "gasPrice": "2000000000" })).await, (gwei(20), gwei(20)));
    stack.finish().await;
}

/// `fees.policy = "fixed"`. A fixed price below the base fee waits without a nonce (scenario 44).
#[tokio::test(flavor = "multi_thread")]
async fn fixed_fees_are_offered_as_they_are_and_wait_out_a_spike() {
    let stack = stack()
        .set("fees.policy", "fixed")
        .set("fees.fixed.max_fee_per_gas", "4000000000")
        .set("fees.fixed.max_priority_fee_per_gas", 1_000_000_000)
        .set("fees.fixed.gas_price", "3000000000")
        .set("fees.multipliers.fast", 1.5)
        .up()
        .await;
    assert_eq!(priced(&stack, "normal", json!({})).await, (gwei(40), gwei(10)));
    assert_eq!(priced(&stack, "slow", json!({ "speed": "slow" })).await, (gwei(36), gwei(9)));
    assert_eq!(priced(&stack, "fast", json!({ "speed": "fast" })).await, (gwei(60), gwei(15)));
    assert_eq!(priced(&stack, "legacy", json!({ "type": "legacy" })).await, (gwei(30), gwei(30)));

    let waiting = spike(&stack, 10).await;
    calm(&stack, waiting).await;
    assert_eq!(offered(&stack, waiting).await, (gwei(40), gwei(10)));
    stack.finish().await;
}

/// Raises the base fee to `gwei` and posts one that must wait for it to fall.
async fn spike(stack: &Stack, base: u64) -> TxId {
    let base = U256::exp10(9) * base;
    stack.anvil().rpc("anvil_setNextBlockBaseFeePerGas", json!([base])).await;
    stack.anvil().mine(1).await;
    // Posted after the worker has seen that block, so that it is not priced by the previous one.
    let head = stack.anvil().head().await;
    eventually("the spike is on record", async || {
        let seen: Option<i64> =
            sqlx::query_scalar("SELECT max(number) FROM chain_block").fetch_one(stack.db()).await.unwrap();
        if seen == Some(head as i64) { Ok(()) } else { Err(seen) }
    })
    .await;
    let tx_id = stack.create(stack.submitter(0), "spike", &transfer(json!({}))).await;
    let row = wait_sub_state(stack, tx_id, "waiting_fee").await;
    assert_eq!((row.state, row.nonce), (TxState::Queued, None));
    tx_id
}

/// Lets the base fee fall until it is mined.
async fn calm(stack: &Stack, tx_id: TxId) {
    eventually("it is mined once blocks are cheap", async || {
        stack.anvil().rpc("anvil_setNextBlockBaseFeePerGas", json!(["0x1"])).await;
        stack.anvil().mine(1).await;
        let row = stack.row(tx_id).await;
        if row.state == TxState::Confirmed { Ok(()) } else { Err(row) }
    })
    .await;
}

/// `fees.max_fee_per_gas` limits the policy and the client, also through a base-fee spike and its fall
/// (scenario 44).
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_priced_above_the_limit_of_the_chain() {
    let limit = gwei(15);
    let stack = stack().set("fees.max_fee_per_gas", limit.to_string()).up().await;
    // anvil's first blocks have a base fee of about one gwei: twice that exceeds the limit.
    let (cap, tip) = priced(&stack, "policy", json!({ "maxPriorityFeePerGas": "100000000" })).await;
    assert_eq!((cap, tip), (limit, gwei(1)));
    let own = json!({ "maxFeePerGas": "9000000000", "maxPriorityFeePerGas": "8000000000" });
    assert_eq!(priced(&stack, "client", own).await, (limit, limit));
    assert_eq!(priced(&stack, "legacy", json!({ "gasPrice": "9000000000" })).await, (limit, limit));

    let waiting = spike(&stack, 10).await;
    calm(&stack, waiting).await;
    assert!(offered(&stack, waiting).await.0 <= limit);
    stack.finish().await;
}

/// `fees.policy = "gas_station"`: its prices by path and unit, fee history while it is down, its prices again, and its
/// limits.
#[tokio::test(flavor = "multi_thread")]
async fn a_gas_station_prices_until_it_fails_and_again_when_it_is_back() {
    let station = Station::start().await;
    let stack = stack()
        .proxied()
        .set("fees.policy", "gas_station")
        .set("fees.max_fee_per_gas", gwei(5000).to_string())
        .set("fees.gas_station.url", station.url())
        .set("fees.gas_station.timeout", "1s")
        .set("fees.gas_station.cache", "1ms")
        .set("fees.gas_station.normal.tip", "standard.maxPriorityFee")
        .set("fees.gas_station.normal.cap", "standard.maxFee")
        .set("fees.gas_station.fast.tip", "tiers.1.tip")
        .set("fees.gas_station.fast.cap", "tiers.1.cap")
        .up()
        .await;
    stack.proxy().always("eth_feeHistory", Fault::Result(history()));
    let by_history = (gwei(40), gwei(20));
    let honest = json!({
        "standard": { "maxPriorityFee": 2.5, "maxFee": "40.1" },
        "tiers": [null, { "tip": "0x7", "cap": 90 }],
    });
    station.respond(200, &honest.to_string());
    assert_eq!(priced(&stack, "normal", json!({})).await, (gwei(401), gwei(25)));
    assert_eq!(priced(&stack, "fast", json!({ "speed": "fast" })).await, (gwei(900), gwei(70)));
    let slow = priced(&stack, "slow", json!({ "speed": "slow" })).await;
    assert_eq!(slow, (U256::from(36_090_000_000u64), 2_250_000_000u64.into()), "normal times its multiplier");
    assert_eq!(priced(&stack, "legacy", json!({ "type": "legacy" })).await, (gwei(401), gwei(401)));

    // The head changes with every transaction, so each is priced anew.
    station.respond(503, "");
    assert_eq!(priced(&stack, "down", json!({})).await, by_history);
    let line = stack.workers()[0].wait_for_log("gas station returned no usable prices").await;
    assert!(line.contains("HTTP 503") && line.contains("WARN"), "{line}");
    station.respond(200, r#"{"standard":{"maxPriorityFee":"a lot"}}"#);
    assert_eq!(priced(&stack, "hostile", json!({})).await, by_history);

    station.respond(200, &honest.to_string());
    assert_eq!(priced(&stack, "back", json!({})).await, (gwei(401), gwei(25)));
    let greedy = json!({ "standard": { "maxPriorityFee": 1e6, "maxFee": 1e9 }, "tiers": [null, { "tip": 1, "cap": 1 }] });
    station.respond(200, &greedy.to_string());
    let (cap, tip) = priced(&stack, "greedy", json!({})).await;
    assert_eq!((cap, tip), (gwei(5000), gwei(5000)), "the limit of the chain holds");
    stack.finish().await;
}

/// An unreachable gas station fails no transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_gas_station_that_is_not_there_is_replaced_by_the_history() {
    let gone = Station::start().await.url().to_owned();
    let stack = stack()
        .proxied()
        .set("fees.policy", "gas_station")
        .set("fees.gas_station.url", gone)
        .set("fees.gas_station.normal.gas_price", "price")
        .up()
        .await;
    stack.proxy().always("eth_feeHistory", Fault::Result(history()));
    assert_eq!(priced(&stack, "alone", json!({})).await, (gwei(40), gwei(20)));
    stack.workers()[0].wait_for_log("gas station returned no usable prices").await;
    stack.finish().await;
}

/// Scenarios 2 and 3, for the speed of a request.
#[tokio::test(flavor = "multi_thread")]
async fn a_speed_is_part_of_a_request_and_normal_is_that_of_one_without() {
    let stack = stack().up().await;
    let submitter = stack.submitter(0);
    let plain = stack.post(submitter, "plain", &transfer(json!({}))).await;
    let normal = stack.post(submitter, "plain", &transfer(json!({ "speed": "normal" }))).await;
    assert_eq!((plain.status, normal.status), (202, 200));
    assert_eq!(plain.tx_id(), normal.tx_id());
    let fast = stack.post(submitter, "plain", &transfer(json!({ "speed": "fast" }))).await;
    assert_eq!((fast.status, fast.code()), (409, "request_id_conflict"));
    let fast = stack.create(submitter, "fast", &transfer(json!({ "speed": "fast" }))).await;
    assert_eq!(stack.get(fast).await["payload"]["speed"], json!("fast"));
    let odd = stack.post(submitter, "odd", &transfer(json!({ "speed": "fast", "gasPrice": "7" }))).await;
    assert_eq!(
        (odd.status, odd.code(), &odd.body["field"]),
        (422, "invalid_payload", &json!("payload.speed"))
    );
    assert_eq!(stack.post(submitter, "warp", &transfer(json!({ "speed": "warp" }))).await.status, 400);
    stack.wait_all_terminal().await;
    stack.finish().await;
}

mod station {
    //! A local gas station with configurable responses. Stops when dropped.

    use std::sync::{Arc, Mutex};

    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinHandle;

    pub(super) struct Station {
        url: String,
        response: Arc<Mutex<(u16, String)>>,
        serving: JoinHandle<()>,
    }

    impl Drop for Station {
        fn drop(&mut self) {
            self.serving.abort();
        }
    }

    impl Station {
        pub(super) async fn start() -> Station {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/prices", listener.local_addr().unwrap());
            let response = Arc::new(Mutex::new((404, String::new())));
            let answer = Arc::clone(&response);
            let serving = tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let (status, text) = answer.lock().unwrap().clone();
                    let _ = reply(stream, status, &text).await;
                }
            });
            Station { url, response, serving }
        }

        pub(super) fn url(&self) -> &str {
            &self.url
        }

        pub(super) fn respond(&self, status: u16, text: &str) {
            *self.response.lock().unwrap() = (status, text.to_owned());
        }
    }

    async fn reply(stream: TcpStream, status: u16, text: &str) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while stream.read_line(&mut line).await? > 2 {
            line.clear();
        }
        let head = format!(
            "HTTP/1.1 {status} OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
            text.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.shutdown().await
    }
}

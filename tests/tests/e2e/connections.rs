//! Who may connect: the `Host` and `Origin` of requests without a key, and the connections of one address.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use gapless_testkit::{LIMIT, Service, eventually};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::stack;

fn address(api: &Service) -> SocketAddr {
    api.url().trim_start_matches("http://").parse().unwrap()
}

/// The status and body of a request with these header lines, on a connection of its own.
async fn ask(api: &Service, target: &str, headers: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address(api)).await.unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut received)).await.expect("a response").unwrap();
    let text = String::from_utf8(received).unwrap();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

const LOCAL: [&str; 8] = [
    "host: localhost",
    "host: LOCALHOST:8080",
    "host: 127.0.0.1:1",
    "host: 127.8.9.10",
    "host: [::1]",
    "host: [::1]:8080",
    "host: localhost\r\norigin: http://localhost:3000",
    "host: localhost\r\norigin: https://[::1]",
];

const NOT_LOCAL: [(&str, &str); 18] = [
    ("host: attacker.example", "host_not_local"),
    ("host: attacker.example:8080", "host_not_local"),
    ("host: localhost.attacker.example", "host_not_local"),
    ("host: 127.0.0.1.attacker.example", "host_not_local"),
    ("host: attacker.example@localhost", "host_not_local"),
    ("host: 192.0.2.1", "host_not_local"),
    ("host: 0.0.0.0", "host_not_local"),
    ("host: [::]", "host_not_local"),
    ("host: [2001:db8::1]:80", "host_not_local"),
    ("host: ::1", "host_not_local"),
    ("host: localhost:port", "host_not_local"),
    ("host:", "host_not_local"),
    ("host: localhost\r\nhost: attacker.example", "host_not_local"),
    ("x-no-host: 1", "host_not_local"),
    ("host: localhost\r\norigin: http://attacker.example", "origin_not_local"),
    ("host: localhost\r\norigin: https://localhost.attacker.example:80", "origin_not_local"),
    ("host: localhost\r\norigin: null", "origin_not_local"),
    ("host: localhost\r\norigin: file://localhost", "origin_not_local"),
];

/// A page whose name is made to resolve to 127.0.0.1 (DNS rebinding) must not use an API without keys.
#[tokio::test(flavor = "multi_thread")]
async fn without_keys_a_request_whose_host_or_origin_is_not_local_is_refused() {
    let stack = stack().start().await;
    let open = stack.start_api().await;
    let trusting = stack.api().set("api.admin_on_loopback", true).start().await;
    let routes = ["/api/v1/tx", "/healthz", "/metrics", "/docs", "/openapi.yaml", "/nowhere"];
    for api in [&open, &trusting] {
        for headers in LOCAL {
            assert_eq!(ask(api, "/api/v1/tx", &format!("{headers}\r\n")).await.0, 200, "{headers}");
        }
        for (headers, code) in NOT_LOCAL {
            for route in routes {
                let (status, body) = ask(api, route, &format!("{headers}\r\n")).await;
                assert_eq!((status, body["code"].as_str()), (403, Some(code)), "{route} {headers}: {body}");
                assert!(body["detail"].as_str().unwrap().contains("DNS rebinding"), "{body}");
            }
        }
        // The authority of an absolute target takes precedence over Host.
        let (status, body) = ask(api, "http://attacker.example/api/v1/tx", "host: localhost\r\n").await;
        assert_eq!((status, body["code"].as_str()), (403, Some("host_not_local")), "{body}");
    }

    // With a key, the name of the server is the operator's choice.
    let (key, _) = stack.api_key(&[]).await;
    let keyed = format!("authorization: Bearer {key}\r\n");
    eventually("the key is required", async || {
        let (status, _) = ask(&open, "/api/v1/tx", "host: localhost\r\n").await;
        if status == 401 { Ok(()) } else { Err(status) }
    })
    .await;
    for (headers, _) in NOT_LOCAL {
        assert_eq!(ask(&open, "/healthz", &format!("{headers}\r\n")).await.0, 200, "{headers}");
        assert_eq!(ask(&open, "/api/v1/tx", &format!("{headers}\r\n{keyed}")).await.0, 200, "{headers}");
        let (status, body) = ask(&open, "/api/v1/tx", &format!("{headers}\r\n")).await;
        assert_eq!((status, body["code"].as_str()), (401, Some("unauthorized")), "{headers}");
    }
    // `admin_on_loopback` still accepts requests without a key: they are still checked.
    eventually("another host is admitted with the key", async || {
        let headers = format!("host: attacker.example\r\n{keyed}");
        let (status, _) = ask(&trusting, "/api/v1/tx", &headers).await;
        if status == 200 { Ok(()) } else { Err(status) }
    })
    .await;
    let (status, body) = ask(&trusting, "/api/v1/tx", "host: attacker.example\r\n").await;
    assert_eq!((status, body["code"].as_str()), (403, Some("host_not_local")), "{body}");
    stack.finish().await;
}

/// A connection from a loopback address of our choice.
async fn connect_from(source: &str, api: &Service) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{source}:0").parse().unwrap()).unwrap();
    socket.connect(address(api)).await.unwrap()
}

/// How long a health check takes on a new connection.
async fn health_delay(source: &str, api: &Service) -> Duration {
    let began = Instant::now();
    let mut stream = connect_from(source, api).await;
    exchange(&mut stream, "/healthz", "").await;
    began.elapsed()
}

/// One request and its status line; the connection stays open.
async fn exchange(stream: &mut TcpStream, path: &str, header: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(LIMIT, stream.read_u8()).await.expect("a response").expect("an open connection"));
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    stream.read_exact(&mut vec![0; length.parse().unwrap()]).await.unwrap();
}

/// A check on an idle API takes a few milliseconds; with the slots taken it takes until `header_timeout`.
const LIMIT_OF_DELAY: Duration = Duration::from_secs(2);

/// Half-open connections of one address do not take the slots of others, not even on the same machine.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_half_open_connections_delay_no_health_check() {
    let stack = stack().start().await;
    let (key, _) = stack.api_key(&[]).await;
    let keyed = format!("authorization: Bearer {key}\r\n");
    // The defaults, and slots for a tenth of the connections.
    let small = stack.api().set("api.max_connections", 100).set("api.max_connections_per_address", 20);
    for api in [stack.start_api().await, small.start().await] {
        let mut ours = connect_from("127.0.0.1", &api).await;
        exchange(&mut ours, "/api/v1/tx", &keyed).await;
        let mut half_open = Vec::new();
        for n in 0..1_000 {
            let mut stream = connect_from("127.0.0.1", &api).await;
            // Some are silent, some send a part of a request; the server may have closed it by now.
            if n % 2 == 0 {
                let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-slow: ").await;
            }
            half_open.push(stream);
        }
        for source in ["127.0.0.1", "127.0.0.2"] {
            let delay = health_delay(source, &api).await;
            assert!(delay < LIMIT_OF_DELAY, "{delay:?} from {source}");
        }
        // Older than all of them, and still open: it has sent an authenticated request.
        exchange(&mut ours, "/api/v1/tx", &keyed).await;
        // Most were closed long before `header_timeout`: at most 100 stay for the address.
        eventually("only some are left", async || {
            let open = api.metric("gapless_api_connections", &[]).await;
            if open < 150.0 { Ok(()) } else { Err(open) }
        })
        .await;
        drop(half_open);
    }
    stack.finish().await;
}

/// The control: with a limit above the number of slots, half-open connections take all of them.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_limit_half_open_connections_delay_a_health_check() {
    let stack = stack().start().await;
    let api =
        stack.api().set("api.max_connections", 50).set("api.max_connections_per_address", 50).start().await;
    let mut half_open = Vec::new();
    for _ in 0..60 {
        half_open.push(connect_from("127.0.0.1", &api).await);
    }
    let check = timeout(LIMIT_OF_DELAY, health_delay("127.0.0.2", &api)).await;
    assert!(check.is_err(), "answered after {check:?}");
    drop(half_open);
    stack.finish().await;
}

/// Many clients behind one proxy have one address.
#[tokio::test(flavor = "multi_thread")]
async fn connections_of_one_address_that_authenticated_are_not_limited() {
    const PER_ADDRESS: usize = 5;
    let stack = stack().set("api.max_connections_per_address", PER_ADDRESS as u64).start().await;
    let without_keys = stack.start_api().await;
    // Without keys every accepted request counts as authenticated.
    keep_many_open(&without_keys, "").await;
    let (key, _) = stack.api_key(&[]).await;
    let with_keys = stack.start_api().await;
    keep_many_open(&with_keys, &format!("authorization: Bearer {key}\r\n")).await;

    // The control: connections that did not authenticate are limited, and the oldest are closed.
    let mut unauthenticated = Vec::new();
    for _ in 0..4 * PER_ADDRESS {
        let mut stream = connect_from("127.0.0.1", &with_keys).await;
        exchange(&mut stream, "/healthz", "").await;
        unauthenticated.push(stream);
    }
    let newest = unauthenticated.split_off(3 * PER_ADDRESS);
    for mut stream in unauthenticated {
        let read = timeout(LIMIT, stream.read(&mut [0])).await.expect("it is closed");
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    for mut stream in newest {
        exchange(&mut stream, "/healthz", "").await;
    }
    stack.finish().await;
}

async fn keep_many_open(api: &Service, header: &str) {
    let mut streams = Vec::new();
    for _ in 0..60 {
        let mut stream = connect_from("127.0.0.1", api).await;
        exchange(&mut stream, "/api/v1/tx", header).await;
        streams.push(stream);
    }
    // Longer than an excess connection would stay open.
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        for stream in &mut streams {
            exchange(stream, "/api/v1/tx", header).await;
        }
    }
}

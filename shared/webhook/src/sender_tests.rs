use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use uuid::Uuid;

use super::*;
use crate::address::RefusedReason;
use crate::secret::SigningSecret;
use crate::signature::sign;
use crate::test_server::{Answer, TestServer};

const BODY: &[u8] = b"{\"specversion\":\"1.0\"}";
/// Long enough that a busy machine sends the request within it.
const QUICK: Timeouts = Timeouts { connect: Duration::from_secs(5), total: Duration::from_secs(1) };

/// Answers of a name: each lookup takes the next one, the last one stays.
#[derive(Default)]
struct FakeLookup {
    names: HashMap<&'static str, Vec<Vec<IpAddr>>>,
    lookups: AtomicUsize,
}

impl FakeLookup {
    fn of(name: &'static str, answers: &[&[&str]]) -> Arc<FakeLookup> {
        let answer = |addresses: &&[&str]| addresses.iter().map(|text| text.parse().unwrap()).collect();
        let names = HashMap::from([(name, answers.iter().map(answer).collect())]);
        Arc::new(FakeLookup { names, lookups: AtomicUsize::new(0) })
    }
}

#[async_trait]
impl Lookup for FakeLookup {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let at = self.lookups.fetch_add(1, Ordering::SeqCst);
        let answers = self.names.get(name).ok_or(io::Error::other("no such name"))?;
        Ok(answers[at.min(answers.len() - 1)].clone())
    }
}

fn local() -> AddressPolicy {
    AddressPolicy::parse(&["127.0.0.1"]).unwrap()
}

fn local_sender() -> Sender {
    Sender::new(local(), Timeouts::default()).unwrap()
}

async fn deliver(sender: &Sender, url: &str) -> Outcome {
    sender.send(&TargetUrl::parse(url).unwrap(), HeaderMap::new(), BODY.to_vec()).await
}

/// What a sender with default timeouts makes of this answer.
async fn outcome_of(answer: Answer) -> Outcome {
    let server = TestServer::start(answer).await;
    let outcome = deliver(&local_sender(), &server.url("/")).await;
    assert_eq!(server.requests().len(), 1);
    outcome
}

#[tokio::test]
async fn a_delivery_has_the_body_the_given_headers_and_our_user_agent() {
    let server = TestServer::start(Answer::status(200, "", "ok")).await;
    let (secret, message) = (SigningSecret::generate().unwrap(), Uuid::new_v4());
    let mut headers = sign(message, SystemTime::now(), BODY, &secret, None);
    headers.insert("content-type", "application/cloudevents+json".parse().unwrap());
    let target = TargetUrl::parse(&server.url("/hooks/1?token=a%20b")).unwrap();
    let outcome = local_sender().send(&target, headers.clone(), BODY.to_vec()).await;
    assert_eq!(outcome, Outcome::Delivered { status: 200 });
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    let (head, body) = (&requests[0].head, &requests[0].body);
    assert!(head.starts_with("POST /hooks/1?token=a%20b HTTP/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("user-agent: gapless/{}\r\n", env!("CARGO_PKG_VERSION"))), "{head}");
    assert!(head.contains("content-type: application/cloudevents+json\r\n"), "{head}");
    assert!(head.contains(&format!("webhook-id: {message}\r\n")), "{head}");
    // What arrived is what the receiver verifies.
    standardwebhooks::Webhook::new(&secret.expose()).unwrap().verify(body, &headers).unwrap();
    for (name, value) in &headers {
        assert!(head.contains(&format!("{name}: {}\r\n", value.to_str().unwrap())), "{name} in {head}");
    }
}

#[tokio::test]
async fn the_status_of_the_response_is_the_outcome() {
    assert_eq!(outcome_of(Answer::status(204, "", "")).await, Outcome::Delivered { status: 204 });
    assert_eq!(outcome_of(Answer::status(410, "", "")).await, Outcome::Gone);
    let outcome = outcome_of(Answer::status(500, "retry-after: 7\r\n", "database is\ndown")).await;
    let text = "the receiver answered 500 Internal Server Error: database is down".to_owned();
    let retry_after = Some(Duration::from_secs(7));
    assert_eq!(outcome, Outcome::Failed { status: 500, retry_after, text });
}

#[tokio::test]
async fn a_redirect_is_a_failure_and_the_second_server_sees_nothing() {
    let second = TestServer::start(Answer::status(200, "", "")).await;
    for status in [301, 302, 303, 307, 308] {
        let location = format!("location: {}\r\n", second.url("/"));
        let outcome = outcome_of(Answer::status(status, &location, "")).await;
        assert!(matches!(outcome, Outcome::Failed { status: got, .. } if got == status), "{outcome:?}");
    }
    assert_eq!(second.connections(), 0);
}

#[tokio::test]
async fn a_receiver_that_does_not_respond_is_timed_out() {
    let server = TestServer::start(Answer::Hang).await;
    let sender = Sender::new(local(), QUICK).unwrap();
    let outcome = deliver(&sender, &server.url("/?token=hunter2")).await;
    assert_eq!(outcome, Outcome::TimedOut { after: QUICK.total });
    assert_eq!(outcome.to_string(), "the receiver did not respond within 1s");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_response_whose_body_does_not_end_counts_by_its_status() {
    let server = TestServer::start(Answer::HangInBody).await;
    let sender = Sender::new(local(), QUICK).unwrap();
    assert_eq!(deliver(&sender, &server.url("/")).await, Outcome::Delivered { status: 200 });
}

#[tokio::test]
async fn failed_connections_are_described_without_the_url() {
    let closing = TestServer::start(Answer::Close).await;
    let plain = TestServer::start(Answer::Text("not HTTP at all\r\n\r\n".into())).await;
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let sender = Sender::with_lookup(local(), Timeouts::default(), Arc::new(FakeLookup::default())).unwrap();
    for (base, expected) in [
        (closing.url(""), "connection closed before message completed"),
        (plain.url(""), "invalid HTTP"),
        (plain.url("").replace("http://", "https://"), "tls handshake eof"),
        (format!("http://{unused}"), "Connection refused"),
        ("http://absent.example".into(), "the name could not be resolved: no such name"),
    ] {
        let outcome = deliver(&sender, &format!("{base}/path-hunter2?token=hunter2")).await;
        assert!(matches!(outcome, Outcome::ConnectionFailed { .. }), "{base}: {outcome:?}");
        let printed = format!("{outcome} {outcome:?}");
        assert!(printed.contains(expected), "{base}: {printed}");
        assert!(!printed.contains("hunter2"), "{printed}");
    }
}

#[tokio::test]
async fn a_connection_that_is_not_accepted_in_time_fails() {
    struct NoAnswer;
    #[async_trait]
    impl Lookup for NoAnswer {
        async fn lookup(&self, _: &str) -> io::Result<Vec<IpAddr>> {
            std::future::pending().await
        }
    }
    let timeouts = Timeouts { connect: Duration::from_millis(100), ..Timeouts::default() };
    let sender = Sender::with_lookup(local(), timeouts, Arc::new(NoAnswer)).unwrap();
    let outcome = deliver(&sender, "http://slow.example/").await;
    assert_eq!(outcome, Outcome::ConnectionFailed { text: "no connection within 100ms".into() });
}

#[tokio::test]
async fn only_the_beginning_of_a_huge_body_is_read() {
    let huge = "x".repeat(64 << 20);
    let outcome = outcome_of(Answer::status(500, "", &huge)).await;
    assert!(outcome.to_string().len() < 300, "{} bytes", outcome.to_string().len());
    assert_eq!(outcome_of(Answer::status(200, "", &huge)).await, Outcome::Delivered { status: 200 });
}

/// The server sends one byte more than is read, and keeps the connection open.
#[tokio::test]
async fn a_body_beyond_the_limit_is_not_waited_for() {
    let sent = "x".repeat(MAX_BODY_BYTES + 1);
    let endless = Answer::Text(format!("HTTP/1.1 200 OK\r\ncontent-length: 999999999\r\n\r\n{sent}"));
    let server = TestServer::start(endless).await;
    let timeouts = Timeouts { total: Duration::from_secs(60), ..Timeouts::default() };
    let sender = Sender::new(local(), timeouts).unwrap();
    let url = server.url("/");
    let delivery = deliver(&sender, &url);
    let outcome = tokio::time::timeout(Duration::from_secs(30), delivery).await;
    assert_eq!(outcome, Ok(Outcome::Delivered { status: 200 }));
}

#[tokio::test]
async fn a_literal_address_is_refused_unless_it_is_allowed() {
    let server = TestServer::start(Answer::status(200, "", "")).await;
    let sender = Sender::new(AddressPolicy::default(), Timeouts::default()).unwrap();
    let port = server.address.port();
    for host in ["127.0.0.1", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "localhost"] {
        let outcome = deliver(&sender, &format!("http://{host}:{port}/")).await;
        let reason = RefusedReason::Loopback;
        assert!(matches!(outcome, Outcome::AddressRefused { reason: why, .. } if why == reason), "{host}");
    }
    assert_eq!(server.connections(), 0);
    assert!(matches!(deliver(&local_sender(), &server.url("/")).await, Outcome::Delivered { .. }));
}

#[tokio::test]
async fn a_name_is_refused_if_one_of_its_addresses_is() {
    let server = TestServer::start(Answer::status(200, "", "")).await;
    for (name, addresses, refused) in [
        ("127.0.0.1.nip.io", &["127.0.0.1"][..], "127.0.0.1"),
        ("mapped.example", &["::ffff:127.0.0.1"], "::ffff:127.0.0.1"),
        ("metadata.example", &["169.254.169.254"], "169.254.169.254"),
        ("both.example", &["93.184.215.14", "127.0.0.1"], "127.0.0.1"),
        ("three.example", &["93.184.215.14", "2606:4700::1111", "fd00::1"], "fd00::1"),
    ] {
        let lookup = FakeLookup::of(name, &[addresses]);
        let sender = Sender::with_lookup(AddressPolicy::default(), Timeouts::default(), lookup).unwrap();
        let outcome = deliver(&sender, &format!("http://{name}:{}/", server.address.port())).await;
        let refused: IpAddr = refused.parse().unwrap();
        let Outcome::AddressRefused { address, .. } = outcome else { panic!("{name}: {outcome:?}") };
        assert_eq!(address, refused, "{name}");
    }
    assert_eq!(server.connections(), 0);
    let nobody = FakeLookup::of("empty.example", &[&[]]);
    let sender = Sender::with_lookup(AddressPolicy::default(), Timeouts::default(), nobody).unwrap();
    let printed = deliver(&sender, "https://empty.example/").await.to_string();
    assert!(printed.ends_with("the name could not be resolved: the name has no address"), "{printed}");
}

/// The address that was checked is the one that is connected to: one lookup a connection, and each is checked.
#[tokio::test]
async fn a_name_that_changes_its_address_is_checked_again() {
    let server = TestServer::start(Answer::status(200, "connection: close\r\n", "")).await;
    let lookup = FakeLookup::of("rebound.example", &[&["127.0.0.1"], &["127.0.0.2"]]);
    let sender = Sender::with_lookup(local(), Timeouts::default(), lookup.clone()).unwrap();
    let url = format!("http://rebound.example:{}/", server.address.port());
    assert_eq!(deliver(&sender, &url).await, Outcome::Delivered { status: 200 });
    assert_eq!(lookup.lookups.load(Ordering::SeqCst), 1);
    let outcome = deliver(&sender, &url).await;
    let expected = RefusedAddress { address: "127.0.0.2".parse().unwrap(), reason: RefusedReason::Loopback };
    assert_eq!(outcome, expected.into());
    assert_eq!(
        outcome.to_string(),
        "the receiver's address 127.0.0.2 is refused: loopback address, not in events.webhook.allow"
    );
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    let host = format!("host: rebound.example:{}\r\n", server.address.port());
    assert!(requests[0].head.contains(&host), "{}", requests[0].head);
}

#[tokio::test]
async fn a_connection_is_used_again_and_a_clone_shares_it() {
    let server = TestServer::start(Answer::status(200, "", &"x".repeat(MAX_BODY_BYTES))).await;
    let lookup = FakeLookup::of("receiver.example", &[&["127.0.0.1"]]);
    let sender = Sender::with_lookup(local(), Timeouts::default(), lookup.clone()).unwrap();
    for _ in 0..5 {
        let url = format!("http://receiver.example:{}/", server.address.port());
        assert_eq!(deliver(&sender.clone(), &url).await, Outcome::Delivered { status: 200 });
    }
    assert_eq!((server.connections(), server.requests().len()), (1, 5));
    assert_eq!(lookup.lookups.load(Ordering::SeqCst), 1);
}

#[test]
fn debug_output_has_the_policy_and_the_timeouts() {
    let printed = format!("{:?}", local_sender());
    assert!(printed.contains("127.0.0.1/32") && printed.contains("15s"), "{printed}");
}

/// The environment of a process cannot be changed safely, so that this test starts itself in another one.
#[tokio::test]
async fn a_proxy_of_the_environment_is_ignored() {
    const NAME: &str = "sender::tests::a_proxy_of_the_environment_is_ignored";
    const IS_CHILD: &str = "GAPLESS_TEST_PROXY_CHILD";
    if std::env::var_os(IS_CHILD).is_some() {
        let server = TestServer::start(Answer::status(200, "", "")).await;
        assert_eq!(deliver(&local_sender(), &server.url("/")).await, Outcome::Delivered { status: 200 });
        // Another client uses the proxy, which shows that the variables are right.
        let answer = client_builder().build().unwrap().get(server.url("/control")).send().await.unwrap();
        assert_eq!(answer.status(), 502);
        return;
    }
    let proxy = TestServer::start(Answer::status(502, "", "")).await;
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", NAME, "--nocapture"]).env(IS_CHILD, "1").kill_on_drop(true);
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        child.env(name, proxy.url(""));
    }
    // They would disable the proxy.
    for name in ["NO_PROXY", "no_proxy", "REQUEST_METHOD"] {
        child.env_remove(name);
    }
    let output = child.output().await.unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
    let requests = proxy.requests();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].head.contains("/control"), "{}", requests[0].head);
}

//! The listeners of API and worker: who answers on their ports, who may use the API, and its certificate.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use gapless_config::{ApiTls, Config};
use gapless_http::TlsFiles;
use gapless_http_client::client_builder;
use reqwest::StatusCode;
use serde_json::Value;
use tokio::net::TcpListener;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::REQUEST_LIMIT;
use super::report::{Area, Check, Subject};

/// A certificate that expires within this time is reported.
const EXPIRES_SOON_DAYS: i64 = 14;
const DAY_SECONDS: i64 = 24 * 60 * 60;

pub(super) async fn check(config: &Config, has_api_keys: Option<bool>) -> Vec<Check> {
    let scheme = if config.api.tls.is_some() { "https" } else { "http" };
    let api = port("api.bind", config.api.bind, scheme, api_answer);
    let worker = async {
        match config.worker.metrics_bind {
            Some(bind) => port("worker.metrics_bind", bind, "http", worker_answer).await,
            None => Subject::new(Area::Listeners, "worker.metrics_bind")
                .not_checked("port", "not set: the worker serves neither metrics nor readiness"),
        }
    };
    let certificate = async {
        match &config.api.tls {
            Some(tls) => Some(certificate(tls).await),
            None => None,
        }
    };
    let (api, worker, certificate) = tokio::join!(api, worker, certificate);
    let keys = api_keys(config.api.bind, has_api_keys);
    [Some(api), keys, Some(worker), certificate].into_iter().flatten().collect()
}

/// On an address other than loopback the API does not start without a key. `None` for loopback.
fn api_keys(bind: SocketAddr, exist: Option<bool>) -> Option<Check> {
    const NAME: &str = "api keys";
    let subject = Subject::new(Area::Listeners, format!("api.bind ({bind})"));
    (!bind.ip().is_loopback()).then(|| match exist {
        Some(true) => subject.ok(NAME, "clients need a key"),
        Some(false) => subject.problem(
            NAME,
            "other machines can connect and no API key exists: the API does not start",
            "create a key with `gapless api-keys create --name NAME`, or listen on 127.0.0.1",
        ),
        None => subject.not_checked(NAME, "the keys could not be read from the database"),
    })
}

/// What a program said on its port.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Ready,
    NotReady(String),
    /// Not an answer of Gapless.
    OtherProgram,
}

async fn port(
    key: &'static str,
    bind: SocketAddr,
    scheme: &str,
    read: impl Fn(StatusCode, &Value) -> Answer,
) -> Check {
    let subject = Subject::new(Area::Listeners, format!("{key} ({bind})"));
    if bind.port() == 0 {
        return subject.not_checked("port", "any free port: it is in the log of the program");
    }
    let address = reachable(bind);
    match ask(&format!("{scheme}://{address}/readyz")).await {
        Asked::Answered(status, body) => answered(&subject, key, read(status, &body)),
        Asked::NotHttp(why) => taken(&subject, key, &why),
        Asked::Late => subject.problem(
            "port",
            format!("what listens there did not answer within {REQUEST_LIMIT:?}"),
            "look at the log of the program, and restart it",
        ),
        Asked::NoConnection => free(&subject, key, TcpListener::bind(bind).await.map(drop)),
    }
}

/// The address to connect to: a listener on all addresses is also on the loopback address.
fn reachable(bind: SocketAddr) -> SocketAddr {
    let ip = match bind.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        other => other,
    };
    SocketAddr::new(ip, bind.port())
}

enum Asked {
    Answered(StatusCode, Value),
    NotHttp(String),
    Late,
    NoConnection,
}

/// The certificate is not verified: it is checked as a file, and its names need not contain the loopback address.
async fn ask(url: &str) -> Asked {
    let client = client_builder().timeout(REQUEST_LIMIT).no_proxy().danger_accept_invalid_certs(true).build();
    let client = match client {
        Ok(client) => client,
        Err(error) => return Asked::NotHttp(error.without_url().to_string()),
    };
    let response = match client.get(url).send().await {
        Ok(response) => response,
        Err(error) if error.is_timeout() => return Asked::Late,
        Err(error) if refused(&error) => return Asked::NoConnection,
        Err(error) => return Asked::NotHttp(innermost(&error.without_url())),
    };
    let status = response.status();
    Asked::Answered(status, response.json().await.unwrap_or(Value::Null))
}

/// Whether no connection was made, as opposed to one that failed later, for example in the TLS handshake.
fn refused(error: &reqwest::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            let unreachable = [
                ErrorKind::ConnectionRefused,
                ErrorKind::AddrNotAvailable,
                ErrorKind::HostUnreachable,
                ErrorKind::NetworkUnreachable,
            ];
            if unreachable.contains(&io.kind()) {
                return true;
            }
        }
        cause = inner.source();
    }
    false
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

fn answered(subject: &Subject, key: &str, answer: Answer) -> Check {
    match answer {
        Answer::Ready => subject.ok("port", "the program answers and is ready"),
        Answer::NotReady(why) => subject.problem(
            "port",
            format!("the program is not ready: {why}"),
            "correct what the other areas report; the program's log has the details",
        ),
        Answer::OtherProgram => taken(subject, key, "its answer is not one of Gapless"),
    }
}

fn taken(subject: &Subject, key: &str, why: &str) -> Check {
    subject.problem(
        "port",
        format!("another program uses the port ({why})"),
        format!("stop that program, or choose another port for {key}"),
    )
}

/// Nothing listens: the program is not running here. Whether it could listen is shown by `bound`.
fn free(subject: &Subject, key: &str, bound: std::io::Result<()>) -> Check {
    match bound {
        Ok(()) => subject.warning(
            "port",
            "nothing listens there: the program is not running on this machine",
            "start it; nothing to do if it runs on another machine",
        ),
        Err(error) if error.kind() == ErrorKind::AddrInUse => taken(subject, key, "it is in use"),
        Err(error) => subject.problem(
            "port",
            format!("a program could not listen there: {error}"),
            format!("choose an address of this machine and a port that the program may use for {key}"),
        ),
    }
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

fn api_answer(status: StatusCode, body: &Value) -> Answer {
    if status == StatusCode::OK && body["status"] == "ok" {
        return Answer::Ready;
    }
    // A problem document of the API.
    let is_ours = body["type"].as_str().is_some_and(|kind| kind.starts_with("urn:gapless:"));
    match status == StatusCode::SERVICE_UNAVAILABLE && is_ours {
        true => {
            let missing = texts(&body["missing"]);
            let detail = body["detail"].as_str().unwrap_or("no reason given").to_owned();
            Answer::NotReady(if missing.is_empty() { detail } else { missing.join(", ") })
        }
        false => Answer::OtherProgram,
    }
}

/// The worker counts its reasons; other areas of the report, and its log, have the details.
fn worker_answer(_: StatusCode, body: &Value) -> Answer {
    let reasons = body["reasons"].as_object().into_iter().flatten();
    let problems: Vec<String> = reasons.map(|(reason, count)| format!("{reason} ({count})")).collect();
    match body["ready"].as_bool() {
        Some(true) if problems.is_empty() => Answer::Ready,
        Some(_) => Answer::NotReady(problems.join(", ")),
        None => Answer::OtherProgram,
    }
}

async fn certificate(tls: &ApiTls) -> Check {
    let subject = Subject::new(Area::Listeners, format!("api.tls ({})", tls.cert.display()));
    let files = TlsFiles { cert: tls.cert.clone(), key: tls.key.clone(), section: "api.tls", server: "API" };
    let chain = match files.certificates().await {
        Ok(chain) => chain,
        Err(error) => {
            let advice = "correct the two files of api.tls; the API does not start with them";
            // The cause of an unreadable file helps; that of the TLS library does not.
            let message = match error.root_cause().is::<std::io::Error>() {
                true => format!("{error:#}"),
                false => error.to_string(),
            };
            return subject.problem("certificate", message, advice);
        }
    };
    let now = chrono::Utc::now().timestamp();
    // The one that expires first: the server's own, or one of its chain.
    let checks = chain.iter().map(|der| match X509Certificate::from_der(der) {
        Ok((_, read)) => {
            let validity = read.validity();
            (validity.not_before.timestamp(), validity.not_after.timestamp())
        }
        Err(_) => (i64::MIN, i64::MIN),
    });
    let (not_before, not_after) =
        checks.fold((i64::MIN, i64::MAX), |(from, to), (start, end)| (from.max(start), to.min(end)));
    validity(&subject, now, not_before, not_after)
}

/// Times in seconds since 1970.
fn validity(subject: &Subject, now: i64, not_before: i64, not_after: i64) -> Check {
    const NAME: &str = "certificate";
    let renew = "renew it; the API reloads the files by itself";
    let date = |time: i64| {
        chrono::DateTime::from_timestamp(time, 0).map_or("unknown".to_owned(), |time| time.to_rfc3339())
    };
    if not_after < now {
        return subject.problem(NAME, format!("expired on {}", date(not_after)), renew);
    }
    if not_before > now {
        let message = format!("not valid before {}", date(not_before));
        return subject.problem(
            NAME,
            message,
            "correct the clock of this machine, or use another certificate",
        );
    }
    let days = (not_after - now) / DAY_SECONDS;
    if days < EXPIRES_SOON_DAYS {
        return subject.warning(NAME, format!("expires in {days} days, on {}", date(not_after)), renew);
    }
    subject.ok(NAME, format!("matches its key and is valid until {}", date(not_after)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::report::Outcome;
    use super::*;

    fn subject() -> Subject {
        Subject::new(Area::Listeners, "l")
    }

    #[test]
    fn a_certificate_is_reported_when_it_expires_within_two_weeks() {
        let outcome =
            |now: i64| validity(&subject(), now * DAY_SECONDS, DAY_SECONDS, 100 * DAY_SECONDS).outcome;
        assert_eq!(outcome(0), Outcome::Problem, "not valid yet");
        assert_eq!(outcome(50), Outcome::Ok);
        assert_eq!(outcome(86), Outcome::Ok);
        assert_eq!(outcome(87), Outcome::Warning);
        assert_eq!(outcome(101), Outcome::Problem);
    }

    #[test]
    fn programs_are_told_apart_by_their_answers() {
        let (ok, busy) = (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(api_answer(ok, &json!({ "status": "ok" })), Answer::Ready);
        let problem = json!({ "type": "urn:gapless:problem:not_ready", "missing": ["schema"] });
        assert_eq!(api_answer(busy, &problem), Answer::NotReady("schema".into()));
        assert_eq!(
            api_answer(ok, &json!({ "ready": true })),
            Answer::OtherProgram,
            "a worker is not the API"
        );
        assert_eq!(api_answer(busy, &Value::Null), Answer::OtherProgram);
        let ready = json!({ "ready": true, "reasons": {} });
        assert_eq!(worker_answer(ok, &ready), Answer::Ready);
        let without_key = json!({ "ready": true, "reasons": { "signer": 1 } });
        assert_eq!(worker_answer(ok, &without_key), Answer::NotReady("signer (1)".into()));
        assert_eq!(worker_answer(ok, &json!({ "status": "ok" })), Answer::OtherProgram);
    }

    #[test]
    fn an_api_that_other_machines_reach_needs_a_key() {
        let outcome = |bind: &str, exist| api_keys(bind.parse().unwrap(), exist).map(|check| check.outcome);
        assert_eq!(outcome("127.0.0.1:80", Some(false)), None);
        assert_eq!(outcome("0.0.0.0:80", Some(false)), Some(Outcome::Problem));
        assert_eq!(outcome("0.0.0.0:80", Some(true)), Some(Outcome::Ok));
        assert_eq!(outcome("[::]:80", None), Some(Outcome::NotChecked));
    }

    #[test]
    fn a_listener_on_all_addresses_is_asked_on_loopback() {
        let asked = |bind: &str| reachable(bind.parse().unwrap()).to_string();
        assert_eq!(asked("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(asked("[::]:80"), "[::1]:80");
        assert_eq!(asked("10.0.0.1:80"), "10.0.0.1:80");
    }

    #[tokio::test]
    async fn an_unused_port_is_no_problem_and_a_silent_program_is() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bind = listener.local_addr().unwrap();
        // Accepts nothing, so that a request gets no answer.
        let silent = port("api.bind", bind, "http", api_answer).await;
        assert_eq!(silent.outcome, Outcome::Problem, "{silent:?}");
        drop(listener);
        let unused = port("api.bind", bind, "http", api_answer).await;
        assert_eq!(unused.outcome, Outcome::Warning, "{unused:?}");
    }

    #[tokio::test]
    async fn files_that_do_not_match_are_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let make = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (one, other) = (make(), make());
        let tls = ApiTls { cert: dir.path().join("c"), key: dir.path().join("k") };
        assert_eq!(certificate(&tls).await.outcome, Outcome::Problem, "missing files");
        std::fs::write(&tls.cert, one.cert.pem()).unwrap();
        std::fs::write(&tls.key, other.signing_key.serialize_pem()).unwrap();
        assert_eq!(certificate(&tls).await.outcome, Outcome::Problem);
        std::fs::write(&tls.key, one.signing_key.serialize_pem()).unwrap();
        assert_eq!(certificate(&tls).await.outcome, Outcome::Ok);
    }
}

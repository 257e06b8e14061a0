//! A receiver of webhooks: an HTTP server that keeps every request and responds as the test says. Its port stays the same
//! when it is stopped and started again.

mod received;

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gapless_localnet::Port;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

pub use self::received::{Received, Unverified, first_arrivals, ids_of};
use crate::eventually::{LIMIT, eventually_within};
use crate::plain_http;
use crate::submitter::Submitter;

/// Requests that a timeout reports, the latest ones.
const SHOWN: usize = 30;

/// How a request is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status without further headers.
    Status(u16),
    /// A status and one header.
    WithHeader(u16, &'static str, String),
    /// 200, this much later.
    Delayed(Duration),
    /// Reads the request and never responds.
    Hang,
    /// Reads the request and closes the connection.
    Close,
}

impl Reply {
    /// 302 to this URL.
    pub fn redirect(location: &str) -> Reply {
        Reply::WithHeader(302, "location", location.to_owned())
    }

    /// 429 with `Retry-After`.
    pub fn retry_after(seconds: u32) -> Reply {
        Reply::WithHeader(429, "retry-after", seconds.to_string())
    }

    /// The status that the sender gets; `None` if it gets no response.
    fn status(&self) -> Option<u16> {
        match self {
            Reply::Status(status) | Reply::WithHeader(status, ..) => Some(*status),
            Reply::Delayed(_) => Some(200),
            Reply::Hang | Reply::Close => None,
        }
    }
}

#[derive(Debug)]
struct State {
    /// For the next requests, one each, before all other rules.
    next: VecDeque<Reply>,
    /// The same for the next requests of a submitter, by address.
    next_of: BTreeMap<String, VecDeque<Reply>>,
    /// By address.
    of_submitters: BTreeMap<String, Reply>,
    otherwise: Reply,
    received: Vec<Arc<Received>>,
}

impl State {
    fn reply(&mut self, submitter: Option<&str>) -> Reply {
        let submitter = submitter.unwrap_or_default();
        if let Some(reply) = self.next.pop_front() {
            return reply;
        }
        if let Some(reply) = self.next_of.get_mut(submitter).and_then(VecDeque::pop_front) {
            return reply;
        }
        self.of_submitters.get(submitter).unwrap_or(&self.otherwise).clone()
    }
}

#[derive(Debug)]
pub struct WebhookReceiver {
    /// Reserved also while it is stopped.
    port: Port,
    state: Arc<Mutex<State>>,
    /// `None` while it is stopped.
    serving: Option<JoinHandle<()>>,
}

impl Drop for WebhookReceiver {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}

/// The server and its responses.
impl WebhookReceiver {
    /// Responds with 200 at first.
    pub async fn start() -> WebhookReceiver {
        let state = State {
            next: VecDeque::new(),
            next_of: BTreeMap::new(),
            of_submitters: BTreeMap::new(),
            otherwise: Reply::Status(200),
            received: Vec::new(),
        };
        let port = Port::claim().expect("a free port");
        let mut receiver = WebhookReceiver { port, state: Arc::new(Mutex::new(state)), serving: None };
        receiver.restart().await;
        receiver
    }

    /// Closes all connections and refuses new ones.
    pub async fn stop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            // The end of the task: only then is the port free.
            let _ = serving.await;
        }
    }

    /// Listens on the same port again. It has what it received before.
    pub async fn restart(&mut self) {
        self.stop().await;
        let address = (Ipv4Addr::LOCALHOST, self.port.number());
        let listener = TcpListener::bind(address).await.expect("the reserved port is free");
        self.serving = Some(tokio::spawn(serve(listener, self.state.clone())));
    }

    pub fn url(&self) -> String {
        self.url_at("127.0.0.1")
    }

    /// The URL with another name of this machine.
    pub fn url_at(&self, host: &str) -> String {
        format!("http://{host}:{}/events", self.port.number())
    }

    /// For all requests from now on that no other rule matches.
    pub fn set_reply(&self, reply: Reply) {
        self.state.lock().otherwise = reply;
    }

    /// For the events of one submitter (`data.submitter`) from now on; `None`: like all others again.
    pub fn set_reply_of(&self, submitter: &Submitter, reply: Option<Reply>) {
        let mut state = self.state.lock();
        match reply {
            Some(reply) => state.of_submitters.insert(submitter.text(), reply),
            None => state.of_submitters.remove(&submitter.text()),
        };
    }

    /// For the next `count` requests, whatever they are.
    pub fn reply_to_next(&self, count: usize, reply: Reply) {
        self.state.lock().next.extend(std::iter::repeat_n(reply, count));
    }

    /// For the next `count` events of one submitter.
    pub fn reply_to_next_of(&self, submitter: &Submitter, count: usize, reply: Reply) {
        let mut state = self.state.lock();
        state.next_of.entry(submitter.text()).or_default().extend(std::iter::repeat_n(reply, count));
    }
}

/// What was received.
impl WebhookReceiver {
    /// All requests, in the order of their arrival.
    pub fn received(&self) -> Vec<Arc<Received>> {
        self.state.lock().received.clone()
    }

    /// Number of requests so far.
    pub fn count(&self) -> usize {
        self.state.lock().received.len()
    }

    /// Waits until all requests so far satisfy a condition, and returns them.
    pub async fn wait_for(
        &self,
        what: &str,
        condition: impl Fn(&[Arc<Received>]) -> bool,
    ) -> Vec<Arc<Received>> {
        self.wait_within(LIMIT, what, condition).await
    }

    pub async fn wait_within(
        &self,
        limit: Duration,
        what: &str,
        condition: impl Fn(&[Arc<Received>]) -> bool,
    ) -> Vec<Arc<Received>> {
        eventually_within(limit, &format!("the receiver has {what}"), async || {
            let received = self.received();
            if condition(&received) {
                return Ok(received);
            }
            let latest = received.iter().skip(received.len().saturating_sub(SHOWN));
            Err((received.len(), latest.map(|one| one.summary()).collect::<Vec<_>>()))
        })
        .await
    }

    /// Waits until all these events were accepted with 2xx.
    pub async fn wait_accepted(&self, ids: &[String]) -> Vec<Arc<Received>> {
        self.wait_for(&format!("accepted {} events", ids.len()), |received| {
            ids.iter().all(|id| received.iter().any(|one| one.is_accepted() && one.id() == id))
        })
        .await
    }
}

/// Ends with its task, and then all connections end.
async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(connection(stream, state.clone()))),
                Err(_) => return,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// `None`: the connection has ended.
async fn connection(stream: TcpStream, state: Arc<Mutex<State>>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let request = plain_http::request(&mut stream).await?;
        let reply = {
            let mut state = state.lock();
            let mut received = Received::new(request, Instant::now());
            let reply = state.reply(received.submitter());
            received.status = reply.status();
            state.received.push(Arc::new(received));
            reply
        };
        let (status, header) = match reply {
            Reply::Status(status) => (status, String::new()),
            Reply::WithHeader(status, name, value) => (status, format!("{name}: {value}\r\n")),
            Reply::Delayed(delay) => {
                tokio::time::sleep(delay).await;
                (200, String::new())
            }
            // Reads until the sender closes the connection.
            Reply::Hang => return stream.read_to_end(&mut Vec::new()).await.ok().map(drop),
            Reply::Close => return None,
        };
        let length = if status == 204 { "" } else { "content-length: 0\r\n" };
        let head = format!("HTTP/1.1 {status} Reply\r\n{header}{length}\r\n");
        stream.write_all(head.as_bytes()).await.ok()?;
    }
}

#[cfg(test)]
mod tests;

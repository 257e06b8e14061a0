//! PostgreSQL behind a connection pooler: a built-in one, and PgBouncer if it is installed. In transaction mode the
//! built-in pooler has one server session for all clients and reassigns it after each transaction.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gapless_localnet::{Account, Launch, Port, Process};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinHandle;

use crate::eventually::eventually;

const SSL_REQUEST: i32 = 80_877_103;
const PROTOCOL_3_0: i32 = 196_608;
const BINARIES: [&str; 2] = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"];

/// How unknown start-up parameters are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    Refused,
    Ignored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One server session for all clients.
    Transaction,
    /// One server session per client.
    Session,
}

/// Stops when dropped.
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    _runs: Runs,
}

#[derive(Debug)]
#[allow(dead_code)] // stored, so that they stop when dropped
enum Runs {
    Here(Ended),
    Bouncer(Box<Process>, Port, TempDir),
}

#[derive(Debug)]
struct Ended(JoinHandle<()>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Pooler {
    /// The built-in pooler, in front of the server of this URL.
    pub async fn start(url: &str, mode: Mode, unknown: Unknown) -> Pooler {
        let (server_port, database) = parts(url);
        let server = Arc::new(Mutex::new(connect(server_port, &database).await.expect("a session")));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = match mode {
                    Mode::Transaction => server.clone(),
                    Mode::Session => match connect(server_port, &database).await {
                        Ok(own) => Arc::new(Mutex::new(own)),
                        Err(_) => continue,
                    },
                };
                tokio::spawn(serve_client(client, server, unknown, (server_port, database.clone())));
            }
        });
        Pooler { port, _runs: Runs::Here(Ended(serving)) }
    }

    /// PgBouncer in transaction mode; `None` if it is not installed.
    pub async fn pgbouncer(url: &str, unknown: Unknown) -> Option<Pooler> {
        let program = BINARIES.iter().map(PathBuf::from).find(|path| path.is_file())?;
        let (server_port, _) = parts(url);
        let (port, dir, account) =
            (Port::claim().unwrap(), tempfile::tempdir().unwrap(), Account::for_servers());
        let account = account.unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let ignored = match unknown {
            Unknown::Refused => "extra_float_digits",
            Unknown::Ignored => "extra_float_digits,options",
        };
        let ini = format!(
            "[databases]\n* = host=127.0.0.1 port={server_port} user=gapless\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
             ignore_startup_parameters = {ignored}\n",
            port.number()
        );
        let file = dir.path().join("pgbouncer.ini");
        std::fs::write(&file, ini).unwrap();
        account.map_or(Ok(()), |account| account.own(dir.path())).unwrap();
        let log = dir.path().join("pgbouncer.log");
        let mut launch = Launch::new("PgBouncer", program, log).args([text(&file)]);
        launch.account = account;
        let process = launch.spawn().unwrap();
        eventually("PgBouncer listens", async || TcpStream::connect(("127.0.0.1", port.number())).await)
            .await;
        Some(Pooler { port: port.number(), _runs: Runs::Bouncer(Box::new(process), port, dir) })
    }

    /// The same database, through the pooler.
    pub fn url(&self, url: &str) -> String {
        let (port, _) = parts(url);
        url.replace(&format!(":{port}/"), &format!(":{}/", self.port))
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("a UTF-8 path").to_owned()
}

/// Port and database of `postgres://gapless@127.0.0.1:PORT/DATABASE`.
fn parts(url: &str) -> (u16, String) {
    let (front, database) = url.rsplit_once('/').expect("a database");
    let (_, port) = front.rsplit_once(':').expect("a port");
    (port.parse().expect("a number"), database.to_owned())
}

/// A server session, ready for a transaction.
async fn connect(port: u16, database: &str) -> io::Result<TcpStream> {
    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
    let body: String =
        ["user", "gapless", "database", database].map(|word| format!("{word}\0")).concat() + "\0";
    server.write_i32(body.len() as i32 + 8).await?;
    server.write_i32(PROTOCOL_3_0).await?;
    server.write_all(body.as_bytes()).await?;
    while frame(&mut server).await?.0 != b'Z' {}
    Ok(server)
}

type Session = Option<OwnedMutexGuard<TcpStream>>;

/// Serves one client. A session with an unfinished transaction is replaced by a new one.
async fn serve_client(
    mut client: TcpStream,
    server: Arc<Mutex<TcpStream>>,
    unknown: Unknown,
    (port, database): (u16, String),
) {
    let mut session = None;
    if matches!(greet(&mut client, unknown).await, Ok(true)) {
        let _ = serve(&mut client, &server, &mut session).await;
    }
    if let Some(mut left) = session
        && let Ok(fresh) = connect(port, &database).await
    {
        *left = fresh;
    }
}

async fn serve(
    client: &mut TcpStream,
    server: &Arc<Mutex<TcpStream>>,
    session: &mut Session,
) -> io::Result<()> {
    loop {
        let (kind, body) = frame(client).await?;
        if kind == b'X' {
            return Ok(());
        }
        if session.is_none() {
            *session = Some(server.clone().lock_owned().await);
        }
        let Some(current) = session.as_deref_mut() else { continue };
        send(current, kind, &body).await?;
        // Query or Sync: the server responds until ReadyForQuery.
        if matches!(kind, b'Q' | b'S') && answered(current, client).await? {
            *session = None;
        }
    }
}

/// Forwards messages of the server up to ReadyForQuery. True: no transaction is open.
async fn answered(server: &mut TcpStream, client: &mut TcpStream) -> io::Result<bool> {
    loop {
        let (kind, body) = frame(server).await?;
        send(client, kind, &body).await?;
        if kind == b'Z' {
            return Ok(body == b"I");
        }
    }
}

/// The start-up exchange. False: the client was rejected.
async fn greet(client: &mut TcpStream, unknown: Unknown) -> io::Result<bool> {
    loop {
        let length = client.read_i32().await?;
        let code = client.read_i32().await?;
        let mut body = vec![0; usize::try_from(length - 8).map_err(io::Error::other)?];
        client.read_exact(&mut body).await?;
        if code == SSL_REQUEST {
            client.write_all(b"N").await?;
            continue;
        }
        let asks = body.split(|byte| *byte == 0).step_by(2).any(|name| name == b"options");
        if asks && unknown == Unknown::Refused {
            let refusal = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0";
            send(client, b'E', refusal).await?;
            return Ok(false);
        }
        send(client, b'R', &0_i32.to_be_bytes()).await?;
        send(client, b'S', b"server_version\x0015.0\0").await?;
        send(client, b'K', &[0; 8]).await?;
        send(client, b'Z', b"I").await?;
        return Ok(true);
    }
}

async fn frame(stream: &mut TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let kind = stream.read_u8().await?;
    let length = stream.read_i32().await?;
    let mut body = vec![0; usize::try_from(length - 4).map_err(io::Error::other)?];
    stream.read_exact(&mut body).await?;
    Ok((kind, body))
}

async fn send(stream: &mut TcpStream, kind: u8, body: &[u8]) -> io::Result<()> {
    let mut message = vec![kind];
    message.extend((body.len() as i32 + 4).to_be_bytes());
    message.extend(body);
    stream.write_all(&message).await
}

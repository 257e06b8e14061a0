//! A TCP proxy that can be switched off: it closes existing connections and drops new ones.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Debug)]
pub(super) struct ConnectionSwitch {
    url: String,
    open: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Drop for ConnectionSwitch {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl ConnectionSwitch {
    /// `behind`: host and port of the server.
    pub(super) async fn start(behind: String) -> ConnectionSwitch {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("a bound socket has an address"));
        let (open, seen) = watch::channel(true);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass(stream, behind.clone(), seen.clone()));
            }
        });
        ConnectionSwitch { url, open, serving }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn set_open(&self, open: bool) {
        self.open.send_replace(open);
    }
}

async fn pass(mut stream: TcpStream, behind: String, mut open: watch::Receiver<bool>) {
    if !*open.borrow() {
        return;
    }
    let Ok(mut server) = TcpStream::connect(behind).await else { return };
    tokio::select! {
        _ = open.wait_for(|open| !open) => {}
        _ = copy_bidirectional(&mut stream, &mut server) => {}
    }
}

//! A TCP proxy whose target can be switched, like a virtual IP address at a failover.

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Stops when dropped.
#[derive(Debug)]
pub struct Switch {
    port: u16,
    target: watch::Sender<u16>,
    serving: JoinHandle<()>,
}

impl Switch {
    pub async fn to(port: u16) -> Switch {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let own = listener.local_addr().expect("an address").port();
        let (target, targets) = watch::channel(port);
        Switch { port: own, target, serving: tokio::spawn(serve(listener, targets)) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Switches to another port and closes existing connections.
    pub fn turn_to(&self, port: u16) {
        self.target.send_replace(port);
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, targets: watch::Receiver<u16>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let mut targets = targets.clone();
        tokio::spawn(async move {
            let port = *targets.borrow_and_update();
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                _ = targets.changed() => {}
            }
        });
    }
}

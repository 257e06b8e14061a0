//! Shutdown signals.

use tokio_util::sync::CancellationToken;

/// A token that is cancelled by SIGTERM or Ctrl-C. Must be called within a runtime.
pub fn stop_signal() -> CancellationToken {
    use tokio::signal::unix::{SignalKind, signal};
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        let terminate = async {
            match signal(SignalKind::terminate()) {
                Ok(mut signals) => {
                    signals.recv().await;
                }
                Err(error) => {
                    tracing::error!(error = %error, "could not install the SIGTERM handler");
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            () = terminate => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        tracing::info!("shutdown signal received");
        stop.cancel();
    });
    token
}

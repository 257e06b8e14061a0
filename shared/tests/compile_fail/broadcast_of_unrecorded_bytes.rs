use gapless::chain::ChainConnector;
use gapless::domain::SignedDraft;

async fn send(chain: &dyn ChainConnector, draft: &SignedDraft) {
    let _ = chain.broadcast(draft).await;
}

fn main() {}

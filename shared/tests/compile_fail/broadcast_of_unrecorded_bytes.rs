// error: E0308 mismatched types
use gapless::chain::ChainConnector;
use gapless::domain::SignedDraft;
use gapless::store::Attempt;

pub async fn send(chain: &dyn ChainConnector, draft: &SignedDraft, attempt: &Attempt) {
    // right: let _ = chain.broadcast(attempt).await;
    let _ = chain.broadcast(draft).await;
}

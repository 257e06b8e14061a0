// error: E0308 mismatched types
use gapless_chain::ChainConnector;
use gapless_domain::SignedDraft;
use gapless_store::Attempt;

pub async fn send(chain: &dyn ChainConnector, draft: &SignedDraft, attempt: &Attempt) {
    // right: let _ = chain.broadcast(attempt).await;
    let _ = chain.broadcast(draft).await;
}

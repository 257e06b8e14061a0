// error: cannot construct `Attempt` with struct literal syntax due to private fields
use gapless_domain::SignedDraft;
use gapless_store::Attempt;

pub fn forge(draft: SignedDraft, recorded: Attempt) -> Attempt {
    // right: recorded
    Attempt { raw: draft.raw }
}

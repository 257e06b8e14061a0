use gapless::domain::SignedDraft;
use gapless::store::Attempt;

fn forge(draft: SignedDraft) -> Attempt {
    Attempt { raw: draft.raw }
}

fn main() {}

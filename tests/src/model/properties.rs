//! What must hold in every state, and what must be possible in some: a model in which nothing happens proves nothing.

use stateright::Property;

use super::{Intent, Model, State, Step};

pub const ONE_EFFECT: &str = "no intent has two effects";
pub(super) const NO_GAP: &str = "every nonce below the cursor has bytes, and none above it";
pub(super) const ONE_OWNER: &str = "no nonce belongs to two intents, and no intent to two nonces";
pub const RECORDED_BEFORE_SENT: &str = "nothing is on chain or in a pool that is not recorded";
pub(super) const TOKENS_RISE: &str = "tokens never fall along nonces";
pub const NO_STALE_WRITE: &str = "nobody writes who is not the owner";
/// Each is broken in some state, or in none.
pub const SAFETY: &[&str] =
    &[ONE_EFFECT, NO_GAP, ONE_OWNER, RECORDED_BEFORE_SENT, TOKENS_RISE, NO_STALE_WRITE];

pub(super) const ALL_CONFIRMED: &str = "everything is confirmed";
pub(super) const CONFIRMED_BY_A_SUCCESSOR: &str =
    "everything is confirmed, each intent by another owner's bytes";
pub(super) const CONFIRMED_AFTER_A_REORG: &str = "everything is confirmed although a block was taken back";
pub(super) const ZOMBIE_REFUSED: &str = "somebody who lost the lease is refused, and everything is confirmed";
/// Each is found in some state, or the model is too small.
pub const WITNESSES: &[&str] =
    &[ALL_CONFIRMED, CONFIRMED_BY_A_SUCCESSOR, CONFIRMED_AFTER_A_REORG, ZOMBIE_REFUSED];

impl stateright::Model for Model {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.first()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        self.possible(state, steps);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        Some(self.after(state, step))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_EFFECT, |_, state: &State| {
                let mined = |intent| state.chain.iter().filter(|tx| tx.intent == intent).count();
                (0..state.rows.intents.len()).all(|intent| mined(intent as u8) <= 1)
            }),
            Property::always(NO_GAP, |_, state: &State| {
                let has_bytes = |nonce| state.rows.attempts.iter().any(|tx| tx.nonce == nonce);
                (0..state.rows.cursor).all(has_bytes)
                    && state.rows.attempts.iter().all(|tx| tx.nonce < state.rows.cursor)
            }),
            Property::always(ONE_OWNER, |_, state: &State| {
                let attempts = &state.rows.attempts;
                attempts.iter().all(|one| {
                    attempts.iter().all(|other| (one.nonce == other.nonce) == (one.intent == other.intent))
                })
            }),
            Property::always(RECORDED_BEFORE_SENT, |_, state: &State| {
                state.chain.iter().chain(&state.pool).all(|tx| state.rows.attempts.contains(tx))
            }),
            Property::always(TOKENS_RISE, |_, state: &State| {
                // The set is in the order of nonces.
                let mut highest = 0;
                state.rows.attempts.iter().all(|tx| {
                    let rises = tx.token >= highest;
                    highest = highest.max(tx.token);
                    rises
                })
            }),
            Property::always(NO_STALE_WRITE, |_, state: &State| !state.stale_write),
            Property::sometimes(ALL_CONFIRMED, |_, state: &State| state.all_confirmed()),
            Property::sometimes(CONFIRMED_BY_A_SUCCESSOR, |_, state: &State| {
                let mut tokens: Vec<u8> = state.chain.iter().map(|tx| tx.token).collect();
                tokens.dedup();
                state.all_confirmed() && tokens.len() == state.chain.len()
            }),
            Property::sometimes(CONFIRMED_AFTER_A_REORG, |_, state: &State| {
                state.all_confirmed() && state.reorgs > 0
            }),
            Property::sometimes(ZOMBIE_REFUSED, |_, state: &State| state.all_confirmed() && state.refused),
        ]
    }
}

impl State {
    fn all_confirmed(&self) -> bool {
        self.rows.intents.iter().all(|intent| *intent == Intent::Confirmed)
    }
}

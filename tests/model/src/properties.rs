//! Safety properties, and witnesses that must be reachable: a model in which nothing happens proves nothing.

use stateright::Property;

use super::{Intent, Kind, Model, State, Step, Tx};

pub const ONE_EFFECT: &str = "no intent has two effects";
pub(crate) const NO_GAP: &str = "every nonce below the cursor has an attempt, and none above it";
pub(crate) const ONE_OWNER: &str = "no nonce belongs to two intents, and no intent to two nonces";
pub const RECORDED_BEFORE_SENT: &str = "every transaction on chain or in a mempool is recorded";
pub(crate) const TOKENS_RISE: &str = "tokens never decrease by nonce";
pub const NO_STALE_WRITE: &str = "only the owner of the lease writes";
pub(crate) const TRUE_ENDS: &str = "confirmed intents have their effect, cancelled ones do not";
/// Must hold in every state.
pub const SAFETY: &[&str] =
    &[ONE_EFFECT, NO_GAP, ONE_OWNER, RECORDED_BEFORE_SENT, TOKENS_RISE, NO_STALE_WRITE, TRUE_ENDS];

pub(crate) const ALL_CONFIRMED: &str = "everything is confirmed";
pub(crate) const CONFIRMED_BY_A_SUCCESSOR: &str =
    "everything is confirmed, each intent by an attempt of another owner";
pub(crate) const CONFIRMED_AFTER_A_REORG: &str = "everything is confirmed although a block was reorged";
pub(crate) const ZOMBIE_REFUSED: &str = "a former owner is rejected, and everything is confirmed";
/// Must be reachable, otherwise the model is too small.
pub const WITNESSES: &[&str] =
    &[ALL_CONFIRMED, CONFIRMED_BY_A_SUCCESSOR, CONFIRMED_AFTER_A_REORG, ZOMBIE_REFUSED];

pub(crate) const BY_A_REPLACEMENT: &str = "an intent is confirmed by its replacement";
pub(crate) const BY_THE_ORIGINAL: &str =
    "an intent is confirmed by its original although it has a replacement";
pub(crate) const BY_A_PLACEHOLDER: &str = "an intent is cancelled by its placeholder";
pub(crate) const TOO_LATE: &str = "an intent is confirmed although it has a placeholder";
/// Witnesses of the variant with replacements.
pub const REPLACED_WITNESSES: &[&str] = &[BY_A_REPLACEMENT, BY_THE_ORIGINAL, BY_A_PLACEHOLDER, TOO_LATE];

pub(crate) const AFTER_LOSING_A_NONCE: &str =
    "everything is confirmed although an external transaction consumed a nonce";
/// Witnesses of the variant with external transactions.
pub const OUTSIDE_WITNESSES: &[&str] = &[AFTER_LOSING_A_NONCE];

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
                (0..state.rows.intents.len()).all(|intent| state.effects_of(intent as u8) <= 1)
            }),
            Property::always(NO_GAP, |_, state: &State| {
                let has_bytes = |nonce| state.rows.attempts.iter().any(|tx| tx.nonce == nonce);
                let is_outside = |nonce: u8| {
                    state.chain.get(usize::from(nonce)).is_some_and(|tx| tx.kind == Kind::Outside)
                };
                (0..state.rows.cursor).all(|nonce| has_bytes(nonce) || is_outside(nonce))
                    && state.rows.attempts.iter().all(|tx| tx.nonce < state.rows.cursor)
            }),
            Property::always(ONE_OWNER, |_, state: &State| {
                let attempts = &state.rows.attempts;
                attempts.iter().all(|one| {
                    attempts.iter().all(|other| (one.nonce == other.nonce) == (one.intent == other.intent))
                })
            }),
            Property::always(RECORDED_BEFORE_SENT, |_, state: &State| {
                let rows = &state.rows;
                let is_recorded = |tx: &Tx| rows.attempts.contains(tx) || rows.displaced.contains(tx);
                let ours = |tx: &&Tx| tx.kind != Kind::Outside;
                state.chain.iter().chain(&state.pool).filter(ours).all(is_recorded)
            }),
            Property::always(TOKENS_RISE, |_, state: &State| {
                // The set is in the order of nonces.
                let mut highest = 0;
                // Later attempts at an old nonce are signed by the current owner.
                let originals = state.rows.attempts.iter().filter(|tx| tx.kind == Kind::Original);
                originals.into_iter().all(|tx| {
                    let rises = tx.token >= highest;
                    highest = highest.max(tx.token);
                    rises
                })
            }),
            Property::always(NO_STALE_WRITE, |_, state: &State| !state.stale_write),
            Property::always(TRUE_ENDS, |_, state: &State| {
                let is_true = |(intent, end): (usize, &Intent)| match end {
                    Intent::Confirmed => state.effects_of(intent as u8) == 1,
                    Intent::Cancelled => state.effects_of(intent as u8) == 0,
                    Intent::Queued | Intent::InFlight => true,
                };
                state.rows.intents.iter().enumerate().all(is_true)
            }),
            Property::sometimes(ALL_CONFIRMED, |_, state: &State| state.all_confirmed()),
            Property::sometimes(CONFIRMED_BY_A_SUCCESSOR, |_, state: &State| {
                let mut tokens: Vec<u8> = state.chain.iter().map(|tx| tx.token).collect();
                tokens.dedup();
                state.all_confirmed() && tokens.len() == state.chain.len()
            }),
            Property::sometimes(CONFIRMED_AFTER_A_REORG, |_, state: &State| {
                state.all_confirmed() && state.reorgs > 0
            }),
            Property::sometimes(BY_A_REPLACEMENT, |_, state: &State| {
                state.ended(Intent::Confirmed, Kind::Replacement, None)
            }),
            Property::sometimes(BY_THE_ORIGINAL, |_, state: &State| {
                state.ended(Intent::Confirmed, Kind::Original, Some(Kind::Replacement))
            }),
            Property::sometimes(BY_A_PLACEHOLDER, |_, state: &State| {
                state.ended(Intent::Cancelled, Kind::Placeholder, None)
            }),
            Property::sometimes(TOO_LATE, |_, state: &State| {
                state.ended(Intent::Confirmed, Kind::Original, Some(Kind::Placeholder))
            }),
            Property::sometimes(AFTER_LOSING_A_NONCE, |_, state: &State| {
                state.all_confirmed() && !state.rows.displaced.is_empty()
            }),
            Property::sometimes(ZOMBIE_REFUSED, |_, state: &State| state.all_confirmed() && state.refused),
        ]
    }
}

impl State {
    /// Number of transactions on chain with the effect of the intent.
    fn effects_of(&self, intent: u8) -> usize {
        let does_it = |tx: &&Tx| tx.intent == intent && tx.kind != Kind::Placeholder;
        self.chain.iter().filter(does_it).count()
    }

    /// Whether an intent ended like this by an attempt of kind `by`, while one of kind `beside` was recorded as well.
    fn ended(&self, end: Intent, by: Kind, beside: Option<Kind>) -> bool {
        self.rows.intents.iter().enumerate().filter(|(_, intent)| **intent == end).any(|(intent, _)| {
            let is_of = |tx: &Tx, kind| usize::from(tx.intent) == intent && tx.kind == kind;
            let mined = self.chain.iter().any(|tx| is_of(tx, by));
            mined && beside.is_none_or(|kind| self.rows.attempts.iter().any(|tx| is_of(tx, kind)))
        })
    }

    fn all_confirmed(&self) -> bool {
        self.rows.intents.iter().all(|intent| *intent == Intent::Confirmed)
    }
}

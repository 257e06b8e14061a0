//! Forwards calls to the node and applies lag, forks and missing data.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{State, blind, disagree, lag, pool};

/// The backend of one request.
pub(super) struct Upstream {
    url: String,
    frozen_at: Option<u64>,
    fork: Option<disagree::Fork>,
    keeps_states: Option<u64>,
    shows_pool: bool,
}

impl Upstream {
    /// The backend of the next request.
    pub(super) fn next(state: &mut State) -> Upstream {
        state.use_other = !state.use_other;
        let (behind, fork) = match state.other.clone().filter(|_| state.use_other) {
            Some(disagree::Backend::Behind(block)) => (Some(block), None),
            Some(disagree::Backend::Fork(fork)) => (Some(fork.base()), Some(fork)),
            None => (None, None),
        };
        Upstream {
            url: state.upstream.clone(),
            frozen_at: behind.or(state.frozen_at),
            fork,
            keeps_states: state.keeps_states,
            shows_pool: state.shows_pool,
        }
    }

    /// Responses by their id as text. `None`: the node did not respond.
    pub(super) async fn ask(
        &self,
        client: &reqwest::Client,
        calls: &[&Value],
    ) -> Option<HashMap<String, Value>> {
        let own = |call: &Value| self.fork.as_ref().and_then(|fork| fork.answer(call));
        let answered = calls.iter().filter_map(|call| Some((call["id"].to_string(), own(call)?))).collect();
        let calls: Vec<&Value> = calls.iter().copied().filter(|call| own(call).is_none()).collect();
        if calls.is_empty() {
            return Some(answered);
        }
        let asked: Vec<Value> = calls.iter().map(|call| self.question(call)).collect();
        let request = client.post(&self.url).json(&asked).send();
        let answers = request.await.ok()?.json::<Vec<Value>>().await.ok()?;
        let mut by_id: HashMap<String, Value> = answered;
        by_id.extend(answers.into_iter().map(|answer| (answer["id"].to_string(), answer)));
        for (call, asked) in calls.iter().zip(&asked) {
            let Some(answer) = by_id.get_mut(&call["id"].to_string()) else { continue };
            if self.makes_content(call) {
                pool::cut(call, answer);
            }
            if let Some(block) = self.frozen_at {
                lag::hide(asked, answer, block);
                if let Some(hash) = lag::asked_hash(asked)
                    && self.height_of(client, hash).await > Some(block)
                {
                    *answer = lag::header_not_found(asked);
                }
            }
            if let Some(blocks) = self.keeps_states
                && blind::is_pruned(client, &self.url, call, blocks).await
            {
                blind::missing_state(answer);
            }
        }
        Some(by_id)
    }

    /// The number of the block with this hash.
    async fn height_of(&self, client: &reqwest::Client, hash: &Value) -> Option<u64> {
        let call =
            json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_getBlockByHash", "params": [hash, false] });
        let answer: Value = client.post(&self.url).json(&call).send().await.ok()?.json().await.ok()?;
        lag::height(&answer["result"]["number"])
    }

    fn makes_content(&self, call: &Value) -> bool {
        self.shows_pool && call["method"] == pool::CONTENT_FROM
    }

    fn question(&self, call: &Value) -> Value {
        match self.frozen_at {
            _ if self.makes_content(call) => pool::question(call),
            _ if self.fork.is_some() => {
                self.fork.as_ref().map_or_else(|| call.clone(), |fork| fork.question(call))
            }
            Some(block) => lag::question(call.clone(), block),
            None => call.clone(),
        }
    }
}

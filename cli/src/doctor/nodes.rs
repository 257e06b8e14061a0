//! The nodes of each chain: the right chain, in sync, and with everything that the settings need.

use std::collections::HashMap;

use chrono::Utc;
use ethers_core::types::{Address, H256};
use futures::future::join_all;
use gapless_chain::{BlockId, BlockTag, BlockTime, ChainConnector, ChainIdentity, RpcError, SingleNode};
use gapless_config::{ChainConfig, Config, FeePolicyKind};
use gapless_domain::{ChainId, Finality};

use super::report::{Area, Check, Subject};
use super::with_short_timeout;

/// Blocks that are searched for a transaction to look up.
const SEARCHED_BLOCKS: u64 = 16;
/// Blocks whose times give the usual distance between blocks.
const TIMED_BLOCKS: u64 = 10;
/// A head that is older than this many usual distances, and than this many seconds, is reported.
const OLD_DISTANCES: u64 = 20;
const OLD_SECONDS: u64 = 60;
/// Chains allow their block producers about this much.
const FUTURE_SECONDS: u64 = 15;

pub(super) async fn check(config: &Config, genesis: &HashMap<ChainId, H256>) -> Vec<Check> {
    let chains = config.chains.values().map(|chain| chain_checks(chain, genesis.get(&chain.id).copied()));
    join_all(chains).await.concat()
}

/// A node with its subject and its head.
struct Seen {
    subject: Subject,
    node: SingleNode,
    /// `None`: it cannot be used or did not return its head.
    head: Option<BlockTime>,
}

async fn chain_checks(chain: &ChainConfig, genesis: Option<H256>) -> Vec<Check> {
    let subject = Subject::new(Area::Nodes, format!("chain {}", chain.name));
    if !chain.adapters.connector.is_empty() {
        let why = format!("the worker uses its own adapter {} instead of nodes", chain.adapters.connector);
        return vec![subject.not_checked("nodes", why)];
    }
    if chain.urls.is_empty() {
        return vec![subject.warning(
            "nodes",
            "no node is configured: a worker does not start, and the API cannot simulate",
            format!("set chain.{}.rpc.urls", chain.name),
        )];
    }
    let chain = with_short_timeout(chain);
    let nodes = match SingleNode::all(&chain) {
        Ok(nodes) => nodes,
        Err(error) => {
            return vec![subject.problem("nodes", error.to_string(), "correct the keys of this chain")];
        }
    };
    let (mut checks, mut seen) = (Vec::new(), Vec::new());
    for (found, node) in join_all(nodes.into_iter().map(|node| first_look(&chain, node, genesis))).await {
        checks.push(found);
        seen.push(node);
    }
    let best = seen.iter().filter_map(|node| node.head).map(|head| head.number).max();
    let details = seen.iter().map(|node| details(&chain, node, best));
    for (checks_of_node, more) in checks.iter_mut().zip(join_all(details).await) {
        checks_of_node.extend(more);
    }
    let mut checks = checks.concat();
    checks.extend(agreement(&chain, &subject, &seen).await);
    checks
}

/// Whether the node answers and serves this chain, and where its head is.
async fn first_look(chain: &ChainConfig, node: SingleNode, genesis: Option<H256>) -> (Vec<Check>, Seen) {
    let subject =
        Subject::new(Area::Nodes, format!("chain {} node {} ({})", chain.name, node.index(), node.shown()));
    let mut checks = Vec::new();
    let head = usable_head(chain, &node, genesis, &subject, &mut checks).await;
    (checks, Seen { subject, node, head })
}

async fn usable_head(
    chain: &ChainConfig,
    node: &SingleNode,
    genesis: Option<H256>,
    subject: &Subject,
    checks: &mut Vec<Check>,
) -> Option<BlockTime> {
    let client = node.client();
    let found = match client.remote_chain_id().await {
        Ok(found) => found,
        Err(error) => {
            checks.push(subject.problem("reachable", error.to_string(), unreachable_advice(&error)));
            checks.push(subject.not_checked("other checks", "the node does not answer"));
            return None;
        }
    };
    checks.push(subject.ok("reachable", "it answers"));
    if let Some(problem) = wrong_chain(subject, chain, found) {
        checks.push(problem);
        checks.push(subject.not_checked("other checks", "the node serves another chain"));
        return None;
    }
    checks.push(subject.ok("chain id", found.to_string()));
    let (block_zero, syncing, head) =
        tokio::join!(client.genesis_hash(), node.syncing(), node.block_time(BlockTag::Latest));
    if let Some(check) = same_genesis(subject, chain, genesis, block_zero) {
        checks.push(check);
    }
    checks.push(match syncing {
        Ok(None) => subject.ok("syncing", "it is in sync"),
        Ok(Some(progress)) => {
            let number =
                |number: Option<u64>| number.map_or("unknown".to_owned(), |number| number.to_string());
            let (current, highest) = (number(progress.current), number(progress.highest));
            let message = format!("it is syncing: block {current} of {highest}");
            subject.problem("syncing", message, "wait until it is in sync, or use another node")
        }
        Err(error) => unanswered(subject, "syncing", &error),
    });
    match head {
        Ok(Some(head)) => Some(head),
        Ok(None) => {
            checks.push(subject.problem("head", "it has no newest block", "wait until it is in sync"));
            None
        }
        Err(error) => {
            checks.push(subject.problem("head", error.to_string(), "look at the node's log"));
            None
        }
    }
}

fn unreachable_advice(error: &RpcError) -> &'static str {
    match error {
        RpcError::Http { status: 401 | 403, .. } => "correct the API key in its URL in rpc.urls",
        RpcError::Http { status: 429, .. } => "raise the rate limit of this node, or add another node",
        RpcError::Http { .. } | RpcError::Malformed { .. } => {
            "correct its URL in rpc.urls: what answers there is no Ethereum node"
        }
        _ => "start the node, or correct its URL in rpc.urls",
    }
}

fn wrong_chain(subject: &Subject, chain: &ChainConfig, found: ChainId) -> Option<Check> {
    (found != chain.id).then(|| {
        let message = format!("it serves chain {found}; chain.{}.id is {}", chain.name, chain.id);
        subject.problem("chain id", message, "correct its URL in rpc.urls, or the id of the chain")
    })
}

/// `None`: no hash of block 0 is stored yet.
fn same_genesis(
    subject: &Subject,
    chain: &ChainConfig,
    known: Option<H256>,
    found: Result<Option<H256>, RpcError>,
) -> Option<Check> {
    let known = known?;
    Some(match found {
        Ok(None) => subject.not_checked("genesis", "it does not have block 0"),
        Ok(found) => match ChainIdentity::check(chain.id, Some(known), chain.id, found) {
            ChainIdentity::Ours { .. } => subject.ok("genesis", "block 0 is the one of the database"),
            ChainIdentity::WrongChain { problem } => subject.problem(
                "genesis",
                problem,
                "use a node of the chain that the database belongs to, or an empty database",
            ),
        },
        Err(error) => unanswered(subject, "genesis", &error),
    })
}

/// A check whose question the node did not answer: nothing is known.
fn unanswered(subject: &Subject, name: &'static str, error: &RpcError) -> Check {
    match error {
        RpcError::Refused { .. } => subject.not_checked(name, error.to_string()),
        _ => subject.problem(name, error.to_string(), "find out why the node does not answer this"),
    }
}

/// What the settings need from a node that serves the chain.
async fn details(chain: &ChainConfig, seen: &Seen, best: Option<u64>) -> Vec<Check> {
    let (Some(head), Some(best)) = (seen.head, best) else { return Vec::new() };
    let (subject, node) = (&seen.subject, &seen.node);
    let (times, depth, fees, batches) = tokio::join!(
        distance(node, head),
        final_block_checks(chain, seen, head),
        fee_check(chain, seen),
        batch_check(chain, seen)
    );
    let mut checks = vec![lag(subject, chain, head.number, best)];
    checks.push(head_time(subject, head, times, u64::try_from(Utc::now().timestamp()).unwrap_or(0)));
    checks.extend(depth);
    checks.push(fees);
    checks.push(batches);
    checks
}

fn lag(subject: &Subject, chain: &ChainConfig, head: u64, best: u64) -> Check {
    let (behind, allowed) = (best.saturating_sub(head), chain.rpc.max_lag_blocks);
    if behind > allowed {
        return subject.problem(
            "lag",
            format!(
                "its head is block {head}, {behind} behind the best node; rpc.max_lag_blocks is {allowed}"
            ),
            "wait until it has caught up, or replace it; until then it is used last",
        );
    }
    subject.ok("lag", format!("its head is block {head}, {behind} behind the best node"))
}

/// The usual seconds between blocks. `None`: unknown.
async fn distance(node: &SingleNode, head: BlockTime) -> Option<u64> {
    let blocks = TIMED_BLOCKS.min(head.number);
    let earlier = node.block_time(BlockTag::Number(head.number - blocks)).await.ok().flatten()?;
    head.timestamp.checked_sub(earlier.timestamp)?.checked_div(blocks)
}

/// Compares the time of the newest block with this machine's clock. Warnings only: a development chain may have any
/// times.
fn head_time(subject: &Subject, head: BlockTime, distance: Option<u64>, now: u64) -> Check {
    if let Some(ahead) = head.timestamp.checked_sub(now).filter(|ahead| *ahead > FUTURE_SECONDS) {
        return subject.warning(
            "time",
            format!("its newest block is {ahead} s in the future of this machine's clock"),
            "synchronise the clock of this machine (NTP); a development chain may be ahead by itself",
        );
    }
    let age = now.saturating_sub(head.timestamp);
    match distance {
        Some(usual) if age > OLD_SECONDS.max(usual * OLD_DISTANCES) => subject.warning(
            "time",
            format!("its newest block is {age} s old; blocks came every {usual} s"),
            "find out why there is no new block; a development chain may make none without transactions",
        ),
        _ => subject.ok("time", format!("its newest block is {age} s old")),
    }
}

/// The height up to which the settings count blocks as final; `Err` is why it is unknown.
async fn final_height(chain: &ChainConfig, node: &SingleNode, head: BlockTime) -> Result<u64, String> {
    let tag = match chain.confirmations.required {
        Finality::Blocks(blocks) => {
            let short = || format!("the chain has {} blocks, and {blocks} are required", head.number + 1);
            return (head.number + 1).checked_sub(blocks).ok_or_else(short);
        }
        Finality::Safe => BlockTag::Safe,
        Finality::Finalized => BlockTag::Finalized,
    };
    match node.client().block(tag).await {
        Ok(Some(block)) => Ok(block.block.number.min(head.number)),
        Ok(None) => Err("the chain has no final block yet".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// State and transactions at the depth of `confirmations.required`.
async fn final_block_checks(chain: &ChainConfig, seen: &Seen, head: BlockTime) -> Vec<Check> {
    let (subject, node) = (&seen.subject, &seen.node);
    let height = match final_height(chain, node, head).await {
        Ok(height) => height,
        Err(why) => return without_final_block(subject, chain.confirmations.required, why),
    };
    let (state, lookup) = tokio::join!(state_check(seen, head, height), lookup_check(seen, height));
    vec![state, lookup]
}

/// A chain that is shorter than the required depth is not at fault; a node without the required tag is.
fn without_final_block(subject: &Subject, required: Finality, why: String) -> Vec<Check> {
    let first = match required.blocks() {
        Some(_) => subject.not_checked("state", why.clone()),
        None => subject.problem(
            "finality",
            format!("confirmations.required needs a final block: {why}"),
            "use a node that reports it, or set confirmations.required to a number of blocks",
        ),
    };
    vec![first, subject.not_checked("transaction lookup", why)]
}

/// The worker reads transaction counts at the newest final block.
async fn state_check(seen: &Seen, head: BlockTime, height: u64) -> Check {
    let (subject, client) = (&seen.subject, seen.node.client());
    let depth = head.number - height;
    let hash = match client.block(BlockTag::Number(height)).await {
        Ok(Some(block)) => block.block.hash,
        Ok(None) => {
            let message = format!("it does not have block {height}, {depth} blocks below its head");
            return subject.problem("state", message, "use a node that has this block");
        }
        Err(error) => return unanswered(subject, "state", &error),
    };
    match client.transaction_count_at(Address::zero(), BlockId { number: height, hash }).await {
        Ok(_) => subject.ok("state", format!("available {depth} blocks below its head")),
        Err(error @ (RpcError::Refused { .. } | RpcError::Unavailable { .. })) => subject.problem(
            "state",
            format!("no state at block {height}, {depth} blocks below its head: {error}"),
            format!(
                "use a node that keeps the state of more than {depth} blocks, or lower confirmations.required"
            ),
        ),
        Err(error) => unanswered(subject, "state", &error),
    }
}

/// The worker looks up its transactions by hash until they are final.
async fn lookup_check(seen: &Seen, height: u64) -> Check {
    const NAME: &str = "transaction lookup";
    let (subject, client) = (&seen.subject, seen.node.client());
    let lowest = height.saturating_sub(SEARCHED_BLOCKS - 1);
    let blocks = join_all((lowest..=height).rev().map(|number| client.block(BlockTag::Number(number)))).await;
    let found = blocks.iter().find_map(|block| match block {
        Ok(Some(block)) => Some((block.block.number, *block.tx_hashes.first()?)),
        _ => None,
    });
    let Some((number, hash)) = found else {
        if let Some(error) = blocks.iter().find_map(|block| block.as_ref().err()) {
            return unanswered(subject, NAME, error);
        }
        return subject
            .not_checked(NAME, format!("there is no transaction in the blocks {lowest} to {height}"));
    };
    match client.receipt(hash).await {
        Ok(Some(_)) => subject.ok(NAME, format!("a transaction of block {number} is found by its hash")),
        Ok(None) => subject.problem(
            NAME,
            format!("it does not find a transaction of block {number} by its hash"),
            "use a node that indexes the transactions of at least the blocks that confirmations.required covers",
        ),
        Err(error) => unanswered(subject, NAME, &error),
    }
}

/// What `fees.policy` reads from the node.
async fn fee_check(chain: &ChainConfig, seen: &Seen) -> Check {
    const NAME: &str = "fees";
    let (subject, client, fees) = (&seen.subject, seen.node.client(), &chain.fees);
    if !chain.adapters.fee_policy.is_empty() {
        return subject.not_checked(NAME, "the worker uses a fee policy of its own");
    }
    match fees.policy {
        FeePolicyKind::Fixed => subject.not_checked(NAME, "fees.policy is fixed: the node is not asked"),
        FeePolicyKind::GasPrice => match client.gas_price().await {
            Ok(price) => subject.ok(NAME, format!("eth_gasPrice is {price} wei")),
            Err(error) => subject.problem(
                NAME,
                format!("fees.policy is gas_price: {error}"),
                "use another node, or another fees.policy",
            ),
        },
        FeePolicyKind::History | FeePolicyKind::GasStation => {
            match client.fee_history(fees.history_blocks, &[fees.percentile]).await {
                Ok(history) => {
                    subject.ok(NAME, format!("the next base fee is {} wei", history.next_base_fee))
                }
                Err(error) => subject.problem(
                    NAME,
                    format!("fees.policy needs the fee history: {error}"),
                    "use a node with eth_feeHistory, or set fees.policy = \"gas_price\" or \"fixed\"",
                ),
            }
        }
    }
}

async fn batch_check(chain: &ChainConfig, seen: &Seen) -> Check {
    const NAME: &str = "batches";
    let subject = &seen.subject;
    let wanted = chain.rpc.max_batch;
    if wanted == 1 {
        return subject.not_checked(NAME, "rpc.max_batch is 1: none are sent");
    }
    match seen.node.accepted_batch(wanted).await {
        Ok(accepted) => accepted_batch(subject, wanted, accepted),
        Err(error) => subject.problem(
            NAME,
            format!("it does not answer a batch of {wanted} calls: {error}"),
            "set a smaller rpc.max_batch; 1 for a node that accepts none",
        ),
    }
}

fn accepted_batch(subject: &Subject, wanted: usize, accepted: usize) -> Check {
    const NAME: &str = "batches";
    match accepted {
        1 => subject.problem(
            NAME,
            "it accepts no JSON-RPC batches: every call is a request of its own",
            "set rpc.max_batch = 1, or use another node",
        ),
        fewer if fewer < wanted => subject.warning(
            NAME,
            format!("it accepts batches of {fewer} calls; rpc.max_batch is {wanted}"),
            format!("set rpc.max_batch = {fewer}"),
        ),
        _ => subject.ok(NAME, format!("it accepts batches of {wanted} calls")),
    }
}

/// Whether the nodes have the same block where all of them call it final. `None`: fewer than two can be compared.
async fn agreement(chain: &ChainConfig, subject: &Subject, seen: &[Seen]) -> Option<Check> {
    const NAME: &str = "agreement";
    let comparable: Vec<(&Seen, BlockTime)> =
        seen.iter().filter_map(|node| Some((node, node.head?))).collect();
    if comparable.len() < 2 {
        return None;
    }
    let heights =
        join_all(comparable.iter().map(|(seen, head)| final_height(chain, &seen.node, *head))).await;
    let height = match heights.into_iter().collect::<Result<Vec<u64>, String>>() {
        Ok(heights) => heights.into_iter().min()?,
        Err(why) => return Some(subject.not_checked(NAME, why)),
    };
    let blocks = comparable.iter().map(|(seen, _)| seen.node.client().block(BlockTag::Number(height)));
    let mut hashes: Vec<(&str, H256)> = Vec::new();
    for ((seen, _), block) in comparable.iter().zip(join_all(blocks).await) {
        match block {
            Ok(Some(block)) => hashes.push((&seen.subject.name, block.block.hash)),
            Ok(None) => {
                let why = format!("{} does not have block {height}", seen.subject.name);
                return Some(subject.not_checked(NAME, why));
            }
            Err(error) => return Some(subject.not_checked(NAME, error.to_string())),
        }
    }
    Some(compared(subject, height, &hashes))
}

fn compared(subject: &Subject, height: u64, hashes: &[(&str, H256)]) -> Check {
    let first = hashes[0];
    match hashes.iter().find(|(_, hash)| *hash != first.1) {
        None => subject.ok("agreement", format!("the nodes have the same block {height}")),
        Some(other) => subject.problem(
            "agreement",
            format!(
                "the nodes have different final blocks {height}: {} has {:#x}, {} has {:#x}",
                first.0, first.1, other.0, other.1
            ),
            "find out which node is on the wrong fork and remove it from rpc.urls",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Outcome;
    use super::*;

    fn subject() -> Subject {
        Subject::new(Area::Nodes, "n")
    }

    #[test]
    fn the_time_of_the_head_is_compared_with_the_usual_distance() {
        let head = BlockTime { number: 100, hash: H256::zero(), timestamp: 10_000 };
        let outcome = |distance, now| head_time(&subject(), head, distance, now).outcome;
        assert_eq!(outcome(Some(12), 10_010), Outcome::Ok);
        assert_eq!(outcome(Some(12), 10_239), Outcome::Ok);
        assert_eq!(outcome(Some(12), 10_241), Outcome::Warning);
        assert_eq!(outcome(Some(1), 10_059), Outcome::Ok, "a minute is not long");
        assert_eq!(outcome(None, 90_000), Outcome::Ok, "nothing to compare with");
        assert_eq!(outcome(Some(12), 9_990), Outcome::Ok);
        assert_eq!(outcome(Some(12), 9_980), Outcome::Warning, "in the future");
    }

    #[test]
    fn a_node_without_the_required_final_block_is_a_problem_and_a_short_chain_is_not() {
        let first = |required| without_final_block(&subject(), required, "why".into())[0].outcome;
        assert_eq!(first(Finality::Blocks(20)), Outcome::NotChecked);
        assert_eq!(first(Finality::Finalized), Outcome::Problem);
        assert_eq!(first(Finality::Safe), Outcome::Problem);
    }

    #[test]
    fn a_smaller_batch_is_a_warning_and_none_a_problem() {
        let outcome = |accepted| accepted_batch(&subject(), 100, accepted).outcome;
        assert_eq!(outcome(100), Outcome::Ok);
        assert_eq!(outcome(50), Outcome::Warning);
        assert_eq!(outcome(1), Outcome::Problem);
    }

    #[test]
    fn different_final_blocks_are_a_problem() {
        let (one, other) = (H256::repeat_byte(1), H256::repeat_byte(2));
        assert_eq!(compared(&subject(), 5, &[("a", one), ("b", one)]).outcome, Outcome::Ok);
        let differ = compared(&subject(), 5, &[("a", one), ("b", one), ("c", other)]);
        assert_eq!(differ.outcome, Outcome::Problem);
        assert!(differ.message.contains("c has 0x0202"), "{}", differ.message);
    }

    #[test]
    fn a_node_that_does_not_answer_is_never_fine() {
        let refused =
            RpcError::Refused { method: "m", endpoint: "e".into(), code: -32601, message: "no".into() };
        assert_eq!(unanswered(&subject(), "x", &refused).outcome, Outcome::NotChecked);
        let late = RpcError::Timeout {
            method: "m",
            endpoint: "e".into(),
            timeout: std::time::Duration::from_secs(5),
        };
        assert_eq!(unanswered(&subject(), "x", &late).outcome, Outcome::Problem);
    }
}

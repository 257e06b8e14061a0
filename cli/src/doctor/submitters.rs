//! The submitters: whether they can pay, and whether one of them is stopped.

use std::collections::{BTreeMap, BTreeSet};

use ethers_core::types::{Address, U256};
use futures::future::join_all;
use gapless_chain::{ChainConnector, ChainIdentity, EvmClient};
use gapless_config::{ChainConfig, Config};
use gapless_domain::ChainId;
use gapless_store::{SubmitterStatus, SubmitterView};

use super::database::{Found, MAX_SUBMITTERS};
use super::report::{Area, Check, Subject};
use super::signers::Keys;
use super::with_short_timeout;

/// Gas of a plain transfer.
const TRANSFER_GAS: u64 = 21_000;

/// Balances of one chain, or why there are none.
struct Balances {
    chain: ChainId,
    name: String,
    low: Option<U256>,
    /// Cost of a plain transfer now.
    transfer: U256,
    of: Result<BTreeMap<Address, U256>, String>,
}

pub(super) async fn check(config: &Config, database: &Found, keys: &Keys) -> Vec<Check> {
    let known = database.submitters.as_deref().unwrap_or_default();
    let with_nodes =
        config.chains.values().filter(|chain| !chain.urls.is_empty() && chain.adapters.connector.is_empty());
    let reads = with_nodes.map(|chain| {
        let on_chain = known.iter().filter(|submitter| submitter.key.chain_id == chain.id);
        let addresses = keys.iter().copied().chain(on_chain.map(|submitter| submitter.key.address));
        read(chain, addresses.collect())
    });
    let balances = join_all(reads).await;
    let mut checks: Vec<Check> = balances.iter().flat_map(|one| funds(one, &balances, known)).collect();
    match &database.submitters {
        Some(submitters) => {
            checks.extend(states(submitters));
            if submitters.len() >= MAX_SUBMITTERS as usize {
                let subject = Subject::new(Area::Submitters, "submitters");
                let why = format!("only the first {MAX_SUBMITTERS} were read");
                checks.push(subject.not_checked("others", why));
            }
        }
        None => {
            let subject = Subject::new(Area::Submitters, "submitters");
            checks.push(subject.not_checked("state", "the database could not be read"));
        }
    }
    checks
}

async fn read(chain: &ChainConfig, addresses: BTreeSet<Address>) -> Balances {
    let (transfer, of) = match read_balances(chain, addresses).await {
        Ok((transfer, of)) => (transfer, Ok(of)),
        Err(why) => (U256::zero(), Err(why)),
    };
    Balances { chain: chain.id, name: chain.name.clone(), low: chain.low_balance, transfer, of }
}

async fn read_balances(
    chain: &ChainConfig,
    addresses: BTreeSet<Address>,
) -> Result<(U256, BTreeMap<Address, U256>), String> {
    let client = EvmClient::new(&with_short_timeout(chain)).map_err(|error| error.to_string())?;
    // Nodes of another chain are not asked.
    match client.identity(None).await {
        Ok(ChainIdentity::Ours { .. }) => {}
        Ok(ChainIdentity::WrongChain { problem }) => return Err(problem),
        Err(error) => return Err(error.to_string()),
    }
    // Without a price only an empty balance is reported.
    let transfer = client.gas_price().await.map_or(U256::one(), |price| price * TRANSFER_GAS);
    let reads = addresses.into_iter().map(async |address| Ok((address, client.balance(address).await?)));
    let read: Result<_, gapless_chain::RpcError> = join_all(reads).await.into_iter().collect();
    Ok((transfer, read.map_err(|error| error.to_string())?))
}

/// How a balance is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Funds {
    Enough,
    /// Below `balance.low`.
    Low,
    /// A plain transfer cannot be paid. `elsewhere`: the address was never used here and has funds on another chain.
    None {
        elsewhere: bool,
    },
}

fn judge(balance: U256, transfer: U256, low: Option<U256>, unused_but_funded_elsewhere: bool) -> Funds {
    if balance < transfer || balance.is_zero() {
        return Funds::None { elsewhere: unused_but_funded_elsewhere };
    }
    match low {
        Some(low) if balance < low => Funds::Low,
        _ => Funds::Enough,
    }
}

fn funds(one: &Balances, all: &[Balances], known: &[SubmitterView]) -> Vec<Check> {
    const NAME: &str = "funds";
    let of_chain = Subject::new(Area::Submitters, format!("chain {}", one.name));
    let balances = match &one.of {
        Ok(balances) => balances,
        Err(why) => return vec![of_chain.not_checked(NAME, format!("no balance could be read: {why}"))],
    };
    let is_used = |address: &Address| {
        let mut rows = known.iter().filter(|view| view.key.chain_id == one.chain);
        rows.any(|view| view.key.address == *address && (view.next_nonce.is_some() || view.queue_depth > 0))
    };
    let has_funds_elsewhere = |address: &Address| {
        let others = all.iter().filter(|other| other.chain != one.chain);
        let mut balances = others.filter_map(|other| other.of.as_ref().ok()?.get(address));
        balances.any(|balance| !balance.is_zero())
    };
    let (mut checks, mut enough) = (Vec::new(), 0);
    for (address, balance) in balances {
        let subject = Subject::new(Area::Submitters, format!("{}:{address:#x}", one.chain));
        let idle = *balance < one.transfer && !is_used(address) && has_funds_elsewhere(address);
        match judge(*balance, one.transfer, one.low, idle) {
            Funds::Enough => enough += 1,
            Funds::Low => checks.push(subject.warning(
                NAME,
                format!("{balance} wei is below balance.low ({} wei)", one.low.unwrap_or_default()),
                format!("send funds to {address:#x} on chain {}", one.name),
            )),
            Funds::None { elsewhere } => {
                let message =
                    format!("{balance} wei does not pay for a plain transfer ({} wei)", one.transfer);
                let advice = format!("send funds to {address:#x} on chain {}", one.name);
                checks.push(match elsewhere {
                    true => subject.warning(NAME, message, format!("{advice}, if it is to be used there")),
                    false => subject.problem(NAME, message, advice),
                });
            }
        }
    }
    match (balances.len(), enough) {
        (0, _) => checks.push(of_chain.not_checked(NAME, "no submitter is known")),
        (_, 0) => {}
        (all, enough) => checks.push(of_chain.ok(NAME, format!("{enough} of {all} submitters have funds"))),
    }
    checks
}

/// Submitters that do not work, with the reason.
fn states(submitters: &[SubmitterView]) -> Vec<Check> {
    const NAME: &str = "state";
    let mut checks = Vec::new();
    for view in submitters {
        let subject = Subject::new(Area::Submitters, view.key.to_string());
        if let Some(reason) = &view.protect_reason {
            let advice = "find out who used the key, then `gapless release` or `gapless adopt` (docs/operate/incidents.md#protect)";
            checks.push(subject.problem(NAME, format!("PROTECT: {reason}"), advice));
        }
        if let Some(reason) = &view.suspect_reason {
            let advice = "see docs/operate/incidents.md#suspect; it ends by itself when a node returns the transaction";
            checks.push(subject.problem(NAME, format!("SUSPECT: {reason}"), advice));
        }
        if view.status == SubmitterStatus::Paused {
            let reason = view.status_reason.as_deref().unwrap_or("no reason recorded");
            checks.push(subject.warning(
                NAME,
                format!("paused: {reason}"),
                "run `gapless resume` when it may go on",
            ));
        }
        if let Some(blocked) = &view.blocked {
            let (reason, tx_id) = (blocked.reason.as_str(), blocked.tx_id);
            let error = blocked.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            let message = format!("its queue waits ({reason}) at transaction {tx_id}{error}");
            checks.push(subject.problem(NAME, message, format!("see `gapless status {tx_id}`")));
        }
    }
    if checks.is_empty() {
        let subject = Subject::new(Area::Submitters, "submitters");
        checks.push(match submitters.len() {
            0 => subject.not_checked(NAME, "no worker has announced a submitter yet"),
            count => subject.ok(NAME, format!("none of {count} is stopped")),
        });
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::super::report::Outcome;
    use super::*;

    #[test]
    fn a_balance_is_compared_with_a_transfer_and_with_the_low_mark() {
        let judge =
            |balance: u64, low: Option<u64>| judge(balance.into(), 100.into(), low.map(U256::from), false);
        assert_eq!(judge(0, None), Funds::None { elsewhere: false });
        assert_eq!(judge(99, None), Funds::None { elsewhere: false });
        assert_eq!(judge(100, None), Funds::Enough);
        assert_eq!(judge(100, Some(101)), Funds::Low);
        assert_eq!(judge(101, Some(101)), Funds::Enough);
    }

    #[test]
    fn an_address_that_is_used_on_another_chain_only_is_no_problem() {
        let address = Address::repeat_byte(1);
        let on = |chain: u64, balance: u64| Balances {
            chain: ChainId(chain),
            name: format!("c{chain}"),
            low: None,
            transfer: 10.into(),
            of: Ok([(address, U256::from(balance))].into()),
        };
        let both = [on(1, 50), on(2, 0)];
        assert_eq!(funds(&both[0], &both, &[])[0].outcome, Outcome::Ok);
        assert_eq!(funds(&both[1], &both, &[])[0].outcome, Outcome::Warning);
        let poor = [on(1, 0), on(2, 0)];
        assert_eq!(funds(&poor[0], &poor, &[])[0].outcome, Outcome::Problem);
    }
}

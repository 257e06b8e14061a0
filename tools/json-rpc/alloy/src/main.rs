//! alloy: a provider without a wallet, so that `send_transaction` is eth_sendTransaction.
//!
//! All scenarios run twice: without fillers the transaction has the fields that the caller set, and a type; with the
//! recommended fillers (scenarios with `filled-`) it also has a chain id, a nonce, a gas limit and fees. The filler
//! counts nonces itself after the first eth_getTransactionCount, so concurrent sends arrive in any order of nonces.
use std::collections::HashSet;
use std::error::Error;
use std::time::Duration;

use alloy::network::TransactionBuilder;
use alloy::primitives::{Address, B256, Bytes, U256};
use alloy::providers::{DynProvider, PendingTransactionBuilder, Provider, ProviderBuilder};
use alloy::rpc::types::{TransactionReceipt, TransactionRequest};
use alloy::sol_types::{SolCall, SolEvent};
use alloy::transports::TransportResult;
use alloy::transports::http::reqwest::{self, header};
use tokio::task::JoinSet;
use tokio::time::timeout;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
type Pending = PendingTransactionBuilder<alloy::network::Ethereum>;

alloy::sol! {
    event Incremented(address indexed by, uint256 count);
    error Refused(uint256 count);
    function count() external view returns (uint256);
    function increment() external;
    function fail() external;
}

const CONCURRENT: usize = 50;
/// How long the program waits for one receipt.
const WAIT: Duration = Duration::from_secs(60);
const SCENARIO: Duration = Duration::from_secs(180);
const SCENARIOS: [&str; 6] = ["deploy", "call", "concurrent", "restart", "replacement", "revert"];

#[derive(Clone)]
struct Test {
    provider: DynProvider,
    from: Address,
    control_url: String,
    /// The counter that `deploy` deploys.
    address: Address,
}

fn equal<T: PartialEq + std::fmt::Debug>(found: T, wanted: T, what: &str) -> Result<()> {
    if found == wanted { Ok(()) } else { Err(format!("{what} is {found:?}, not {wanted:?}").into()) }
}

fn artifact(field: &str) -> Bytes {
    let artifact: serde_json::Value =
        serde_json::from_str(include_str!("../../contract/Counter.json")).expect("the artifact is JSON");
    artifact[field].as_str().and_then(|hex| hex.parse().ok()).expect("the field is hexadecimal")
}

impl Test {
    async fn control(&self, path: &str) -> Result<()> {
        let answer = reqwest::Client::new().post(format!("{}{path}", self.control_url)).send().await?;
        if answer.status().is_success() {
            return Ok(());
        }
        Err(format!("control server: {path} has status {}: {}", answer.status(), answer.text().await?).into())
    }

    async fn send(&self, call: impl SolCall) -> TransportResult<Pending> {
        let request = TransactionRequest::default().with_from(self.from).with_to(self.address);
        self.provider.send_transaction(request.with_input(call.abi_encode())).await
    }

    async fn increment(&self) -> TransportResult<Pending> {
        self.send(incrementCall {}).await
    }

    async fn count(&self) -> Result<u64> {
        let request =
            TransactionRequest::default().with_to(self.address).with_input(countCall {}.abi_encode());
        let answer = self.provider.call(request).await?;
        Ok(countCall::abi_decode_returns(&answer)?.try_into()?)
    }

    async fn expect_count(&self, wanted: u64) -> Result<()> {
        equal(self.count().await?, wanted, "the counter")
    }

    async fn deploy(&mut self) -> Result<()> {
        let accounts = self.provider.get_accounts().await?;
        if !accounts.contains(&self.from) {
            return Err(format!("eth_accounts has {accounts:?}, not {}", self.from).into());
        }
        let request =
            TransactionRequest::default().with_from(self.from).with_deploy_code(artifact("bytecode"));
        let receipt = succeeded(receipt_of(self.provider.send_transaction(request).await?).await?)?;
        self.address = receipt.contract_address.ok_or("the receipt has no contractAddress")?;
        let code = self.provider.get_code_at(self.address).await?;
        equal(code, artifact("deployedBytecode"), "the code")
    }

    async fn call(&self) -> Result<()> {
        let receipt = succeeded(receipt_of(self.increment().await?).await?)?;
        equal(receipt.logs().len(), 1, "the number of logs")?;
        let event = Incremented::decode_log(&receipt.logs()[0].inner)?;
        equal(event.by, self.from, "Incremented.by")?;
        equal(event.count, U256::from(1), "Incremented.count")?;
        self.expect_count(1).await
    }

    async fn concurrent(&self) -> Result<()> {
        let before = self.count().await?;
        let mut tasks = JoinSet::new();
        for _ in 0..CONCURRENT {
            let test = self.clone();
            tasks.spawn(async move {
                let pending = test.increment().await?;
                let hash = *pending.tx_hash();
                succeeded(receipt_of(pending).await?)?;
                Ok::<B256, Box<dyn Error + Send + Sync>>(hash)
            });
        }
        let hashes = tasks.join_all().await.into_iter().collect::<Result<HashSet<B256>>>()?;
        equal(hashes.len(), CONCURRENT, "the number of different hashes")?;
        self.expect_count(before + CONCURRENT as u64).await
    }

    async fn restart(&self) -> Result<()> {
        let before = self.count().await?;
        let pending = self.increment().await?;
        self.control("/restart").await?;
        succeeded(receipt_of(pending).await?)?;
        succeeded(receipt_of(self.increment().await?).await?)?;
        self.expect_count(before + 2).await
    }

    /// The transaction is replaced while there is no mining.
    async fn send_and_replace(&self) -> Result<Pending> {
        let pending = self.increment().await?;
        self.control(&format!("/replace/{}", pending.tx_hash())).await?;
        Ok(pending)
    }

    /// `get_receipt` asks for the receipt by the first hash. `watch`, and `get_receipt` with two or more confirmations,
    /// look for the hash in blocks, where it never is: use `get_transaction_receipt` in a loop instead.
    async fn replacement(&self) -> Result<()> {
        let before = self.count().await?;
        self.control("/hold").await?;
        let sent = self.send_and_replace().await;
        self.control("/mine").await?;
        let pending = sent?;
        let hash = *pending.tx_hash();
        let receipt = succeeded(receipt_of(pending).await?)?;
        if receipt.transaction_hash == hash {
            return Err("the transaction was not replaced".into());
        }
        self.expect_count(before + 1).await
    }

    async fn revert(&self) -> Result<()> {
        let before = self.count().await?;
        match self.send(failCall {}).await {
            Ok(pending) => return Err(format!("there was no error, but {}", pending.tx_hash()).into()),
            Err(error) => {
                let refused =
                    error.as_error_resp().and_then(|response| response.as_decoded_error::<Refused>());
                let refused = refused.ok_or_else(|| format!("the error is not Refused: {error}"))?;
                equal(refused.count, U256::from(before + 1), "Refused.count")?;
            }
        }
        self.expect_count(before).await
    }

    async fn run(&mut self, scenario: &str) -> Result<()> {
        match scenario {
            "deploy" => self.deploy().await,
            "call" => self.call().await,
            "concurrent" => self.concurrent().await,
            "restart" => self.restart().await,
            "replacement" => self.replacement().await,
            "revert" => self.revert().await,
            _ => unreachable!("SCENARIOS has no other name"),
        }
    }
}

async fn receipt_of(pending: Pending) -> Result<TransactionReceipt> {
    Ok(pending.with_timeout(Some(WAIT)).get_receipt().await?)
}

fn succeeded(receipt: TransactionReceipt) -> Result<TransactionReceipt> {
    equal(receipt.status(), true, "the status")?;
    Ok(receipt)
}

fn version() -> &'static str {
    let (_, package) =
        include_str!("../Cargo.lock").split_once("name = \"alloy\"\nversion = \"").unwrap_or_default();
    package.split('"').next().unwrap_or_default()
}

#[tokio::main]
async fn main() -> Result<()> {
    let variable = |name: &str| std::env::var(name).map_err(|error| format!("{name}: {error}"));
    let mut headers = header::HeaderMap::new();
    if let Some(key) = std::env::var("GAPLESS_API_KEY").ok().filter(|key| !key.is_empty()) {
        headers.insert(header::AUTHORIZATION, format!("Bearer {key}").parse()?);
    }
    let http = reqwest::Client::builder().default_headers(headers).build()?;
    let url: reqwest::Url = variable("GAPLESS_RPC_URL")?.parse()?;
    let plain = ProviderBuilder::default().connect_reqwest(http.clone(), url.clone()).erased();
    let filled = ProviderBuilder::new().connect_reqwest(http, url).erased();

    println!("version alloy {}", version());
    let mut failed = false;
    for (prefix, provider) in [("", plain), ("filled-", filled)] {
        let mut test = Test {
            provider,
            from: variable("GAPLESS_FROM")?.parse()?,
            control_url: variable("CONTROL_URL")?,
            address: Address::ZERO,
        };
        for name in SCENARIOS {
            let result = timeout(SCENARIO, test.run(name)).await;
            match result.unwrap_or_else(|_| Err(format!("not finished after {SCENARIO:?}").into())) {
                Ok(()) => println!("ok {prefix}{name}"),
                Err(error) => {
                    failed = true;
                    println!(
                        "FAILED {prefix}{name}: {}",
                        error.to_string().lines().next().unwrap_or_default()
                    );
                }
            }
        }
    }
    std::process::exit(i32::from(failed));
}

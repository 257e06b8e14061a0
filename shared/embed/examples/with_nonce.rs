//! A client program that reserves a nonce and builds its transaction for it. With `make up` running:
//!
//! ```text
//! cargo run -p gapless-embed --example with_nonce -- .gapless/gapless.toml ok
//! ```
//!
//! Use `fail`, `panic` or `hang` instead of `ok` to see the error cases. The optional third argument is the submitter; the
//! default is the first one of the first chain.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use gapless_config::Config;
use gapless_domain::{RequestedTx, SubmitterKey, TxId};
use gapless_embed::{Gapless, NonceContext, WithNonceError};
use gapless_store::{Store, Timeouts};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: with_nonce CONFIG ok|fail|panic|hang [SUBMITTER]";
    let (config, mode) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    let config = Config::load(Some(Path::new(&config)))?;
    let submitter = submitter(&config, args.next()).await?;
    let gapless = Gapless::with_config(&config).await?;

    let handler = async |context: NonceContext| {
        println!("the nonce is {}, reserved for another {:?}", context.nonce, context.time_left());
        match mode.as_str() {
            "ok" => Ok(RequestedTx {
                to: Some(format!("{:#x}", context.submitter)),
                value: Some("1".to_owned()),
                ..RequestedTx::default()
            }),
            "panic" => panic!("out of ideas"),
            "hang" => std::future::pending().await,
            _ => Err("changed my mind"),
        }
    };
    let tx_id = match gapless.call(submitter).reserve_for(Duration::from_secs(3)).run(handler).await {
        Ok(accepted) => {
            println!("accepted as {}", accepted.tx_id);
            accepted.tx_id
        }
        Err(error) => {
            println!("{error}");
            tx_id_of(&error).ok_or("no nonce was used")?
        }
    };
    let tx = gapless.wait_final(tx_id, Duration::from_secs(60)).await?.ok_or("it was pruned")?;
    println!("{}{}", tx.state, tx.last_error.map(|why| format!(": {}", why.message)).unwrap_or_default());
    Ok(())
}

/// The intent of the reserved nonce, if the handler ran.
fn tx_id_of<E>(error: &WithNonceError<E>) -> Option<TxId> {
    match error {
        WithNonceError::Handler { tx_id, .. }
        | WithNonceError::Panicked { tx_id, .. }
        | WithNonceError::ReservationExpired { tx_id }
        | WithNonceError::Refused { tx_id, .. } => Some(*tx_id),
        WithNonceError::Other(_) => None,
    }
}

async fn submitter(config: &Config, named: Option<String>) -> Result<SubmitterKey, Box<dyn Error>> {
    let chain_id = config.chains.values().next().ok_or("no chain is configured")?.id;
    if let Some(address) = named {
        return Ok(SubmitterKey { chain_id, address: address.parse()? });
    }
    let store = Store::new(&config.database.url, "with_nonce example", 1, Timeouts::default())?;
    let first = store.list_submitters(Some(chain_id), None, None, 1).await?;
    Ok(first.first().ok_or("no worker has announced a submitter")?.key)
}

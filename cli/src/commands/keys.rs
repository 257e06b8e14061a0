//! `gapless keys`: creates keystore files for the worker. The private key is never printed.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use gapless_config::Secret;
use gapless_signer::keystore;
use serde_json::json;

use crate::args::{Keys, Keystore};
use crate::output;

pub fn run(keys: &Keys, json: bool) -> Result<ExitCode> {
    let (address, path) = match keys {
        Keys::New(args) => {
            let password = password(args)?;
            prepare(&args.keystore)?;
            keystore::create(&args.keystore, &password)?
        }
        Keys::Import(args) => {
            let password = password(args)?;
            let secret = secret_from_stdin()?;
            prepare(&args.keystore)?;
            keystore::import(&args.keystore, &secret, &password)?
        }
    };
    if json {
        output::json(&json!({ "address": format!("{address:#x}"), "file": path }));
    } else {
        output::line(format!("{address:#x}  {}", path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

fn prepare(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))
}

/// Trailing newlines are removed, as the worker does.
fn password(args: &Keystore) -> Result<Secret> {
    let text = match (&args.password_file, &args.password_env) {
        (Some(path), _) => Secret::new(
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?,
        ),
        // The message omits the variable's name: a user may have typed the password there by mistake.
        (None, Some(name)) => {
            Secret::new(std::env::var(name).ok().context("the variable of --password-env is not set")?)
        }
        (None, None) => bail!("--password-file or --password-env is required"),
    };
    let password = Secret::new(text.expose().trim_end_matches(['\r', '\n']));
    if password.is_empty() {
        bail!("the password is empty");
    }
    Ok(password)
}

/// Not an argument: arguments are visible to all users of the machine and stay in the shell history.
fn secret_from_stdin() -> Result<Secret> {
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    let text = Secret::new(text);
    read.context("cannot read the key from standard input")?;
    let secret = Secret::new(text.expose().trim());
    if secret.is_empty() {
        bail!("standard input contains no key");
    }
    Ok(secret)
}

//! A hot standby, for failover tests.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{Postgres, USER, launch, place, postgres_wire};
use crate::postgres::DataDir;
use crate::{Account, Port};

/// Files of the running server that must not be copied.
const NOT_COPIED: [&str; 2] = ["postmaster.pid", "postmaster.opts"];

impl Postgres {
    /// Starts a hot standby of this server. The server is stopped for the copy, because not every package has
    /// `pg_basebackup`. `synchronous`: commits wait for the standby. `env`: extra environment variables.
    pub async fn standby(
        &mut self,
        name: &str,
        synchronous: bool,
        env: Vec<(String, String)>,
    ) -> Result<Postgres> {
        self.stop().await?;
        let place = place(&DataDir::Temporary, self.account)?;
        copy(&self.place.data, &place.data, self.account).context("cannot copy the data directory")?;
        let signal = place.data.join("standby.signal");
        std::fs::write(&signal, "")?;
        self.account.map_or(Ok(()), |account| account.own(&signal))?;
        let mut settings = self.settings.clone();
        let primary = self.port.number();
        settings.push(format!(
            "primary_conninfo=host=127.0.0.1 port={primary} user={USER} application_name={name}"
        ));
        if synchronous {
            self.settings.push(format!("synchronous_standby_names={name}"));
        }
        self.restart().await?;
        let (binaries, account, port) = (self.binaries.clone(), self.account, Port::claim()?);
        let log = place.data.with_extension("log");
        let process = launch(&binaries, account, (&settings, &env), port.number(), &log, &place).await?;
        Ok(Postgres { binaries, account, settings, env, port, log, process, place })
    }

    /// Promotes the standby to primary.
    pub async fn promote(&self) -> Result<()> {
        postgres_wire::execute(self.port.number(), USER, "SELECT pg_promote()").await
    }
}

fn copy(from: &Path, to: &Path, account: Option<Account>) -> Result<()> {
    std::fs::create_dir(to)?;
    std::fs::set_permissions(to, std::fs::metadata(from)?.permissions())?;
    account.map_or(Ok(()), |account| account.own(to))?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy(&source, &target, account)?;
        } else if entry.file_type()?.is_file() {
            if NOT_COPIED.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            std::fs::copy(&source, &target)?;
            account.map_or(Ok(()), |account| account.own(&target))?;
        } else {
            bail!("{} is neither file nor directory", source.display());
        }
    }
    Ok(())
}

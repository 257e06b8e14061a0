//! Describes the machine of the measurement.

use anyhow::Result;

use crate::bed::Bed;
use crate::report::{Row, Table};

/// Number of cores available to this program.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub(crate) async fn describe(bed: &Bed) -> Result<Table> {
    let field = |path: &str, name: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':'))
            .map_or("unknown".to_owned(), |(_, rest)| rest.trim().to_owned())
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let build = if cfg!(debug_assertions) { "debug: the figures mean nothing" } else { "release" };
    let mut table = Table::new("Machine");
    table.rows.push(
        Row::default()
            .number("cores", cores() as f64, 0)
            .text("processor", field("/proc/cpuinfo", "model name"))
            .text("memory", field("/proc/meminfo", "MemTotal"))
            .text("kernel", kernel.trim())
            .text("PostgreSQL", bed.postgres_version().await?)
            .text("build", build),
    );
    Ok(table)
}

//! CPU time and memory of processes, from /proc. Zero on systems without it.

use std::collections::HashMap;

/// Ticks per second in /proc (USER_HZ), which is 100 on every platform.
const TICKS: f64 = 100.0;

struct Stat {
    parent: u32,
    /// Its own time, and that of reaped children.
    ticks: u64,
}

/// `pid (name) state ppid …`; the name may contain any character. Fields 14 to 17 are the times.
fn parse(stat: &str) -> Option<Stat> {
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(Stat { parent: fields.get(1)?.parse().ok()?, ticks })
}

fn read(pid: &str) -> Option<Stat> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// CPU time of a process and its descendants, including exited ones.
pub(crate) fn cpu_seconds(root: u32) -> f64 {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()));
    let all: HashMap<u32, Stat> =
        pids.filter_map(|pid: u32| read(&pid.to_string()).map(|stat| (pid, stat))).collect();
    let below = |pid: &u32| {
        let mut at = *pid;
        while at != root {
            match all.get(&at) {
                Some(stat) if stat.parent != 0 => at = stat.parent,
                _ => return false,
            }
        }
        true
    };
    let ticks: u64 = all.iter().filter(|(pid, _)| below(pid)).map(|(_, stat)| stat.ticks).sum();
    ticks as f64 / TICKS
}

/// CPU time of this process without its children.
pub(crate) fn own_cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = stat.rsplit(')').next().unwrap_or_default();
    let times = rest.split_whitespace().skip(11).take(2);
    times.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>() as f64 / TICKS
}

/// Resident memory of a process in MB.
pub(crate) fn resident_mb(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or(0.0) / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name_holds() {
        let stat = parse("42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 1 0 5 6 7").unwrap();
        assert_eq!((stat.parent, stat.ticks), (7, 127));
    }

    #[test]
    fn own_time_grows_with_work() {
        let before = own_cpu_seconds();
        let mut sum = 0u64;
        while own_cpu_seconds() <= before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(resident_mb(std::process::id()) > 1.0);
    }
}

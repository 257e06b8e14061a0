//! Percentiles of durations.

use std::time::Duration;

use crate::report::Row;

#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies {
    micros: Vec<u64>,
    sorted: bool,
}

impl Latencies {
    pub(crate) fn of(micros: Vec<u64>) -> Latencies {
        Latencies { micros, sorted: false }
    }

    pub(crate) fn add(&mut self, duration: Duration) {
        self.micros.push(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
        self.sorted = false;
    }

    pub(crate) fn extend(&mut self, other: Latencies) {
        self.micros.extend(other.micros);
        self.sorted = false;
    }

    pub(crate) fn len(&self) -> usize {
        self.micros.len()
    }

    /// In milliseconds; the smallest value that is not exceeded by `share` of them. Zero if empty.
    pub(crate) fn percentile(&mut self, share: f64) -> f64 {
        if !self.sorted {
            self.micros.sort_unstable();
            self.sorted = true;
        }
        let rank = (share * self.micros.len() as f64).ceil() as usize;
        let index = rank.saturating_sub(1);
        self.micros.get(index).map_or(0.0, |micros| *micros as f64 / 1000.0)
    }

    pub(crate) fn columns(&mut self, row: Row) -> Row {
        let (p50, p95, p99) = (self.percentile(0.5), self.percentile(0.95), self.percentile(0.99));
        row.number("p50 ms", p50, 2).number("p95 ms", p95, 2).number("p99 ms", p99, 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_nearest_rank() {
        let mut some = Latencies::of((1..=100).rev().map(|n| n * 1000).collect());
        assert_eq!(some.percentile(0.5), 50.0);
        assert_eq!(some.percentile(0.99), 99.0);
        assert_eq!(some.percentile(1.0), 100.0);
        some.add(Duration::from_millis(500));
        assert_eq!(some.percentile(1.0), 500.0);
        assert_eq!(Latencies::default().percentile(0.5), 0.0);
    }
}

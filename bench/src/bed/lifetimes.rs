//! Latencies and rates of the transactions of a run, from their rows.

use crate::measure::Latencies;

/// Seconds since the epoch, by the database's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    pub(crate) created: f64,
    pub(crate) prepared: f64,
    pub(crate) confirmed: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Lifetimes(Vec<Lifetime>);

impl Lifetimes {
    pub(crate) fn new(mut rows: Vec<Lifetime>) -> Lifetimes {
        rows.sort_by(|a, b| a.confirmed.total_cmp(&b.confirmed));
        Lifetimes(rows)
    }

    /// Those requested from this time on.
    pub(crate) fn created_since(self, time: f64) -> Lifetimes {
        Lifetimes(self.0.into_iter().filter(|row| row.created >= time).collect())
    }

    pub(crate) fn count(&self) -> f64 {
        self.0.len() as f64
    }

    /// Per second, from the first nonce to the last confirmation.
    pub(crate) fn rate_of_work(&self) -> f64 {
        self.rate_since(|row| row.prepared)
    }

    /// Per second, from the first request to the last confirmation.
    pub(crate) fn rate_from_request(&self) -> f64 {
        self.rate_since(|row| row.created)
    }

    fn rate_since(&self, begin: fn(&Lifetime) -> f64) -> f64 {
        let first = self.0.iter().map(begin).fold(f64::INFINITY, f64::min);
        self.0.last().map_or(0.0, |last| self.count() / (last.confirmed - first).max(1e-3))
    }

    /// Per second, between the 10th and the 90th percentile of confirmations, i.e. without ramp-up and end.
    pub(crate) fn sustained_rate(&self) -> f64 {
        let (from, to) = (self.0.len() / 10, self.0.len() * 9 / 10);
        match (self.0.get(from), self.0.get(to)) {
            (Some(first), Some(last)) if to > from => {
                (to - from) as f64 / (last.confirmed - first.confirmed).max(1e-3)
            }
            _ => self.rate_of_work(),
        }
    }

    /// Per second, of those confirmed between two times.
    pub(crate) fn rate_between(&self, from: f64, to: f64) -> f64 {
        let within = self.0.iter().filter(|row| row.confirmed >= from && row.confirmed <= to).count();
        within as f64 / (to - from).max(1e-3)
    }

    /// From the nonce to the confirmation.
    pub(crate) fn in_flight(&self) -> Latencies {
        self.latencies(|row| row.confirmed - row.prepared)
    }

    /// From the request to the confirmation.
    pub(crate) fn whole(&self) -> Latencies {
        self.latencies(|row| row.confirmed - row.created)
    }

    fn latencies(&self, of: fn(&Lifetime) -> f64) -> Latencies {
        Latencies::of(self.0.iter().map(|row| (of(row).max(0.0) * 1e6) as u64).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_counted_over_their_own_time() {
        let row = |n: u32| Lifetime { created: 0.0, prepared: 10.0, confirmed: 10.0 + f64::from(n) };
        let some = Lifetimes::new((1..=100).rev().map(row).collect());
        assert_eq!(some.rate_of_work(), 1.0);
        assert_eq!(some.rate_from_request(), 100.0 / 110.0);
        assert_eq!(some.sustained_rate(), 1.0);
        assert_eq!(some.rate_between(10.5, 20.5), 1.0);
        assert_eq!(some.in_flight().percentile(0.5), 50_000.0);
    }
}

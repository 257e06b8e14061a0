//! Finds the items that make a batch fail.

use std::ops::Range;

/// Ranges of a batch that are to be processed, in order. Starts with the whole batch; `split` replaces a range that
/// failed by its halves, until the failing items are alone.
#[derive(Clone, Debug)]
pub struct Bisection {
    /// The leftmost range is on top.
    ranges: Vec<Range<usize>>,
    len: usize,
}

impl Bisection {
    pub fn new(len: usize) -> Bisection {
        Bisection { ranges: Vec::from_iter((len > 0).then_some(0..len)), len }
    }

    /// The next range to process.
    pub fn next_range(&mut self) -> Option<Range<usize>> {
        self.ranges.pop()
    }

    /// One of the items may have made the range fail: both halves come next. False: the range is a single item.
    pub fn split(&mut self, range: &Range<usize>) -> bool {
        if range.len() > 1 {
            let middle = range.start + range.len() / 2;
            self.ranges.extend([middle..range.end, range.start..middle]);
        }
        range.len() > 1
    }

    /// No item made the range fail, so trying others is useless. Returns the range with all that come after it.
    pub fn abort(&mut self, range: &Range<usize>) -> Range<usize> {
        self.ranges.clear();
        range.start..self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Items above 100 fail; a range that starts with `unreachable` fails for another reason.
    fn results(items: &[u32], unreachable: Option<u32>) -> (Vec<Result<u32, &'static str>>, usize) {
        let (mut bisection, mut results, mut tried) = (Bisection::new(items.len()), Vec::new(), 0);
        while let Some(range) = bisection.next_range() {
            assert_eq!(range.start, results.len(), "in order");
            tried += 1;
            let part = &items[range.clone()];
            if part.first().copied() == unreachable {
                results.extend(bisection.abort(&range).map(|_| Err("unreachable")));
            } else if part.iter().all(|item| *item <= 100) {
                results.extend(part.iter().copied().map(Ok));
            } else if !bisection.split(&range) {
                results.push(Err("item"));
            }
        }
        (results, tried)
    }

    #[test]
    fn only_the_failing_items_fail() {
        assert_eq!(results(&[1, 2, 3, 4], None), (vec![Ok(1), Ok(2), Ok(3), Ok(4)], 1));
        let (found, tried) = results(&[1, 200, 3, 4, 500], None);
        assert_eq!((&found[..], tried), (&[Ok(1), Err("item"), Ok(3), Ok(4), Err("item")][..], 9));
        assert_eq!(results(&[], None), (vec![], 0));
    }

    #[test]
    fn an_error_that_no_item_caused_ends_the_search() {
        let (found, tried) = results(&[1, 2, 3, 400, 5, 6, 7, 8], Some(3));
        assert_eq!(found[..2], [Ok(1), Ok(2)]);
        assert!(found[2..].iter().all(|one| *one == Err("unreachable")), "{found:?}");
        assert_eq!((found.len(), tried), (8, 4));
    }
}

//! Batching with real tasks.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::*;

fn unordered(flushers: usize, max_batch: usize) -> Options {
    let concurrency = Concurrency::Unordered { flushers };
    Options { name: "test", concurrency, max_batch, capacity: 10 * max_batch }
}

#[tokio::test]
async fn items_waiting_during_a_flush_form_the_next_batch() {
    let permit_flush = Arc::new(Notify::new());
    let (sizes_in, mut sizes) = mpsc::unbounded_channel();
    let first = Arc::new(AtomicUsize::new(0));
    let (permit_flush2, first2) = (permit_flush.clone(), first.clone());
    let batcher: Batcher<u32, u32> = Batcher::start(unordered(1, 100), move |batch| {
        let (permit_flush, first, sizes_in) = (permit_flush2.clone(), first2.clone(), sizes_in.clone());
        async move {
            sizes_in.send(batch.len()).unwrap();
            if first.fetch_add(1, Ordering::SeqCst) == 0 {
                permit_flush.notified().await;
            }
            let (items, replies) = Request::split(batch);
            for (item, reply) in items.into_iter().zip(replies) {
                reply.send(item * 2);
            }
        }
    });
    let lone = tokio::spawn({
        let batcher = batcher.clone();
        async move { batcher.call(1).await.unwrap() }
    });
    assert_eq!(sizes.recv().await, Some(1));
    let crowd: Vec<_> = (2..12)
        .map(|n| {
            let batcher = batcher.clone();
            tokio::spawn(async move { batcher.call(n).await.unwrap() })
        })
        .collect();
    tokio::task::yield_now().await;
    permit_flush.notify_one();
    assert_eq!(lone.await.unwrap(), 2);
    for (task, n) in crowd.into_iter().zip(2..) {
        assert_eq!(task.await.unwrap(), n * 2);
    }
    assert_eq!(sizes.recv().await, Some(10));
}

/// A batcher with two flushers whose first flush never ends; the receiver gets the size of each batch.
fn with_stuck_first_flush(slow_after: Duration) -> (Batcher<usize, ()>, mpsc::UnboundedReceiver<usize>) {
    let (sizes_in, sizes) = mpsc::unbounded_channel();
    let first = Arc::new(AtomicUsize::new(0));
    let batcher =
        Batcher::with_slow_after(slow_after, unordered(2, 500), move |batch: Vec<Request<usize, ()>>| {
            let (first, sizes_in) = (first.clone(), sizes_in.clone());
            async move {
                sizes_in.send(batch.len()).unwrap();
                if first.fetch_add(1, Ordering::SeqCst) == 0 {
                    std::future::pending::<()>().await;
                }
                Request::split(batch).1.into_iter().for_each(|reply| reply.send(()));
            }
        });
    (batcher, sizes)
}

fn crowd(batcher: &Batcher<usize, ()>, count: usize) -> JoinSet<Result<(), CallError>> {
    let mut calls = JoinSet::new();
    for number in 0..count {
        let batcher = batcher.clone();
        calls.spawn(async move { batcher.call(number).await });
    }
    calls
}

#[tokio::test]
async fn a_parallel_flush_starts_only_with_enough_items() {
    let (batcher, mut sizes) = with_stuck_first_flush(Duration::from_secs(3600));
    let _first = crowd(&batcher, 1);
    assert_eq!(sizes.recv().await, Some(1));
    let few = crowd(&batcher, MIN_PARALLEL_WEIGHT - 1);
    // Lets every spawned task run until it has enqueued its item.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(sizes.try_recv().is_err(), "too few for a flush of their own");
    let one_more = crowd(&batcher, 1);
    assert_eq!(sizes.recv().await, Some(MIN_PARALLEL_WEIGHT));
    assert!(few.join_all().await.into_iter().chain(one_more.join_all().await).all(|answer| answer.is_ok()));
}

#[tokio::test]
async fn a_parallel_flush_starts_when_the_first_is_slow() {
    let (batcher, mut sizes) = with_stuck_first_flush(Duration::from_millis(20));
    let _first = crowd(&batcher, 1);
    assert_eq!(sizes.recv().await, Some(1));
    assert!(crowd(&batcher, 3).join_all().await.into_iter().all(|answer| answer.is_ok()));
}

/// Callers beyond the queue's capacity wait, the queue stays bounded, and every call is answered.
#[tokio::test]
async fn calls_beyond_the_capacity_wait_and_are_answered() {
    let permit_flush = Arc::new(tokio::sync::Semaphore::new(0));
    let permits = permit_flush.clone();
    let batcher: Batcher<usize, usize> = Batcher::start(unordered(2, 50), move |batch| {
        let permit_flush = permits.clone();
        async move {
            permit_flush.acquire().await.unwrap().forget();
            let (items, replies) = Request::split(batch);
            items.into_iter().zip(replies).for_each(|(number, reply)| reply.send(number));
        }
    });
    let mut calls = JoinSet::new();
    for number in 0..10_000 {
        let batcher = batcher.clone();
        calls.spawn(async move { batcher.call(number).await.unwrap() == number });
    }
    let mut deepest = 0;
    while let Some(answered) = {
        permit_flush.add_permits(1);
        tokio::task::yield_now().await;
        deepest = deepest.max(batcher.depth().1);
        calls.join_next().await
    } {
        assert!(answered.unwrap());
    }
    // Up to two batches of 50 are being processed.
    assert!((400..=500).contains(&deepest), "the capacity is used and not exceeded: {deepest}");
}

#[tokio::test]
async fn a_panic_costs_one_batch_its_answers_and_no_later_one() {
    let batcher: Batcher<usize, usize> = Batcher::start(unordered(1, 10), async |batch| {
        let (items, replies) = Request::split(batch);
        assert!(!items.contains(&13), "unlucky");
        items.into_iter().zip(replies).for_each(|(item, reply)| reply.send(item));
    });
    assert_eq!(batcher.call(13).await, Err(CallError::NoAnswer));
    assert_eq!(batcher.call(14).await, Ok(14));
}

#[tokio::test]
async fn a_full_queue_refuses_and_has_room_again_after_the_batch() {
    let permit_flush = Arc::new(Semaphore::new(0));
    let permits = permit_flush.clone();
    let concurrency = Concurrency::OrderedParts { parts: 2 };
    let options = Options { name: "test", concurrency, max_batch: 10, capacity: 4 };
    let batcher: Batcher<usize, usize> = Batcher::start(options, move |batch| {
        let permit_flush = permits.clone();
        async move {
            permit_flush.acquire().await.unwrap().forget();
            let (items, replies) = Request::split(batch);
            items.into_iter().zip(replies).for_each(|(item, reply)| reply.send(item));
        }
    });
    let three = batcher.try_call(0, 3, 3).unwrap();
    assert_eq!(batcher.try_call(1, 2, 2).err(), Some(CallError::Full));
    let one = batcher.try_call(1, 1, 1).unwrap();
    permit_flush.add_permits(2);
    assert_eq!((three.await, one.await), (Ok(3), Ok(1)));
    assert_eq!(batcher.try_call(1, 4, 4).unwrap().await, Ok(4));
}

#[tokio::test]
async fn the_flushers_process_what_waits_and_end_with_the_last_handle() {
    let (processed_in, mut processed) = mpsc::unbounded_channel();
    let batcher: Batcher<usize, ()> = Batcher::start(unordered(2, 10), move |batch| {
        let processed_in = processed_in.clone();
        async move { Request::split(batch).0.into_iter().for_each(|item| processed_in.send(item).unwrap()) }
    });
    let calls: Vec<_> = (0..25).map(|item| batcher.try_call(0, 1, item).unwrap()).collect();
    drop((batcher, calls));
    for item in 0..25 {
        assert_eq!(processed.recv().await, Some(item));
    }
    assert_eq!(processed.recv().await, None, "the flushers have ended");
}

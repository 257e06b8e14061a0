//! Between two turns: until when a lane waits, for what, and when it has nothing to do any more.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::{LAZY, Lane};
use crate::steps;
use crate::steps::protect::Allowed;

/// What comes after a turn.
#[derive(Debug)]
pub(super) enum NextStep {
    Again,
    Wait(Option<Instant>),
    Done,
}

impl Lane {
    pub(super) async fn wait(&mut self, until: Option<Instant>) {
        let halted = self.chain.halted().is_some();
        tokio::select! {
            news = self.inbox.recv() => if let Some(news) = news { self.handle_event(news) },
            () = sleep_until(until) => {}
            () = self.chain.usable(), if halted => {}
            // Its sender lives as long as the chain.
            _ = self.recovered.changed() => steps::recover::heard(self),
        }
    }

    /// Before the rows are read again; a node that is well again may be what it waits for.
    pub(super) async fn pause(&mut self, pause: Duration) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = self.recovered.changed() => {
                steps::recover::heard(self);
                self.retry_pause = Duration::ZERO;
            }
        }
    }

    /// When to look again if nothing is heard.
    pub(super) fn next_step(&mut self, allowed: Allowed) -> NextStep {
        let now = Instant::now();
        let free = allowed != Allowed::Nothing;
        let lazy = self.lazy_since.map(|since| since + LAZY);
        let due = steps::submit::next_due(self).filter(|_| free);
        let replace = steps::replace::next_time(self).filter(|_| free);
        let alarm = steps::stuck::next_time(self).filter(|_| free);
        let held = steps::reserve::next_time(self).filter(|_| free);
        let stale = steps::track::next_stale(self);
        let gives_nonces = allowed == Allowed::Everything;
        let hold = self.hold_until.filter(|_| gives_nonces && !self.paused && !self.queue.is_empty());
        let passed = self.passed.next_time().filter(|_| gives_nonces && !self.paused);
        let others = steps::shared_key::next_time(self);
        let look = steps::diagnose::next_time(self);
        let again = self.look_again.map(|(at, _)| at);
        let recover = steps::recover::next_time(self).filter(|_| free);
        let key = self.key.recheck_at();
        let next = [lazy, due, replace, alarm, held, stale, hold, passed, others, look, again, recover, key];
        let next = next.into_iter().flatten().min();
        let idle = self.is_idle();
        self.idle.store(idle, Ordering::Relaxed);
        self.only_waits.store(self.is_blocked(), Ordering::Relaxed);
        if !idle {
            self.idle_since = None;
            return NextStep::Wait(next);
        }
        let idle_until = *self.idle_since.get_or_insert(now) + self.context.linger;
        if now >= idle_until {
            NextStep::Done
        } else {
            NextStep::Wait(Some(next.unwrap_or(idle_until).min(idle_until)))
        }
    }

    /// Nothing is open, and the head of the queue waits for something that may not come for long.
    fn is_blocked(&self) -> bool {
        let head = self.queue.front();
        let blocked = head.map_or(!self.passed.is_empty(), |head| head.blocked.is_some());
        let alone = self.open.is_empty() && self.queued_moves.is_empty();
        alone && blocked && !self.paused && !self.is_protected() && !self.key.is_doubted()
    }

    /// Nothing to follow, nothing to send, nothing to watch over.
    fn is_idle(&self) -> bool {
        let queued = !self.queue.is_empty() || !self.passed.is_empty();
        let waiting = queued && !self.paused;
        let protected = self.is_protected();
        self.open.is_empty() && !waiting && !protected && !self.key.is_doubted() && self.lazy_since.is_none()
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

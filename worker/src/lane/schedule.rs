//! Between two steps: how long a lane waits, for what, and when it is idle.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::{LAZY, Lane};
use crate::steps;
use crate::steps::protect::Allowed;

/// What follows a successful step.
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
            event = self.signals.inbox.recv() => if let Some(event) = event { self.handle_event(event) },
            () = sleep_until(until) => {}
            () = self.chain.usable(), if halted => {}
            // The sender lives as long as the chain.
            _ = self.signals.recovered.changed() => steps::recover::schedule(self),
        }
    }

    /// Waits before the rows are reloaded; ends early when a node recovers.
    pub(super) async fn pause(&mut self, pause: Duration) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = self.signals.recovered.changed() => {
                steps::recover::schedule(self);
                self.progress.retry_pause = Duration::ZERO;
            }
        }
    }

    /// When the next step is due if no event arrives.
    pub(super) fn next_step(&mut self, allowed: Allowed) -> NextStep {
        let now = Instant::now();
        let free = allowed != Allowed::Nothing;
        let lazy = self.pending.lazy_since.map(|since| since + LAZY);
        let due = steps::submit::next_due(self).filter(|_| free);
        let replace = steps::replace::next_time(self).filter(|_| free);
        let alarm = steps::stuck::next_time(self).filter(|_| free);
        let reserved = steps::reserve::next_time(self).filter(|_| free);
        let stale = steps::track::next_stale(self);
        let may_assign = allowed == Allowed::Everything;
        let hold = self
            .prepare
            .held_until()
            .filter(|_| may_assign && !self.rows.paused && !self.rows.queue.is_empty());
        let passed = self.prepare.passed.next_time().filter(|_| may_assign && !self.rows.paused);
        let others = steps::shared_key::next_time(self);
        let diagnose = steps::diagnose::next_time(self);
        let retry = self.track.next_retry();
        let recover = steps::recover::next_time(self).filter(|_| free);
        let key = self.key.recheck_at();
        let next =
            [lazy, due, replace, alarm, reserved, stale, hold, passed, others, diagnose, retry, recover, key];
        let next = next.into_iter().flatten().min();
        let idle = self.is_idle();
        self.status.idle.store(idle, Ordering::Relaxed);
        self.status.blocked.store(self.is_blocked(), Ordering::Relaxed);
        if !idle {
            self.progress.idle_since = None;
            return NextStep::Wait(next);
        }
        let idle_until = *self.progress.idle_since.get_or_insert(now) + self.context.linger;
        if now >= idle_until {
            NextStep::Done
        } else {
            NextStep::Wait(Some(next.unwrap_or(idle_until).min(idle_until)))
        }
    }

    /// Nothing is open, and the head of the queue is blocked.
    fn is_blocked(&self) -> bool {
        let head = self.rows.queue.front();
        let blocked = head.map_or(!self.prepare.passed.is_empty(), |head| head.blocked.is_some());
        let alone = self.rows.open.is_empty() && !self.pending.moves_queued();
        alone && blocked && !self.rows.paused && !self.is_protected() && !self.key.is_doubted()
    }

    /// Nothing is open, queued, protected or in doubt.
    fn is_idle(&self) -> bool {
        let queued = !self.rows.queue.is_empty() || !self.prepare.passed.is_empty();
        let waiting = queued && !self.rows.paused;
        let protected = self.is_protected();
        self.rows.open.is_empty()
            && !waiting
            && !protected
            && !self.key.is_doubted()
            && self.pending.lazy_since.is_none()
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

//! The limit on lines of one kind: [`MOST`] in [`WINDOW`], and then a line that says how many were
//! left out.
//!
//! A kind is a place in the code, a user and an error: one user's ten thousand faults hide neither
//! another user's first one, nor anything else. Code that writes lines for other code names the
//! place of that code in the field `at`.
//!
//! Invariant: at most [`KINDS`] kinds are remembered, whatever users do.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use tracing::Level;
use tracing::callsite::Identifier;

/// Lines of one kind in a window.
pub const MOST: u32 = 50;
/// The window. It begins with the first line.
pub const WINDOW: Duration = Duration::from_secs(30);
/// Kinds that are remembered.
const KINDS: usize = 1024;

/// What lines have in common.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Kind {
    /// The place in the code.
    pub place: Identifier,
    /// The user, where the line names one.
    pub tenant: Option<String>,
    /// The error, where the line names one.
    pub error: Option<String>,
    /// The place in the code that the line is written for, where it names one.
    pub at: Option<String>,
}

/// Lines that were left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftOut {
    /// What they have in common.
    pub kind: Kind,
    /// Their level.
    pub level: Level,
    /// Their number.
    pub lines: u64,
    /// The text of the last one.
    pub text: String,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    lines: u32,
    left_out: Option<LeftOut>,
}

/// The windows of all kinds.
#[derive(Debug, Default)]
pub struct Limiter {
    windows: HashMap<Kind, Window>,
}

impl Limiter {
    /// Whether a line may be written now. `text` is asked for where it may not.
    pub fn admits(
        &mut self,
        kind: Kind,
        level: Level,
        now: Instant,
        text: impl FnOnce() -> String,
    ) -> bool {
        let mut kind = kind;
        if self.windows.len() >= KINDS && !self.windows.contains_key(&kind) {
            self.windows.retain(|_, window| window.left_out.is_some() || !window.is_over(now));
            if self.windows.len() >= KINDS {
                // So many users at once share one window for each place.
                (kind.tenant, kind.error) = (None, None);
            }
        }
        let new = Window { since: now, lines: 0, left_out: None };
        let window = self.windows.entry(kind.clone()).or_insert(new);
        if window.left_out.is_none() && window.is_over(now) {
            (window.since, window.lines) = (now, 0);
        }
        if window.lines < MOST {
            window.lines += 1;
            return true;
        }
        let before = window.left_out.take().map_or(0, |left_out| left_out.lines);
        window.left_out = Some(LeftOut { kind, level, lines: before + 1, text: text() });
        false
    }

    /// When the next window ends in which lines were left out.
    pub fn next_end(&self) -> Option<Instant> {
        let ends = self.windows.values().filter(|window| window.left_out.is_some());
        ends.map(|window| window.since + WINDOW).min()
    }

    /// What was left out in windows that are over, each told once. At `None` every window is over.
    pub fn take_left_out(&mut self, now: Option<Instant>) -> Vec<LeftOut> {
        let mut found = Vec::new();
        for window in self.windows.values_mut() {
            if now.is_none_or(|now| window.is_over(now))
                && let Some(left_out) = window.left_out.take()
            {
                found.push(left_out);
                (window.since, window.lines) = (now.unwrap_or(window.since), 0);
            }
        }
        found
    }
}

impl Window {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Callsite as _;

    fn kind(tenant: &str) -> Kind {
        let place = tracing::callsite!(name: "a", kind: tracing::metadata::Kind::EVENT, fields: x);
        let place = place.metadata().callsite();
        Kind { place, tenant: Some(tenant.into()), error: None, at: None }
    }

    fn lines(limiter: &mut Limiter, kind: &Kind, now: Instant, lines: u32) -> u32 {
        let text = || "text".to_owned();
        let admitted =
            (0..lines).filter(|_| limiter.admits(kind.clone(), Level::WARN, now, text)).count();
        u32::try_from(admitted).unwrap()
    }

    #[test]
    fn what_is_over_the_limit_is_counted_and_told_once() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        let (alice, bob) = (kind("1000"), kind("1001"));
        assert_eq!(lines(&mut limiter, &alice, start, 10_000), MOST);
        assert_eq!(lines(&mut limiter, &bob, start, 3), 3, "another user is not limited");
        assert_eq!(limiter.next_end(), Some(start + WINDOW));
        assert!(limiter.take_left_out(Some(start + WINDOW / 2)).is_empty());
        let [left_out] = &limiter.take_left_out(Some(start + WINDOW))[..] else { panic!("one") };
        assert_eq!((&left_out.kind, left_out.lines), (&alice, u64::from(10_000 - MOST)));
        assert_eq!(limiter.next_end(), None);
        assert_eq!(lines(&mut limiter, &alice, start + WINDOW, 60), MOST);
        assert_eq!(limiter.take_left_out(None)[0].lines, 10);
    }

    #[test]
    fn any_number_of_users_takes_bounded_memory() {
        let (mut limiter, now) = (Limiter::default(), Instant::now());
        for tenant in 0..10 * KINDS {
            lines(&mut limiter, &kind(&tenant.to_string()), now, 1);
        }
        assert!(limiter.windows.len() <= KINDS + 1, "{}", limiter.windows.len());
        let told: u64 = limiter.take_left_out(None).iter().map(|one| one.lines).sum();
        assert_eq!(told, 9 * KINDS as u64 - u64::from(MOST), "nothing is lost in silence");
    }
}

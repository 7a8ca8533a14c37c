//! How a caller gives up on a module while others still work on it.
//!
//! Analyses of hostile modules take long, and the crate has neither a clock nor threads. So the
//! caller gives a module a question, and the long loops ask it. Once the answer was yes, results
//! are of no use: [`crate::parse_until`] and [`crate::verify()`] return errors, and passes leave
//! the remaining kernels as they are.

use std::fmt;
use std::sync::Arc;

/// Whether work on a module is to end early. The answer must stay yes once it was yes.
#[derive(Clone, Default)]
pub struct Stop(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Stop {
    /// Ends work once `question` says yes. It is asked about once in a kernel, and more often in
    /// large ones.
    pub fn when(question: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(question)))
    }

    /// Whether to end now. The default never ends.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.as_ref().is_some_and(|question| question())
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stop").field("is_asked", &self.is_asked()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{WorkerOptions, cancel, choose, count, parse, parse_until, verify};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    const TEXT: &str = ".version 8.0\n.target sm_75\n.address_size 64\n\
        .visible .entry a(.param .u64 p) { trap; }\n.visible .entry b() { ret; }\n";

    #[test]
    fn what_is_stopped_ends_early() {
        let flag = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&flag);
        let stop = Stop::when(move || seen.load(Ordering::Relaxed));
        let module = parse_until(TEXT, &stop).unwrap();
        let options = WorkerOptions::default();
        let forms = |module| {
            let reports = choose(module, &options).reports;
            reports.iter().filter(|report| report.rewritten().is_some()).count()
        };
        assert_eq!((forms(&module), verify(&module)), (2, Ok(())));
        flag.store(true, Ordering::Relaxed);
        assert_eq!(forms(&module), 0);
        let beside = count::beside(&module, &|_| true);
        assert_eq!(beside.counting, [None, None]);
        assert!(cancel(&module, &[]).reports.iter().all(|report| report.added.is_empty()));
        assert!(verify(&module).is_err());
        assert!(parse_until(TEXT, &stop).is_err());
        assert!(parse(TEXT).is_ok());
    }

    /// Debug builds check what passes have made, and cannot say anything of it then.
    #[test]
    fn a_pass_may_be_stopped_at_any_question() {
        let mut ended = 0;
        for most in 1..100 {
            let asked = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&asked);
            let stop = Stop::when(move || count.fetch_add(1, Ordering::Relaxed) >= most);
            let Ok(module) = parse_until(TEXT, &stop) else { continue };
            let _ = choose(&module, &WorkerOptions::default());
            let _ = cancel(&module, &[]);
            let _ = count::beside(&module, &|_| true);
            ended += usize::from(asked.load(Ordering::Relaxed) > most);
        }
        assert!(ended > 10, "{ended}");
    }
}

//! The border to C: the one macro that makes exports, and the code around every body.
//!
//! Nothing unwinds into C. Parameters are checked before the body sees them. The body is safe code
//! that returns a [`CuResult`].

use crate::error::{CuError, CuResult};
use crate::{coverage, log};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes exports: `fn cuName(parameter: Type, …) { body }`, in which every type is an
/// [`crate::abi::Argument`] and the body evaluates to a [`CuResult`].
macro_rules! exports {
    ($(
        $(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block
    )*) => { $(
        $(#[$attribute])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> i32 {
            $crate::entry::run(stringify!($name), || {
                $($crate::abi::Argument::check(&$argument)?;)*
                $body
            })
        }
    )* };
}
pub(crate) use exports;

/// Makes exports in pairs: `fn cuName | cuName_ptsz(default; parameter: Type, …) { body }`. The
/// second is what programs get that want one default stream per thread; in the body, `default` says
/// which it is.
macro_rules! exports_by_default_stream {
    ($(
        $(#[$attribute:meta])*
        fn $legacy:ident | $per_thread:ident($default:ident;
            $($argument:ident: $type:ty),* $(,)?) $body:block
    )*) => {
        $crate::entry::exports! { $(
            $(#[$attribute])*
            fn $legacy($($argument: $type),*) {
                let $default = $crate::stream::DefaultStream::Legacy;
                $body
            }

            $(#[$attribute])*
            fn $per_thread($($argument: $type),*) {
                let $default = $crate::stream::DefaultStream::PerThread;
                $body
            }
        )* }
    };
}
pub(crate) use exports_by_default_stream;

/// Not CUDA's: tells this library from NVIDIA's. `partita-gpu` asks it, so that it does not take
/// the shim for the driver where `LD_LIBRARY_PATH` leads it there.
#[unsafe(no_mangle)]
pub extern "C" fn partita_is_shim() -> u32 {
    1
}

/// Runs the body of an export and turns its result into a `CUresult`.
pub fn run(name: &'static str, body: impl FnOnce() -> CuResult) -> i32 {
    coverage::called(name);
    let result = panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        log::say(format_args!(
            "{name} failed inside Partita; please report it with the lines above"
        ));
        Err(CuError::UNKNOWN)
    });
    let code = match result {
        Ok(()) => 0,
        Err(CuError(code)) => code,
    };
    if code != 0 {
        coverage::failed(name);
    }
    if log::traces_calls() {
        log::say(format_args!("{name} -> {code}"));
    }
    code
}

/// Answers a call that Partita refuses, and names it on stderr the first time if `PARTITA_LOG` asks
/// for that.
pub fn refuse(name: &str, reason: &str, said: &AtomicBool) -> i32 {
    coverage::called(name);
    coverage::failed(name);
    if log::is_wanted() && !said.swap(true, Ordering::Relaxed) {
        log::say(format_args!("{name} is not supported (CUDA_ERROR_NOT_SUPPORTED): {reason}"));
    }
    CuError::NOT_SUPPORTED.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_code() {
        assert_eq!(run("cuTest", || panic!("expected by the test")), 999);
    }

    #[test]
    fn results_become_codes() {
        assert_eq!(run("cuTest", || Ok(())), 0);
        assert_eq!(run("cuTest", || Err(CuError::INVALID_VALUE)), 1);
    }
}

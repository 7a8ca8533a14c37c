//! Exports that Partita refuses, made by `build.rs` from `api.table`.

use crate::entry::refuse;
use std::sync::atomic::AtomicBool;

macro_rules! exports_refused {
    ($($name:ident $reason:literal)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> i32 {
            static SAID: AtomicBool = AtomicBool::new(false);
            refuse(stringify!($name), $reason, &SAID)
        }
    )* };
}

include!(concat!(env!("OUT_DIR"), "/refused.rs"));

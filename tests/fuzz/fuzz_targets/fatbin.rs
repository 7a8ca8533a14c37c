//! See `partita_fuzz::fatbin`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| partita_fuzz::fatbin::check(input));

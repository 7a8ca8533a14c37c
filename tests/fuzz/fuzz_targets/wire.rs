//! See `partita_fuzz::wire`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| partita_fuzz::wire::check(input));

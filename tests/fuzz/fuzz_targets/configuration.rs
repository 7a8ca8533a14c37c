//! See `partita_fuzz::configuration`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| partita_fuzz::configuration::check(input));

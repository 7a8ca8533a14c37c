//! See `partita_fuzz::ptx`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| partita_fuzz::ptx::check(input));

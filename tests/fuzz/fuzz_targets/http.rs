//! See `partita_fuzz::http`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| partita_fuzz::http::check(input));

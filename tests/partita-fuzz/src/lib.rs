//! What must hold for every input that a stranger hands to Partita: one function for each fuzz
//! target.
//!
//! `tests/fuzz` runs the functions under libFuzzer, and `tests/seeds.rs` runs them on the committed
//! inputs without it. A function panics where something does not hold. What an input costs is
//! bounded by the fuzzer, in seconds and bytes.
//!
//! | target | input |
//! | --- | --- |
//! | [`ptx`] | the text of a module |
//! | [`wire`] | a message of the handshake, a record, a frame, or what a peer does to shared memory |
//! | [`fatbin`] | an image, as a program or as a client hands it over |
//! | [`http`] | a request to the API |
//! | [`configuration`] | the configuration file |

mod bytes;
pub mod configuration;
pub mod fatbin;
pub mod http;
pub mod ptx;
mod session;
pub mod wire;

/// Checks one input.
pub type Target = fn(&[u8]);

/// The targets by name: the name of the program in `tests/fuzz`, and of the folder of its seeds.
pub const TARGETS: [(&str, Target); 5] = [
    ("ptx", ptx::check),
    ("wire", wire::check),
    ("fatbin", fatbin::check),
    ("http", http::check),
    ("configuration", configuration::check),
];

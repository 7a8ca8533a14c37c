//! Reading the API again and again: the option `--watch`, and what follows from several readings.

pub mod repeat;
#[cfg(test)]
pub mod samples;
pub mod speeds;

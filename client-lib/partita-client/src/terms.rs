//! What a program asks for itself, by environment variables: Partita's own and those of MPS.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `PARTITA_SMS` | minimum and maximum, as in `8..24`, `8..`, `..24`, `24` or `20%..50%` |
//! | `PARTITA_WEIGHT` | weight, 0 to 1,000 |
//! | `PARTITA_PRIORITY` | `latency`, `normal` or `batch` |
//! | `PARTITA_MEMORY` | device memory at most, as in `8G` |
//! | `PARTITA_TARGET` | latency target, as in `5ms` |
//! | `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` | a maximum in per cent of the SMs, where `PARTITA_SMS` names none |
//! | `CUDA_MPS_CLIENT_PRIORITY` | 0 is `normal`, 1 is `batch`, where `PARTITA_PRIORITY` is not set |
//! | `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` | device memory by GPU, as in `0=8G,1=512M` |
//!
//! MPS's variables are read as its documentation says: a percentage in (0, 100], fractions allowed.
//! A value of them that MPS would refuse says nothing here.

use crate::ConnectError;
use partita_model::{GpuNumber, MemoryAmount, Priority, SmAmount, SmRange, Terms};
use std::str::FromStr;

/// The terms for a GPU by the environment.
///
/// # Errors
/// Where a variable of Partita's own means nothing.
pub(crate) fn of_environment(
    gpu: GpuNumber,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Terms, ConnectError> {
    let range: Option<SmRange> = read(&variable, "PARTITA_SMS")?;
    let range = range.unwrap_or_default();
    let percentage = variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    let priority = match variable("CUDA_MPS_CLIENT_PRIORITY").as_deref().map(str::trim) {
        Some("0") => Some(Priority::Normal),
        Some("1") => Some(Priority::Batch),
        _ => None,
    };
    let limits = variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    let memory: Option<MemoryAmount> = read(&variable, "PARTITA_MEMORY")?;
    Ok(Terms {
        min: range.min,
        max: range.max.or_else(|| per_cent(percentage?.trim())),
        weight: read(&variable, "PARTITA_WEIGHT")?,
        priority: read(&variable, "PARTITA_PRIORITY")?.or(priority),
        memory: memory.or_else(|| of_gpu(&limits?, gpu)),
        target: read(&variable, "PARTITA_TARGET")?,
    })
}

/// A GPU's part of MPS's limits of memory.
fn of_gpu(limits: &str, gpu: GpuNumber) -> Option<MemoryAmount> {
    let pairs = limits.split(',').filter_map(|pair| pair.split_once('='));
    let mut own = pairs.filter(|(number, _)| number.trim().parse() == Ok(gpu.0));
    own.next()?.1.trim().parse().ok()
}

fn read<T: FromStr<Err = String>>(
    variable: impl Fn(&str) -> Option<String>,
    name: &'static str,
) -> Result<Option<T>, ConnectError> {
    match variable(name).as_deref().map(str::trim) {
        None | Some("") => Ok(None),
        Some(text) => {
            text.parse().map(Some).map_err(|reason| ConnectError::Terms { variable: name, reason })
        }
    }
}

/// A percentage of MPS, rounded up to a whole one.
fn per_cent(text: &str) -> Option<SmAmount> {
    let part: f64 = text.parse().ok()?;
    // The smallest whole number that is not below it.
    (1..=100_u8)
        .find(|whole| f64::from(*whole) >= part)
        .filter(|_| part > 0.0)
        .map(SmAmount::PerCent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(variables: &[(&str, &str)]) -> Result<Terms, String> {
        of_environment(GpuNumber(1), |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
        .map_err(|error| error.to_string())
    }

    #[test]
    fn variables_of_our_own_go_before_those_of_mps() {
        assert_eq!(terms(&[]), Ok(Terms::default()));
        let mps =
            [("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "33.4"), ("CUDA_MPS_CLIENT_PRIORITY", "1")];
        let found = terms(&mps).unwrap();
        assert_eq!(found.max, Some(SmAmount::PerCent(34)));
        assert_eq!(found.priority, Some(Priority::Batch));
        let own =
            [("PARTITA_SMS", " 8..24 "), ("PARTITA_WEIGHT", "2"), ("PARTITA_PRIORITY", "latency")];
        let found = terms(&[mps, own[..2].try_into().unwrap()].concat()).unwrap();
        assert_eq!((found.min, found.max), (Some(SmAmount::Sms(8)), Some(SmAmount::Sms(24))));
        assert_eq!(found.weight.map(|weight| weight.get()), Some(2));
        assert_eq!(terms(&own[2..]).unwrap().priority, Some(Priority::Latency));
        let limits = ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=8G, 1=512M");
        let bytes = |variables: &[_]| terms(variables).unwrap().memory.map(MemoryAmount::bytes);
        assert_eq!(bytes(&[limits]), Some(512 << 20), "the GPU has number 1");
        assert_eq!(bytes(&[limits, ("PARTITA_MEMORY", "2G")]), Some(2 << 30));
        for nothing in ["", "0=8G", "1", "1=", "1=all", "one=1G"] {
            assert_eq!(bytes(&[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", nothing)]), None, "{nothing}");
        }
        let target = terms(&[("PARTITA_TARGET", "2.5ms")]).unwrap().target.unwrap();
        assert_eq!(target.nanos().0, 2_500_000);
    }

    #[test]
    fn values_without_meaning_are_refused_by_name() {
        for (name, value) in [
            ("PARTITA_SMS", "many"),
            ("PARTITA_WEIGHT", "1001"),
            ("PARTITA_PRIORITY", "high"),
            ("PARTITA_MEMORY", "8 apples"),
            ("PARTITA_TARGET", "soon"),
        ] {
            let error = terms(&[(name, value)]).unwrap_err();
            assert!(error.starts_with(name), "{error}");
        }
        // MPS ignores none of these, but programs run elsewhere with them.
        for value in ["", "0", "-3", "101", "all"] {
            let found = terms(&[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", value)]);
            assert_eq!(found, Ok(Terms::default()), "{value}");
        }
    }
}

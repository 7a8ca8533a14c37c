//! The calibration of a modelled GPU, measured as the daemon measures it.

use partita_emu::{EmulatedGpu, Options, Spec};
use partita_gpu::calibration::measure;
use partita_model::Calibration;
use partita_policy::calibrated;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The figures of a GPU by the calibration kernels, or by its specification where these do not run.
/// A process measures each GPU once.
#[must_use]
pub fn measured(spec: &Spec) -> Calibration {
    static KNOWN: Mutex<BTreeMap<String, Calibration>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let specified = spec.calibration();
    *known.entry(format!("{spec:?}")).or_insert_with(|| {
        let measured = measure(&mut EmulatedGpu::new(spec.clone(), Options::default()));
        measured.ok().and_then(|measured| calibrated(&specified, &measured)).unwrap_or(specified)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_with_slower_memory_measures_slower() {
        let spec = Spec::named("cd-search-24").unwrap();
        let dram_gigabytes_per_second = spec.dram_gigabytes_per_second / 2.0;
        let slow = Spec { dram_gigabytes_per_second, ..spec.clone() };
        let ratio = measured(&slow).dram_bytes_per_second / measured(&spec).dram_bytes_per_second;
        assert!((0.45..0.55).contains(&ratio), "{ratio}");
    }
}

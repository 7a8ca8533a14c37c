//! NVML: a GPU's clocks, power and use, and hit rates of the LLC on GPUs that count them (GPM).

use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, GpmSample, Nvml};
use nvml_wrapper_sys::bindings::{NVML_GPM_METRICS_GET_VERSION, nvmlGpmMetricsGet_t};
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

/// The library that is loaded instead of NVIDIA's, where it lies at an unusual place.
pub const NVML_VARIABLE: &str = "PARTITA_LIBNVIDIA_ML";

const NAME: &str = "libnvidia-ml.so.1";

/// `NVML_GPM_METRIC_DRAM_BW_UTIL`
const DRAM_BANDWIDTH: u32 = 10;
/// `NVML_GPM_METRIC_DRAM_CACHE_HIT`
const LLC_HITS: u32 = 164;
/// `NVML_GPM_METRIC_DRAM_CACHE_MISS`
const LLC_MISSES: u32 = 165;

/// Two samples of GPM must be so far apart (NVML API, "GPM").
pub const GPM_INTERVAL: Duration = Duration::from_millis(100);

/// NVML, for one GPU.
#[derive(Debug)]
pub struct Monitor {
    nvml: Nvml,
    pci_bus_id: String,
}

/// A GPU's readings at one moment. A reading that the GPU does not provide is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reading {
    /// Part of the last moments in which a kernel ran, in percent.
    pub busy_percent: Option<u32>,
    /// SM clock in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Memory clock in MHz.
    pub memory_clock_mhz: Option<u32>,
    /// Power in milliwatts.
    pub milliwatts: Option<u32>,
    /// Energy since the driver was loaded, in millijoules.
    pub millijoules: Option<u64>,
    /// Whether the GPU is cut into instances (MIG).
    pub is_cut: Option<bool>,
}

/// What GPM says of an interval. NVML does not say in what unit hits and misses are; only their
/// ratio is used.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Traffic {
    /// DRAM bandwidth used, in percent.
    pub dram_percent: Option<f64>,
    /// Part of the accesses to the LLC that hit, from 0 to 1.
    pub llc_hit_rate: Option<f64>,
}

impl Monitor {
    /// Loads NVML for the GPU at that place on the bus: the library at `path`, else the one that
    /// the environment names, else NVIDIA's.
    ///
    /// # Errors
    /// NVML's.
    pub fn open(path: Option<&Path>, pci_bus_id: &str) -> Result<Monitor, NvmlError> {
        let named = std::env::var_os(NVML_VARIABLE).filter(|path| !path.is_empty());
        let library = path.map(Path::as_os_str).or(named.as_deref()).unwrap_or(OsStr::new(NAME));
        let nvml = Nvml::builder().lib_path(library).init()?;
        nvml.device_by_pci_bus_id(pci_bus_id)?;
        Ok(Monitor { nvml, pci_bus_id: pci_bus_id.to_owned() })
    }

    fn device(&self) -> Result<Device<'_>, NvmlError> {
        self.nvml.device_by_pci_bus_id(self.pci_bus_id.as_str())
    }

    /// The driver's release, such as 550.54.15.
    ///
    /// # Errors
    /// NVML's.
    pub fn driver_release(&self) -> Result<String, NvmlError> {
        self.nvml.sys_driver_version()
    }

    /// The GPU's present readings.
    #[must_use]
    pub fn read(&self) -> Reading {
        let Ok(device) = self.device() else { return Reading::default() };
        Reading {
            busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
            sm_clock_mhz: device.clock_info(Clock::SM).ok(),
            memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
            milliwatts: device.power_usage().ok(),
            millijoules: device.total_energy_consumption().ok(),
            is_cut: device.mig_mode().ok().map(|mode| mode.current == 1),
        }
    }

    /// Energy since the driver was loaded, in millijoules.
    #[must_use]
    pub fn millijoules(&self) -> Option<u64> {
        self.device().and_then(|device| device.total_energy_consumption()).ok()
    }

    /// Whether the GPU counts traffic (GPM: Hopper and newer).
    #[must_use]
    pub fn counts_traffic(&self) -> bool {
        self.device().and_then(|device| device.gpm_support()).unwrap_or(false)
    }

    /// The traffic while `run` ran, which takes [`GPM_INTERVAL`] at least. It is the whole GPU's:
    /// only where one application ran alone does it say something of that.
    ///
    /// # Errors
    /// NVML's; also where the GPU does not count.
    pub fn traffic(&self, run: impl FnOnce()) -> Result<Traffic, NvmlError> {
        let before = self.sample()?;
        run();
        let after = self.sample()?;
        self.between(&before, &after)
    }

    /// The GPU's counters so far, for [`Monitor::between`]. The call may take milliseconds.
    ///
    /// # Errors
    /// NVML's; also where the GPU does not count.
    pub fn sample(&self) -> Result<GpmSample<'_>, NvmlError> {
        self.device()?.gpm_sample()
    }

    /// The traffic between two samples, [`GPM_INTERVAL`] apart at least.
    ///
    /// # Errors
    /// NVML's.
    pub fn between(
        &self,
        before: &GpmSample<'_>,
        after: &GpmSample<'_>,
    ) -> Result<Traffic, NvmlError> {
        let get = self.nvml.lib().nvmlGpmMetricsGet.as_ref();
        let get = get.map_err(|error| NvmlError::FailedToLoadSymbol(error.to_string()))?;
        // SAFETY: a structure of numbers and pointers, in which zeros are allowed.
        let mut request: nvmlGpmMetricsGet_t = unsafe { std::mem::zeroed() };
        request.version = NVML_GPM_METRICS_GET_VERSION;
        let asked = [DRAM_BANDWIDTH, LLC_HITS, LLC_MISSES];
        request.numMetrics = 3;
        // SAFETY: the sample lives until the call has returned.
        request.sample1 = unsafe { before.handle() };
        // SAFETY: as above.
        request.sample2 = unsafe { after.handle() };
        for (metric, id) in request.metrics.iter_mut().zip(asked) {
            metric.metricId = id;
        }
        // SAFETY: NVML's own function and structure.
        let status = unsafe { get(&raw mut request) };
        nvml_wrapper::error::nvml_try(status)?;
        let [dram, hits, misses] = [0, 1, 2].map(|at| {
            let metric = &request.metrics[at];
            (metric.nvmlReturn == 0 && metric.value.is_finite()).then_some(metric.value)
        });
        let llc_hit_rate = hits.zip(misses).and_then(|(hits, misses)| {
            let all = hits + misses;
            (all > 0.0).then(|| hits / all)
        });
        Ok(Traffic { dram_percent: dram, llc_hit_rate })
    }
}

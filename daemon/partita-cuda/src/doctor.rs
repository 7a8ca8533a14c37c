//! The obstacles to using a GPU, each with its remedy. The examination starts nothing on the GPU.

use crate::driver::{Attribute, Driver, LoadError, Monitor};
use std::io;
use std::path::{Path, PathBuf};

/// The severity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Fine,
    /// A possible obstacle, or none.
    Note,
    /// An obstacle.
    Trouble,
}

/// A finding.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Finding {
    /// The subject of the check.
    pub check: String,
    /// The severity.
    pub verdict: Verdict,
    /// The observation.
    pub found: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn fine(check: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding { check: check.into(), verdict: Verdict::Fine, found: found.into(), remedy: None }
    }

    /// A finding that may not matter.
    pub fn note(
        check: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        let remedy = Some(remedy.into());
        Finding { check: check.into(), verdict: Verdict::Note, found: found.into(), remedy }
    }

    /// A finding that is an obstacle.
    pub fn trouble(
        check: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { verdict: Verdict::Trouble, ..Finding::note(check, found, remedy) }
    }
}

/// The places to examine.
#[derive(Clone, Debug)]
pub struct Places {
    /// The driver's library instead of NVIDIA's.
    pub library: Option<PathBuf>,
    /// NVML's library instead of NVIDIA's.
    pub nvml: Option<PathBuf>,
    /// The folder of device files.
    pub devices: PathBuf,
    /// The folder of the pipes of NVIDIA's sharing service (MPS).
    pub mps_pipes: PathBuf,
}

impl Default for Places {
    fn default() -> Self {
        let pipes = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").map(PathBuf::from);
        Places {
            library: None,
            nvml: None,
            devices: "/dev".into(),
            mps_pipes: pipes.unwrap_or_else(|| "/tmp/nvidia-mps".into()),
        }
    }
}

/// Looks.
#[must_use]
pub fn examine(places: &Places) -> Vec<Finding> {
    let mut findings = vec![device_files(&places.devices)];
    let driver = Driver::load(places.library.as_deref());
    findings.push(driver_finding(&driver));
    findings.push(mps(&places.mps_pipes));
    if let Ok(driver) = driver {
        let count = driver.device_count().unwrap_or(0);
        if count == 0 {
            findings.push(Finding::trouble(
                "GPUs",
                "the driver shows none",
                "look at CUDA_VISIBLE_DEVICES, at `nvidia-smi -L`, and in the kernel's log for \
                 NVRM",
            ));
        }
        for ordinal in 0..count {
            findings.extend(gpu(&driver, ordinal, places.nvml.as_deref()));
        }
    }
    findings
}

/// Checks the GPUs' device files, and this user's access to them.
fn device_files(folder: &Path) -> Finding {
    const CHECK: &str = "device files";
    let is_gpu = |name: &str| {
        name.strip_prefix("nvidia")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let names = |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    let mut found: Vec<String> = std::fs::read_dir(folder)
        .map(|entries| entries.filter_map(names).filter(|name| is_gpu(name)).collect())
        .unwrap_or_default();
    found.sort();
    if found.is_empty() {
        return Finding::note(
            CHECK,
            format!("no GPU in {}", folder.display()),
            "on a machine without a GPU nothing; else load the driver's module: `modprobe nvidia \
             nvidia-uvm`, \
             and in containers hand the devices in",
        );
    }
    found.extend(["nvidiactl".to_owned(), "nvidia-uvm".to_owned()]);
    for name in &found {
        let path = folder.join(name);
        let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
        match rustix::fs::access(&path, access) {
            Ok(()) => {}
            Err(rustix::io::Errno::NOENT) => {
                return Finding::trouble(
                    CHECK,
                    format!("{} is missing", path.display()),
                    "load the driver's modules: `modprobe nvidia nvidia-uvm`, or run \
                     `nvidia-modprobe -u -c 0`",
                );
            }
            Err(error) => {
                return Finding::trouble(
                    CHECK,
                    format!("{}: {error}", path.display()),
                    "give the user of partita-gpu access: its group on the device files, or a \
                     udev rule; \
                     in a container, the device cgroup",
                );
            }
        }
    }
    Finding::fine(CHECK, found.join(", "))
}

fn driver_finding(driver: &Result<std::sync::Arc<Driver>, LoadError>) -> Finding {
    const CHECK: &str = "driver";
    match driver {
        Ok(driver) => {
            let version = driver.version();
            Finding::fine(CHECK, format!("CUDA {}.{}", version / 1000, version % 1000 / 10))
        }
        Err(error @ LoadError::Missing { .. }) => Finding::note(
            CHECK,
            error.to_string(),
            "install NVIDIA's driver, release 550 or newer, or serve the emulated GPU: `partitad \
             --device emu`",
        ),
        Err(error @ LoadError::Shim { .. }) => Finding::trouble(
            CHECK,
            error.to_string(),
            "look at LD_LIBRARY_PATH and LD_PRELOAD: programs get the library by `partita run`, \
             the daemon never",
        ),
        Err(error @ (LoadError::Incomplete { .. } | LoadError::Old { .. })) => {
            Finding::trouble(CHECK, error.to_string(), "install release 550 or newer")
        }
        Err(LoadError::Start(failure)) => {
            let remedy = match failure.code {
                100 => "no GPU is visible: look at CUDA_VISIBLE_DEVICES and at `nvidia-smi -L`",
                101 | 999 => {
                    "load the module nvidia-uvm, and look in the kernel's log for NVRM and Xid"
                }
                802 => {
                    "wait until the fabric manager is up: `systemctl status nvidia-fabricmanager`"
                }
                803 | 804 => {
                    "library and kernel module are of different releases: restart, or load the \
                     module again"
                }
                805..=808 => {
                    "NVIDIA's sharing service stands in the way: `echo quit | \
                     nvidia-cuda-mps-control`"
                }
                _ => "look in the kernel's log for NVRM and Xid",
            };
            Finding::trouble(CHECK, failure.to_string(), remedy)
        }
    }
}

/// Checks for MPS, NVIDIA's sharing service.
fn mps(pipes: &Path) -> Finding {
    const CHECK: &str = "MPS";
    if pipes.join("control").exists() {
        return Finding::trouble(
            CHECK,
            format!("its pipes are in {}", pipes.display()),
            "Partita shares the GPU itself; end it: `echo quit | nvidia-cuda-mps-control`, and \
             unset \
             CUDA_MPS_PIPE_DIRECTORY",
        );
    }
    Finding::fine(CHECK, "is not running")
}

fn gpu(driver: &Driver, ordinal: u32, nvml: Option<&Path>) -> Vec<Finding> {
    let name = driver.device_name(ordinal).unwrap_or_else(|error| error.to_string());
    let check = format!("GPU {ordinal}");
    let get = |attribute| driver.device_attribute(ordinal, attribute).unwrap_or(0);
    let mut findings = Vec::new();
    let capability =
        (get(Attribute::ComputeCapabilityMajor), get(Attribute::ComputeCapabilityMinor));
    let shown = format!("{name}, compute capability {}.{}", capability.0, capability.1);
    findings.push(if capability < (7, 5) {
        Finding::trouble(&check, shown, "7.5 is the least: GPUs from Turing on")
    } else if get(Attribute::VirtualMemoryManagement) == 0 {
        Finding::trouble(
            &check,
            format!("{shown}, without virtual memory management"),
            "on virtual GPUs, turn unified memory on for the machine, or give it the whole GPU",
        )
    } else {
        Finding::fine(&check, format!("{shown}, {} SMs", get(Attribute::MultiprocessorCount)))
    });
    let mode = format!("{check} compute mode");
    findings.push(match get(Attribute::ComputeMode) {
        0 => Finding::fine(mode, "default"),
        2 => Finding::trouble(
            mode,
            "prohibited: no process may use it",
            format!("`nvidia-smi -i {ordinal} -c DEFAULT`"),
        ),
        _ => Finding::note(
            mode,
            "exclusive: one process may use it, which must be partita-gpu",
            format!("if another one has it, `nvidia-smi -i {ordinal} -c DEFAULT`"),
        ),
    });
    let limit = format!("{check} run time limit");
    findings.push(match get(Attribute::KernelExecTimeout) {
        0 => Finding::fine(limit, "none"),
        _ => Finding::trouble(
            limit,
            "it serves a display: the driver ends kernels that run for seconds, and workers do",
            "let another GPU serve the display, or end it (`systemctl isolate multi-user.target`)",
        ),
    });
    let monitor = driver
        .device_pci_bus_id(ordinal)
        .map_err(|error| error.to_string())
        .and_then(|id| Monitor::open(nvml, &id).map_err(|error| error.to_string()));
    let (mig, counters) = (format!("{check} MIG"), format!("{check} NVML"));
    match monitor {
        Err(error) => findings.push(Finding::note(
            counters,
            error,
            "install libnvidia-ml.so.1 of the driver's release; without it there is no power and \
             no utilisation",
        )),
        Ok(monitor) => {
            let reading = monitor.read();
            findings.push(if reading.is_cut == Some(true) {
                Finding::trouble(
                    mig,
                    "the GPU is cut into instances, whose SMs cannot be moved",
                    format!("`nvidia-smi -i {ordinal} -mig 0`"),
                )
            } else {
                Finding::fine(mig, "off")
            });
            let release = monitor.driver_release().unwrap_or_else(|error| error.to_string());
            let traffic = if monitor.counts_traffic() {
                "counts traffic"
            } else {
                "counts no \
                traffic"
            };
            findings.push(Finding::fine(counters, format!("release {release}, {traffic}")));
        }
    }
    findings
}

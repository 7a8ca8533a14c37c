//! Readings of NVML, on the stand-in for it.

mod fake;

use fake::Fake;
use partita_cuda_device::driver::{GPM_INTERVAL, Monitor, Reading};
use partita_device::Device;

#[test]
fn a_gpu_tells_of_itself() {
    let fake = Fake::new();
    let monitor = Monitor::open(Some(&fake.path()), "0000:01:00.0").expect("the stand-in opens");
    let expected = Reading {
        busy_percent: Some(42),
        sm_clock_mhz: Some(1755),
        memory_clock_mhz: Some(2619),
        milliwatts: Some(123_456),
        millijoules: Some(7_000_001),
        is_cut: Some(false),
    };
    assert_eq!(monitor.read(), expected);
    fake.tell("fail nvmlDeviceGetPowerUsage 3");
    assert_eq!(monitor.read(), Reading { milliwatts: None, ..expected });
}

#[test]
fn hits_and_misses_make_a_rate() {
    let fake = Fake::new();
    let monitor = Monitor::open(Some(&fake.path()), "0000:01:00.0").expect("the stand-in opens");
    assert!(monitor.counts_traffic());
    let traffic = monitor.traffic(|| std::thread::sleep(GPM_INTERVAL)).expect("it counts");
    assert_eq!((traffic.llc_hit_rate, traffic.dram_percent), (Some(0.75), Some(12.5)));
    assert_eq!(
        (fake.logged("nvmlGpmSampleAlloc").len(), fake.logged("nvmlGpmSampleFree").len()),
        (2, 2)
    );
    fake.tell("set gpm 0");
    assert!(!monitor.counts_traffic());
    assert!(monitor.traffic(|| ()).is_err());
}

#[test]
fn energy_counts_from_the_opening() {
    let fake = Fake::new();
    let options = partita_cuda_device::Options { nvml: Some(fake.path()), ..fake.options() };
    let device = partita_cuda_device::CudaDevice::open(&options).expect("the stand-in opens");
    assert_eq!(device.nanojoules(), Some(0));
    fake.tell("set millijoules 7000003");
    assert_eq!(device.nanojoules(), Some(2_000_000));
}

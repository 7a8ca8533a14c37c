//! The calibration kernels find the numbers of the modelled GPU, through nothing but the contract
//! of a device.

use partita_emu::{EmulatedGpu, Options, Spec};
use partita_gpu::calibration::measure;

#[test]
fn what_is_measured_is_what_the_spec_says() {
    for name in ["cd-search-24", "masola-rtx2060", "titan-xp"] {
        let spec = Spec::named(name).unwrap();
        let mut gpu = EmulatedGpu::new(spec.clone(), Options::default());
        let measured = measure(&mut gpu).unwrap();
        println!("{name}: {measured:?}");
        let near = |what: &str, found: f64, wanted: f64, part: f64| {
            assert!(
                (found / wanted - 1.0).abs() < part,
                "{name}: {what} is {found:.4e}, not {wanted:.4e}"
            );
        };
        let specified = spec.calibration();
        near(
            "instruction rate",
            measured.warp_instructions_per_cycle,
            specified.warp_instructions_per_cycle,
            0.05,
        );
        let port = specified.noc_bytes_per_second / f64::from(spec.sms);
        near("crossbar bandwidth", measured.sm_bytes_per_second, port, 0.08);
        let llc = specified.llc_bytes_per_second.min(specified.noc_bytes_per_second);
        near("LLC bandwidth", measured.llc_bytes_per_second, llc, 0.08);
        let dram = specified.dram_bytes_per_second * spec.dram_efficiency;
        near("DRAM bandwidth", measured.dram_bytes_per_second, dram, 0.08);
        near("launch", measured.launch_nanos, spec.launch_nanoseconds as f64, 0.5);
        assert_eq!(measured.sms_seen, spec.sms, "{name}");
    }
}

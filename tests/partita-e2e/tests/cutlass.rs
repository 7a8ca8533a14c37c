//! CUTLASS's own examples, unchanged: they check their results against products that a host
//! computes.

use partita_e2e::daemon::Daemon;
use partita_e2e::toolchain;
use std::path::PathBuf;
use std::process::Output;

/// FP8 products by warp groups: one group copies tiles by tensor maps, others multiply, and the
/// epilogue is a tree of visitors. The last tiles reach beyond the matrices.
fn hopper_fp8() -> PathBuf {
    let name = "54_hopper_fp8_warp_specialized_gemm/54_hopper_fp8_warp_specialized_gemm";
    toolchain::cutlass_example(name, "90a")
}

/// Products by `mma` and `cp.async`, among them stream-K, whose CTAs wait for each other's sums.
fn ampere_stream_k() -> PathBuf {
    let name = "47_ampere_gemm_universal_streamk/ampere_gemm_universal_streamk";
    toolchain::cutlass_example(name, "90")
}

const HOPPER: [&str; 4] = ["--m=272", "--n=208", "--k=336", "--iterations=0"];
const STREAM_K: [&str; 4] = ["--m=256", "--n=320", "--k=512", "--iterations=1"];

/// As many results as the program compares, and no failed one.
fn expect_passed(output: &Output, results: usize) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let found = text.matches("Disposition: Passed").count();
    assert!(
        output.status.success() && found == results && !text.contains("Failed"),
        "{}\n{text}\n{errors}",
        output.status
    );
}

#[test]
fn stream_k_beside_warp_groups() {
    let (one, other) = (ampere_stream_k(), hopper_fp8());
    for device in ["emu", "emu,timing=off"] {
        let daemon = Daemon::start(device);
        let (one, other) = std::thread::scope(|scope| {
            let one = scope.spawn(|| daemon.run(&one).args(STREAM_K).output());
            let other = daemon.run(&other).args(HOPPER).output();
            (one.join().expect("the thread ends"), other)
        });
        expect_passed(&one.expect("partita can be started"), 5);
        expect_passed(&other.expect("partita can be started"), 1);
    }
}

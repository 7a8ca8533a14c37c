//! What every instruction gives, against results computed without the emulator: exact integers of
//! any size, rounded once. Each spelling of an instruction is one kernel that reads operands from
//! memory and writes the result.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
#![expect(
    clippy::cast_possible_truncation,
    reason = "a narrow operand is the low bits of its slot"
)]
#![expect(clippy::type_complexity, reason = "tables hold the function that a spelling stands for")]

mod approximate;
mod atomic;
mod blackwell;
mod compare;
mod convert;
mod exact;
mod float;
mod harness;
mod integer;
mod moves;
mod narrow;
mod packed;
mod places;
mod scalar_video;
mod warp;
mod wide;

/// The compiler makes other code of the same loops for narrower vector units. The other tests here
/// run on the widest that the processor has.
#[test]
fn narrower_vector_units_answer_alike() {
    for name in ["baseline", "avx2"] {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--skip", "narrower_vector_units_answer_alike"])
            .env(harness::UNITS, name)
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

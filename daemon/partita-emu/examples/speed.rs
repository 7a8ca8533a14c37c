//! Prints how fast the emulator is on this host: all workloads, or the one that the first argument names. With a
//! second argument, without timing only.

use partita_emu::{Spec, Timing, dispatch, speed};

fn main() {
    let only = std::env::args().nth(1);
    let spec = Spec::named("cd-search-24").expect("the spec ships with the crate");
    println!("calibration: {:.0} million steps/s; {}", speed::calibration(), dispatch::instruction_set());
    let modes: &[Timing] =
        if std::env::args().len() > 2 { &[Timing::Off] } else { &[Timing::Off, Timing::On] };
    for &timing in modes {
        println!("timing {timing:?}");
        for figure in speed::measure(&spec, timing, 1, only.as_deref()).expect("the workloads run") {
            println!(
                "  {:8} {:8.0} million thread instructions/s  ({:.4} s, {} cycles)",
                figure.name,
                figure.millions_per_second(),
                figure.seconds,
                figure.cycles
            );
        }
    }
}

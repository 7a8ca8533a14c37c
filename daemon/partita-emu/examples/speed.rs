//! Prints how fast the emulator is on this host: all workloads, or the one that the first argument
//! names. With a second argument, without timing only. With `start`, what comes before a kernel
//! runs.

use partita_emu::{Options, Spec, Timing, dispatch, speed, start};

fn main() {
    let only = std::env::args().nth(1);
    let spec = Spec::named("cd-search-24").expect("the spec ships with the crate");
    println!(
        "calibration: {:.0} million steps/s; {}",
        speed::calibration(),
        dispatch::instruction_set()
    );
    if only.as_deref() == Some("start") {
        let module = start::generated_module(start::MODULE_BYTES);
        let found =
            start::measure("cd-search-24", Options::default(), &module).expect("the module loads");
        println!("{found:?}");
        return;
    }
    let modes: &[Timing] =
        if std::env::args().len() > 2 { &[Timing::Off] } else { &[Timing::Off, Timing::On] };
    for &timing in modes {
        println!("timing {timing:?}");
        for figure in speed::measure(&spec, timing, 1, only.as_deref()).expect("the workloads run")
        {
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

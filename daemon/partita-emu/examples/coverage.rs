//! Prints which kernels of PTX files this device cannot run, and why.

use partita_device::{Device, Event, Horizon};
use partita_emu::{EmulatedGpu, Options, Spec};
use partita_model::{ModuleId, WindowId};

fn main() {
    let spec = Spec::named("h200").expect("the spec ships with the crate");
    let mut gpu = EmulatedGpu::new(spec, Options::default());
    let (mut good, mut bad) = (0, 0);
    for (index, path) in std::env::args().skip(1).enumerate() {
        let text = std::fs::read_to_string(&path).expect("the file can be read");
        let (window, module) = (WindowId(index as u64), ModuleId(index as u64));
        gpu.reserve(window, 1 << 30).expect("there is room");
        gpu.load_module(module, window, text.into()).expect("the id is fresh");
        let mut events = Vec::new();
        gpu.poll(Horizon { until: None, warp_instructions: 1 }, &mut events);
        for event in events {
            match event {
                Event::ModuleLoaded { facts, .. } => {
                    good += facts.kernels.len();
                    bad += facts.refused.len();
                    for refused in facts.refused {
                        println!("{path}: {}: {}", refused.name, refused.reason());
                    }
                }
                Event::ModuleRefused { reason, .. } => {
                    bad += 1;
                    println!("{path}: {reason}");
                }
                _ => {}
            }
        }
    }
    println!("{good} kernels can run, {bad} cannot");
}

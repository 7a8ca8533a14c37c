//! Hit rates of the LLC, by NVML's counters (GPM), in windows that the owner names.
//!
//! A sample of NVML may take milliseconds, so a thread takes it. The samples lie as close to the
//! window's borders as the thread is quick; windows last hundreds of milliseconds. The caller must
//! know that no other work ran in between.

use crate::driver::{GPM_INTERVAL, Monitor};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

enum Order {
    Begin(u64),
    End(u64),
}

/// The thread that samples the GPU's LLC counters, where the GPU has them.
pub(crate) struct Traffic {
    orders: Sender<Order>,
    rates: Receiver<(u64, f64)>,
}

impl Traffic {
    /// Starts the thread for the GPU at this PCI address.
    pub(crate) fn start(nvml: Option<PathBuf>, pci_bus_id: String) -> std::io::Result<Traffic> {
        let (orders, received) = channel();
        let (answer, rates) = channel();
        std::thread::Builder::new().name("traffic".into()).spawn(move || {
            match Monitor::open(nvml.as_deref(), &pci_bus_id) {
                Ok(monitor) => carry_out(&monitor, &received, &answer),
                Err(error) => tracing::info!(%error, "hit rates of the LLC are not available"),
            }
        })?;
        Ok(Traffic { orders, rates })
    }

    pub(crate) fn begin(&self, window: u64) {
        // If the thread has ended, the window has no result.
        let _ = self.orders.send(Order::Begin(window));
    }

    pub(crate) fn end(&self, window: u64) {
        let _ = self.orders.send(Order::End(window));
    }

    pub(crate) fn take(&self) -> Vec<(u64, f64)> {
        self.rates.try_iter().collect()
    }
}

fn carry_out(monitor: &Monitor, orders: &Receiver<Order>, answer: &Sender<(u64, f64)>) {
    let mut begun = None;
    for order in orders {
        match order {
            Order::Begin(window) => {
                begun = monitor.sample().ok().map(|sample| (window, Instant::now(), sample));
            }
            Order::End(window) => {
                let Some((_, since, before)) = begun.take_if(|(number, ..)| *number == window)
                else {
                    continue;
                };
                if since.elapsed() < GPM_INTERVAL {
                    continue;
                }
                let traffic = monitor.sample().and_then(|after| monitor.between(&before, &after));
                let rate = traffic.ok().and_then(|traffic| traffic.llc_hit_rate);
                if let Some(rate) = rate.filter(|rate| (0.0..=1.0).contains(rate))
                    && answer.send((window, rate)).is_err()
                {
                    return;
                }
            }
        }
    }
}

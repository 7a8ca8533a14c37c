//! The time beside others by windows of overlap (Masola §7, Eq. 5–16).
//!
//! All launches begin at 0 and take their time alone; the ends of these times cut windows, in each
//! of which the same launches run. A launch's time in a window grows with the bandwidth that all of
//! them ask for.
//!
//! | symbol in the paper | here |
//! | --- | --- |
//! | C_k(n), BW_isolated(k, n), L2Accesses(k) | [`Resident`] |
//! | w, K(w) | [`Window`] |
//! | P_overlap, I(w), Π, Penalties | [`overlap`], [`interference`], [`slowdown`], [`penalties`] |

use super::{Form, Gpu};

/// A launch on its SMs, as it is alone there.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Resident {
    /// n: its SMs.
    pub sms: u16,
    /// C_k(n): nanoseconds alone on them.
    pub alone: f64,
    /// BW_isolated(k, n): bytes per nanosecond alone on them.
    pub bandwidth: f64,
    /// L2Accesses(k): sectors of the whole launch.
    pub accesses: f64,
}

/// A window: its length, and the launches in it.
struct Window<'a> {
    size: f64,
    running: Vec<&'a Resident>,
}

/// Eq. 8: nanoseconds of each launch beside the others.
#[must_use]
pub fn interfered(gpu: &Gpu, launches: &[Resident], form: Form) -> Vec<f64> {
    let windows = windows(launches);
    let time = |launch: &Resident| {
        let own = windows.iter().filter(|window| window.has(launch));
        let spent = own.map(|window| {
            let part = overlap(launch, window);
            launch.alone * part * interference(gpu, window) * slowdown(gpu, launch, window, form)
        });
        spent.sum()
    };
    launches.iter().map(time).collect()
}

impl Window<'_> {
    fn has(&self, launch: &Resident) -> bool {
        self.running.iter().any(|running| std::ptr::eq(*running, launch))
    }

    fn bandwidth(&self) -> f64 {
        self.running.iter().map(|launch| launch.bandwidth).sum()
    }

    fn count(&self) -> f64 {
        self.running.iter().map(|_| 1.0).sum()
    }
}

fn windows(launches: &[Resident]) -> Vec<Window<'_>> {
    let mut ends: Vec<f64> = launches.iter().map(|launch| launch.alone).collect();
    ends.sort_by(f64::total_cmp);
    let mut from = 0.0;
    let mut windows = Vec::new();
    for end in ends {
        if end > from {
            let running = launches.iter().filter(|launch| launch.alone >= end).collect();
            windows.push(Window { size: end - from, running });
            from = end;
        }
    }
    windows
}

/// Eq. 5: the part of a launch's time alone that a window is.
fn overlap(launch: &Resident, window: &Window<'_>) -> f64 {
    window.size / launch.alone
}

/// Eq. 7: how much more bandwidth is asked for than S_p of the nominal one, at least 1.
fn interference(gpu: &Gpu, window: &Window<'_>) -> f64 {
    (window.bandwidth() / (gpu.nominal * gpu.saturation)).max(1.0)
}

/// Eq. 6: Π.
fn slowdown(gpu: &Gpu, launch: &Resident, window: &Window<'_>, form: Form) -> f64 {
    if window.bandwidth() < gpu.effective { 1.0 } else { penalties(gpu, launch, window, form) }
}

/// Eq. 9–15. The launch that asks for the most bandwidth in a window is the elected one, which has
/// the first case of Eq. 15. Eq. 12 names Eq. 3 and means Eq. 14.
fn penalties(gpu: &Gpu, launch: &Resident, window: &Window<'_>, form: Form) -> f64 {
    let by_sms = f64::from(gpu.sms) / f64::from(launch.sms.max(1)) / window.count();
    let accesses = |launch: &Resident| launch.accesses * overlap(launch, window);
    let all: f64 = window.running.iter().map(|launch| accesses(launch)).sum();
    let by_access = accesses(launch) / all.max(f64::MIN_POSITIVE) * overlap(launch, window);
    let by_bandwidth = launch.bandwidth / (gpu.nominal / window.count());
    let product = by_sms * by_access * by_bandwidth;
    let most = window.running.iter().max_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth));
    let is_elected = most.is_some_and(|most| std::ptr::eq(*most, launch));
    let penalty = if product < 1.0 || is_elected {
        by_bandwidth.min(interference(gpu, window))
    } else if product >= 2.0 {
        densest(launch, window, form)
    } else {
        product
    };
    match form {
        Form::Printed => penalty,
        Form::Mended => penalty.clamp(1.0, 2.0),
    }
}

/// Eq. 16: accesses a nanosecond as a part of the most of any launch in the window. Mended, 1 is
/// added: as printed the greatest penalty is 1, and the text bounds penalties by 1 and 2.
fn densest(launch: &Resident, window: &Window<'_>, form: Form) -> f64 {
    let density =
        |launch: &Resident| launch.accesses * overlap(launch, window) / launch.alone.max(1e-9);
    let most = window.running.iter().map(|launch| density(launch)).fold(1e-300, f64::max);
    match form {
        Form::Printed => density(launch) / most,
        Form::Mended => 1.0 + density(launch) / most,
    }
}

//! How the speed of an application grows with its SMs: one curve, fitted to everything measured.
//!
//! Bandwidth outside the SMs saturates exponentially with the SMs that share it (Masola, JSSPP '23,
//! Eq. 17). With `n` SMs of a GPU of `N` an application has the speed
//!
//! ```text
//! speed(n) = h × (1 − left^(n ÷ (N ÷ 2))) × full(slots ÷ n)
//! full(r)  = r ÷ ⌈r⌉
//! ```
//!
//! | symbol | here | unit |
//! | --- | --- | --- |
//! | n ÷ (N ÷ 2) | SMs as a part of half of all SMs | 1 |
//! | left (Masola: e^(−β N ÷ 2)) | [`Curve::left`]: what half of all SMs leave of the distance to the greatest speed | 1, in (0, 1) |
//! | h (Masola: β₀) | [`Curve::height`]: the greatest speed, in units of a reference speed | 1 |
//! | slots | SMs that the CTAs of a launch fill once | SMs |
//! | full | part of its rounds' places that a launch fills: the last round lasts as long as the others | 1 |
//!
//! All SMs are 1 + `left` times as fast as half of them. So the class, which is defined by that
//! gain, is a statement about `left`.

/// One measurement: SMs, and the speed that they had.
pub(crate) type Observation = (u16, f64);

/// The curve of one application.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Curve {
    /// Half of the SMs of the GPU.
    half: f64,
    /// What half of all SMs leave of the distance to the greatest speed.
    pub(crate) left: f64,
    /// The greatest speed, in units of the reference.
    height: f64,
    /// SMs that the CTAs of a launch fill once, where launches last for few rounds.
    slots: Option<f64>,
}

/// `left` stays so far from 0, where any SM would be enough, and from 1, where no number would be.
const MARGIN: f64 = 1e-3;
/// Values of `left` that are compared: neighbours differ by a sixteenth, less than the fit can tell
/// apart by two measurements of 3 %.
const PARTS: u8 = 16;
/// Squared errors that differ by less are the same.
const ROUNDING: f64 = 1e-12;

impl Curve {
    /// The curve of a GPU of so many SMs with the greatest speed 1.
    pub(crate) fn new(sms: u16, slots: Option<f64>, left: f64) -> Self {
        Curve { half: (f64::from(sms) / 2.0).max(0.5), left, height: 1.0, slots }
    }

    /// The curve of a GPU of so many SMs that fits best to measurements, with `left` between two
    /// bounds; with the `left` that is expected where others fit no better.
    ///
    /// A least-squares fit: for each `left` the height has a closed form.
    pub(crate) fn fitted(
        sms: u16,
        slots: Option<f64>,
        expected: f64,
        bounds: (f64, f64),
        measured: &[Observation],
    ) -> Self {
        let (least, most) = (bounds.0.max(MARGIN), bounds.1.min(1.0 - MARGIN));
        let expected = expected.max(least).min(most);
        let between = |part: u8| least + (most - least) * f64::from(part) / f64::from(PARTS);
        let all: f64 = measured.iter().map(|(_, speed)| speed * speed).sum();
        let with = |left: f64| {
            let curve = Curve::new(sms, slots, left);
            let (height, explained) = curve.fit_height(measured);
            (all - explained, Curve { height, ..curve })
        };
        // One measurement fits all curves, but for rounding.
        let better = |best: (f64, Curve), next: (f64, Curve)| {
            if next.0 < best.0 - ROUNDING { next } else { best }
        };
        (0..=PARTS).map(between).map(with).fold(with(expected), better).1
    }

    /// The speed with so many SMs, in units of the reference.
    pub(crate) fn speed(&self, sms: u16) -> f64 {
        let n = f64::from(sms);
        self.height * (1.0 - self.left.powf(n / self.half)) * full(self.slots, sms)
    }

    /// The speeds with 0, 1, 2 … `most` SMs.
    pub(crate) fn speeds(&self, most: u16) -> Vec<f64> {
        let each = self.left.powf(1.0 / self.half);
        let leaves = std::iter::successors(Some(1.0), |left| Some(left * each));
        let speed = |(sms, left): (u16, f64)| self.height * (1.0 - left) * full(self.slots, sms);
        (0..=most).zip(leaves).map(speed).collect()
    }

    /// How much faster `more` SMs are than `fewer`.
    pub(crate) fn gain(&self, fewer: u16, more: u16) -> f64 {
        self.speed(more) / self.speed(fewer.max(1)).max(f64::MIN_POSITIVE)
    }

    /// The height that fits best to some speeds, and the part of the sum of their squares that is
    /// no error then.
    fn fit_height(&self, measured: &[Observation]) -> (f64, f64) {
        let (both, squares) = measured.iter().fold((0.0, 0.0), |(both, squares), &(sms, speed)| {
            let on = self.speed(sms);
            (both + on * speed, squares + on * on)
        });
        if squares > 0.0 { (both / squares, both * both / squares) } else { (1.0, 0.0) }
    }
}

/// The part of its rounds' places that a launch fills whose CTAs fill `slots` SMs once.
pub(crate) fn full(slots: Option<f64>, sms: u16) -> f64 {
    let Some(slots) = slots.filter(|slots| *slots > 0.0 && sms > 0) else { return 1.0 };
    let rounds = slots / f64::from(sms);
    // A quotient of whole numbers may lie beside a whole one by its last digits.
    let taken = (rounds - 1e-6).ceil().max(1.0);
    if rounds.is_finite() { rounds / taken } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(left: f64, height: f64) -> Curve {
        Curve { height, ..Curve::new(24, None, left) }
    }

    fn at(curve: Curve, sms: &[u16]) -> Vec<Observation> {
        sms.iter().map(|&sms| (sms, curve.speed(sms))).collect()
    }

    #[test]
    fn curves_are_found_again() {
        for left in [0.05, 0.3, 0.5, 0.9] {
            let true_curve = curve(left, 1.0 / (1.0 - left));
            let found = Curve::fitted(24, None, 0.5, (0.0, 1.0), &at(true_curve, &[12, 6, 18]));
            assert!((found.left - left).abs() < 0.05, "{left}: {found:?}");
            for sms in [3, 9, 20] {
                let (found, wanted) = (found.speed(sms), true_curve.speed(sms));
                assert!((found - wanted).abs() < 0.05, "{left}: {found}, not {wanted}");
            }
        }
    }

    /// The first interval was a slow one, so the others seem too fast.
    #[test]
    fn a_wrong_reference_is_seen() {
        let true_curve = curve(0.3, 1.1 / 0.7);
        let mut measured = at(true_curve, &[8, 10, 14, 16]);
        measured.push((12, 1.0));
        let found = Curve::fitted(24, None, 0.3, (0.0, 0.5), &measured);
        assert!((found.left - 0.3).abs() < 0.1, "{found:?}");
        assert!(found.speed(12) > 1.05, "{found:?}");
    }

    /// Wave quantisation: a program of 54 CTAs on SMs that hold one each.
    #[test]
    fn launches_of_few_rounds_go_by_steps() {
        // 12 SMs take five rounds, and so do 11.
        for (sms, rounds) in [(8, 7.0), (10, 6.0), (11, 5.0), (12, 5.0), (16, 4.0), (24, 3.0)] {
            let speed = f64::from(sms) * full(Some(54.0), sms);
            assert!((speed - 54.0 / rounds).abs() < 1e-3, "{sms}: {speed}");
        }
        assert!((full(None, 5) - 1.0).abs() < 1e-9);
        for odd in [f64::NAN, -1.0, 0.0, f64::INFINITY, f64::MIN_POSITIVE] {
            assert!(full(Some(odd), 7).is_finite() && full(Some(odd), 0).is_finite(), "{odd}");
        }
    }

    #[test]
    fn without_measurements_it_is_what_was_expected() {
        // Nothing runs on no SM, whatever was measured there.
        for measured in [&[][..], &[(12, 1.0)][..], &[(0, 0.5)][..]] {
            let found = Curve::fitted(24, None, 0.4, (0.2, 0.6), measured);
            assert!((found.left - 0.4).abs() < 1e-9, "{found:?}");
            assert!(found.speed(12) > 0.0, "{found:?}");
        }
        let absurd = [(12, 1.0), (6, 1e9), (24, 0.0), (0, f64::NAN)];
        let found = Curve::fitted(24, None, 0.5, (0.0, 1.0), &absurd);
        assert!(found.left > 0.0 && found.left < 1.0, "{found:?}");
    }

    #[test]
    fn speeds_of_all_numbers_are_those_of_each() {
        for (slots, left) in [(None, 0.3), (Some(54.0), 0.001), (Some(7.0), 0.999)] {
            let curve = Curve::new(132, slots, left);
            for (sms, speed) in (0..=132).zip(curve.speeds(132)) {
                assert!((speed - curve.speed(sms)).abs() < 1e-12, "{sms}: {speed}");
            }
        }
    }

    #[test]
    fn gains_are_those_of_the_definition() {
        let near = |found: f64, wanted: f64| {
            assert!((found - wanted).abs() < 1e-3, "{found}, not {wanted}")
        };
        let on = |sms, fewer, more| Curve::new(sms, None, 0.5).gain(fewer, more);
        near(on(24, 12, 24), 1.5);
        near(on(132, 66, 132), 1.5);
        near(on(24, 12, 18), 1.293);
        // Where one doubling gains 1 + x, the next gains 1 + x².
        near(on(24, 6, 12), 1.0 + 0.5_f64.sqrt());
        near(on(24, 3, 6), 1.0 + 0.5_f64.sqrt().sqrt());
        assert!(on(0, 0, 0).is_finite());
    }

    /// Speed that grows with each SM alike is of a `left` near 1; speed that does not grow, near 0.
    #[test]
    fn a_fit_stays_between_its_bounds() {
        let linear = [(6, 1.0), (12, 2.0), (24, 4.0)];
        let flat = [(6, 1.0), (12, 1.0), (24, 1.0)];
        for (measured, bounds, expected) in [
            (&linear[..], (0.2, 0.6), 0.6),
            (&flat[..], (0.2, 0.6), 0.2),
            (&linear[..], (0.0, 5.0), 0.999),
            (&flat[..], (0.0, 5.0), 0.001),
        ] {
            let found = Curve::fitted(24, None, 7.0, bounds, measured);
            assert!((found.left - expected).abs() < 1e-9, "{bounds:?}: {found:?}");
        }
        assert!((Curve::fitted(24, None, 7.0, (0.2, 5.0), &[]).left - 0.999).abs() < 1e-9);
        // Slots that are no number of SMs say nothing.
        for slots in [0.0, -1.0, f64::NAN] {
            assert!((full(Some(slots), 7) - 1.0).abs() < 1e-12, "{slots}");
        }
    }
}

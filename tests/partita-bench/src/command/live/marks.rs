//! The kernel `mark`: one long launch, and whether every CTA of it ran once and in its turn.

use super::stage::{MARK, Stage};
use partita_cli::failure::Failure;
use partita_model::{DeviceAddress, SessionId};

/// A launch of `mark`.
pub struct Marks {
    out: DeviceAddress,
    #[cfg(test)]
    session: SessionId,
    #[cfg(test)]
    ctas: u32,
}

/// What the CTAs of a launch said of themselves.
#[cfg(test)]
pub struct Marked {
    /// CTAs that did not run exactly once.
    pub wrong: usize,
    /// How many places a CTA began before or behind its turn, at most.
    pub displaced: u32,
}

impl Marks {
    /// Launches so many CTAs, each of which sleeps so long.
    pub fn launch(
        stage: &mut Stage,
        session: SessionId,
        ctas: u32,
        dynamic_shared: u32,
        nanoseconds: u32,
    ) -> Result<Marks, Failure> {
        let out = stage.buffer(session, u64::from(ctas) * 16)?;
        let counter = stage.buffer(session, 4)?;
        let mut params = Vec::new();
        params.extend(out.0.to_le_bytes());
        params.extend(counter.0.to_le_bytes());
        params.extend(nanoseconds.to_le_bytes());
        stage.launch(session, MARK, ctas, dynamic_shared, params)?;
        Ok(Marks {
            out,
            #[cfg(test)]
            session,
            #[cfg(test)]
            ctas,
        })
    }

    /// How long the longest of the first CTAs took, and one in the mean, in nanoseconds. They have
    /// ended.
    pub fn times(&self, stage: &mut Stage, first: u32) -> Result<(u64, f64), Failure> {
        let words = stage.words(self.out, first as usize * 4)?;
        let records = words.as_chunks::<4>().0;
        let took =
            || records.iter().map(|record| u64::from(record[2]) | u64::from(record[3]) << 32);
        let mean = took().sum::<u64>() as f64 / f64::from(first.max(1));
        Ok((took().max().unwrap_or_default(), mean))
    }

    /// Waits for the end and looks.
    #[cfg(test)]
    pub fn check(&self, stage: &mut Stage) -> Result<Marked, Failure> {
        stage.synchronize(self.session)?;
        let words = stage.words(self.out, self.ctas as usize * 4)?;
        let mut marked = Marked { wrong: 0, displaced: 0 };
        for (cta, record) in (0..self.ctas).zip(words.as_chunks::<4>().0) {
            let number = |thread: u32| {
                (cta * 32 + thread).wrapping_mul(1_664_525).wrapping_add(1_013_904_223)
            };
            let sum = (0..32).fold(0_u32, |sum, thread| sum.wrapping_add(number(thread)));
            marked.wrong += usize::from(record[0] != sum);
            marked.displaced = marked.displaced.max(record[1].abs_diff(cta));
        }
        Ok(marked)
    }
}

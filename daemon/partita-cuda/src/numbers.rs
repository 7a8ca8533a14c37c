//! The numbers of a GPU's SMs, seen by a kernel (`kernels-ptx/device/where.ptx`).
//!
//! Workers find their place in a control block by `%smid`. PTX promises only that `%smid` is below
//! `%nsmid`, which may be more than the number of SMs (PTX ISA, "%smid", "%nsmid"). When a device
//! is opened, a kernel therefore says which numbers there are. Numbers without an SM are no SMs for
//! the engine. A device whose numbers contradict its count of SMs is not opened.

use crate::cache::Cache;
use crate::code::Code;
use crate::driver::{Context, Failure, LinkError, Pinned, Stream};
use partita_model::{Dim3, SmId, SmSet};
use std::sync::Arc;

const PTX: &str = include_str!("../../../kernels-ptx/device/where.ptx");
const THREADS: u32 = 1024;
/// CTAs of `THREADS` threads that fit on an SM: together they use all of its threads.
const CTAS_PER_SM: u32 = 2;
/// The most grids until every SM has been seen.
const GRIDS: u32 = 16;

/// The reason why the numbers are unknown.
#[derive(Debug, thiserror::Error)]
pub enum NumbersError {
    /// The driver's error.
    #[error(transparent)]
    Driver(#[from] Failure),
    /// The compiler's error.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// More numbers than Partita can tell apart.
    #[error(
        "the GPU's SMs have numbers up to {most}, and Partita can tell {} apart",
        SmSet::CAPACITY
    )]
    TooMany {
        /// The greatest number that an SM may have.
        most: u32,
    },
    /// The kernel saw other SMs than the driver says.
    #[error(
        "the driver says that the GPU has {said} SMs, and a kernel saw SMs {seen} below {below}: \
         end other programs on the GPU, or switch MPS and MIG off"
    )]
    Differs {
        /// The driver's number of SMs.
        said: u16,
        /// The SMs that were seen.
        seen: SmSet,
        /// `%nsmid`
        below: u32,
    },
}

/// The kernels that see places.
pub(crate) struct Seer {
    code: Code,
    words: Pinned,
}

impl Seer {
    /// Loads the kernels, for grids on at most `sms` SMs. The device must be idle.
    pub(crate) fn load(
        context: &Arc<Context>,
        cache: Option<&Cache>,
        sms: u32,
    ) -> Result<Seer, NumbersError> {
        let image = match cache.and_then(|cache| cache.find(PTX)) {
            Some(image) => image,
            None => {
                let image = context.compile(PTX)?;
                cache.inspect(|cache| cache.keep(PTX, &image));
                image
            }
        };
        let words = Pinned::new(context, (sms.max(1) * CTAS_PER_SM * 4) as usize)?;
        Ok(Seer { code: Code::load(context, &image)?, words })
    }

    /// Whether the kernels run in every context.
    pub(crate) fn is_for_all_contexts(&self) -> bool {
        matches!(self.code, Code::Library(_))
    }

    /// Unloads the kernels.
    pub(crate) fn unload(self) -> Result<(), Failure> {
        self.code.unload()
    }

    fn run(&self, stream: &Stream, kernel: &str, [ctas, threads]: [u32; 2]) -> Result<(), Failure> {
        self.words.write(0, &vec![0; self.words.bytes()]);
        let kernel = self.code.function(kernel)?;
        let mut params = self.words.device_address().to_le_bytes();
        stream.launch(kernel, [Dim3::linear(ctas), Dim3::linear(threads)], 0, &mut params)?;
        stream.synchronize()
    }

    fn words(&self, count: u32) -> Vec<u32> {
        let mut bytes = vec![0; count as usize * 4];
        self.words.read(0, &mut bytes);
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    /// The SMs on which a grid for `sms` SMs ran.
    pub(crate) fn places(&self, stream: &Stream, sms: u32) -> Result<SmSet, Failure> {
        let ctas = sms * CTAS_PER_SM;
        self.run(stream, "partita_where", [ctas, THREADS])?;
        let numbers = self.words(ctas).into_iter();
        let numbers = numbers.filter_map(|word| u16::try_from(word.checked_sub(1)?).ok());
        Ok(numbers.filter(|sm| *sm < SmSet::CAPACITY).map(SmId).collect())
    }

    /// `%nsmid`
    fn below(&self, stream: &Stream) -> Result<u32, Failure> {
        self.run(stream, "partita_numbers", [1, 1])?;
        Ok(self.words(1)[0])
    }
}

/// Numbers that no SM of a GPU has, of as many SMs as the driver says.
pub(crate) fn absent(
    context: &Arc<Context>,
    stream: &Stream,
    cache: Option<&Cache>,
    sms: u16,
) -> Result<SmSet, NumbersError> {
    let seer = Seer::load(context, cache, sms.into())?;
    let result = absent_by(&seer, stream, sms);
    seer.unload()?;
    result
}

fn absent_by(seer: &Seer, stream: &Stream, sms: u16) -> Result<SmSet, NumbersError> {
    let below = seer.below(stream)?;
    if below == u32::from(sms) {
        return Ok(SmSet::EMPTY);
    }
    let numbers = u16::try_from(below).ok().filter(|below| *below <= SmSet::CAPACITY);
    let numbers = numbers.ok_or(NumbersError::TooMany { most: below.saturating_sub(1) })?;
    let mut seen = SmSet::EMPTY;
    for _ in 0..GRIDS {
        seen = seen.union(&seer.places(stream, sms.into())?);
        if seen.len() >= sms {
            break;
        }
    }
    let all = SmSet::range(0, numbers);
    if seen.len() != sms || !seen.difference(&all).is_empty() {
        return Err(NumbersError::Differs { said: sms, seen, below });
    }
    Ok(all.difference(&seen))
}

//! Profiles of kernels: counted at their first launches, and attributed to every CTA from then on.
//!
//! # Counted launches
//!
//! The engine counts the first [`COUNTED_LAUNCHES`] launches of each shape ([`LaunchShape`]) of a
//! kernel that has a counting form beside its worker form. The last of them finds the caches as
//! the one before left them. [`ROUNDS`] CTAs of a launch count for every place on the GPU. The
//! other CTAs run in the worker form. So the launch is cut into parts, one behind the other in its
//! stream, and each part claims from the end of the part before it. The order of CTAs stays, and
//! the cost of counting is bounded for any length of the launch. A launch that is not much larger
//! is counted whole.
//!
//! CTAs of one launch need not be alike: the last CTAs of a grid that is sized by the GPU, not by
//! the data, may find nothing to do. So the CTAs that count lie in [`SLICES`] slices. The slices
//! are spread over the launch, but over at most its first [`SPREAD`] rounds, so that the profile of
//! a launch of an hour is known before its end.
//!
//! Where originals may run while an application is alone, launches are counted only while another
//! application is connected.
//! Cooperative launches, tickets and originals are not counted. Kernels that may wait for writes of
//! other CTAs have no counting form.
//!
//! # Profiles
//!
//! When the counted part is done, its block is read and replayed ([`partita_policy::Replay`]). The
//! shell keeps the profile ([`Action::Profiled`]). From then on every completed CTA of the kernel
//! adds its share to the traffic that policies see. CTA times come from launches that are not
//! counted.

use crate::handover::ledger::{Ledger, Usage};
use crate::launches::{Checker, Count, Form, Hidden, Pending, Spec};
use crate::turn::Turn;
use crate::{About, Action, LogLevel};
use partita_device::{AddressRange, Device, DeviceError};
use partita_model::profile::{self, CacheShape, Counts, KernelProfile, LaunchShape};
use partita_model::{ApplicationId, DeviceAddress, LaunchId, Nanos, SessionId, WindowId};
use partita_policy::{Recorded, Replay};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Launches of one shape that are counted.
const COUNTED_LAUNCHES: u32 = 2;
/// CTAs that are counted for each place of the GPU.
const ROUNDS: u64 = 2;
/// Slices of a launch that count. Each slice has CTAs for every place, so counting takes as long as
/// in one slice, but for the ends of parts.
const SLICES: u64 = 2;
/// CTAs for each place over which the slices are spread.
const SPREAD: u64 = 16;
/// Sectors that a launch can record: two rounds of 144 CTAs that touch 1,800 sectors each. They
/// take 4 MiB of device memory.
const RECORDS: u64 = 1 << 19;
const BLOCK_BYTES: u64 = profile::RECORDS + 8 * RECORDS;
/// Launches that can be counted at once.
const MOST_BLOCKS: usize = 4;
/// A kernel was faster than is known where a CTA took less than this part of the time.
const FASTER: f64 = 0.95;
/// Profiles that are remembered. Beyond that some are forgotten, and counted again at the next
/// launch.
const MOST_PROFILES: usize = 8192;

/// The key of a profile: the hash of the kernel's code, and the launch's shape.
pub(crate) type ProfileKey = (Arc<str>, LaunchShape);

/// Profiles of kernels, and the blocks in which launches count.
pub(crate) struct Profiles {
    known: BTreeMap<ProfileKey, KernelProfile>,
    /// How often launches were counted since the start.
    counted: BTreeMap<ProfileKey, u32>,
    replays: BTreeMap<ApplicationId, Replay>,
    l1: CacheShape,
    llc_bytes: u64,
    window: WindowId,
    /// The blocks' places, from the end of that window downwards.
    end: u64,
    blocks: usize,
    free: Vec<DeviceAddress>,
    /// What launches that have begun to count have counted so far.
    open: BTreeMap<CountGroup, Open>,
}

/// The parts of one launch that are counted together: its session, and a number.
pub(crate) type CountGroup = (SessionId, u64);

/// Counting that has begun and not ended.
struct Open {
    block: DeviceAddress,
    ctas: u64,
}

impl Profiles {
    /// Blocks lie at the end of `window`.
    pub(crate) fn new(device: &dyn Device, id: WindowId, window: AddressRange) -> Self {
        Profiles {
            known: BTreeMap::new(),
            counted: BTreeMap::new(),
            replays: BTreeMap::new(),
            l1: device.l1(),
            llc_bytes: device.facts().llc.0,
            window: id,
            end: window.end(),
            blocks: 0,
            free: Vec::new(),
            open: BTreeMap::new(),
        }
    }

    /// What is known of launches of a kernel.
    pub(crate) fn get(&self, key: &ProfileKey) -> Option<&KernelProfile> {
        self.known.get(key)
    }

    /// Count blocks that launches hold.
    pub(crate) fn in_use(&self) -> usize {
        self.blocks - self.free.len()
    }

    /// Nothing of an application will be replayed any more.
    pub(crate) fn forget(&mut self, application: ApplicationId) {
        self.replays.remove(&application);
    }

    /// Nothing of a session will be counted any more.
    pub(crate) fn forget_session(&mut self, session: SessionId) {
        let ended = self.open.range((session, 0)..=(session, u64::MAX)).map(|(group, _)| *group);
        for group in ended.collect::<Vec<_>>() {
            self.free.extend(self.open.remove(&group).map(|open| open.block));
        }
    }

    /// The block in which a launch counts; `None` where there is none for it.
    fn block_of(
        &mut self,
        device: &mut dyn Device,
        group: CountGroup,
    ) -> Result<Option<DeviceAddress>, DeviceError> {
        if let Some(open) = self.open.get(&group) {
            return Ok(Some(open.block));
        }
        let block = self.acquire(device)?;
        self.open.extend(block.map(|block| (group, Open { block, ctas: 0 })));
        Ok(block)
    }

    fn acquire(&mut self, device: &mut dyn Device) -> Result<Option<DeviceAddress>, DeviceError> {
        if self.free.is_empty() && self.blocks < MOST_BLOCKS {
            let start = DeviceAddress(
                self.end - (self.blocks as u64 + 1) * BLOCK_BYTES.next_multiple_of(4096),
            );
            device.allocate(self.window, AddressRange { start, bytes: BLOCK_BYTES })?;
            self.blocks += 1;
            self.free.push(start);
        }
        let Some(&block) = self.free.last() else { return Ok(None) };
        device.poke(block, &[0; profile::HEADER_BYTES])?;
        device.poke(DeviceAddress(block.0 + profile::CAPACITY), &RECORDS.to_le_bytes())?;
        self.free.pop();
        Ok(Some(block))
    }

    fn insert(&mut self, key: ProfileKey, profile: KernelProfile) {
        self.known.insert(key, profile);
        if self.known.len() > MOST_PROFILES {
            self.known.pop_first();
        }
    }

    /// Everything that is known of a kernel.
    fn of_kernel(&self, hash: &Arc<str>) -> Vec<(LaunchShape, KernelProfile)> {
        let own = self.known.iter().filter(|((other, _), _)| other == hash);
        own.map(|((_, shape), profile)| (*shape, *profile)).collect()
    }
}

impl Profiles {
    /// Takes what was kept of a kernel. What is known already goes before it.
    pub(crate) fn learn(&mut self, hash: &Arc<str>, profiles: &[(LaunchShape, KernelProfile)]) {
        if self.counted.keys().any(|(other, _)| other == hash) {
            return;
        }
        for (shape, profile) in profiles {
            self.insert((hash.clone(), *shape), *profile);
        }
    }

    /// Cuts a launch that is to be counted into the parts in which it runs, in order; the last
    /// stands apart.
    pub(super) fn cut(
        &mut self,
        turn: &mut Turn<'_>,
        checker: &Ledger,
        session: SessionId,
        mut pending: Box<Pending>,
        is_counted: bool,
    ) -> (Vec<Pending>, Box<Pending>) {
        let spec = &mut pending.spec;
        let (Form::Worker(_), Some(hash)) = (&pending.form, &spec.kernel.hash) else {
            return (Vec::new(), pending);
        };
        let key = (hash.clone(), LaunchShape::new(spec.total(), spec.block, spec.dynamic_shared));
        spec.profile = Some(key.clone());
        // A launch without a block would not count, and still be taken for one that did: a later
        // launch shall.
        let busy = self.open.len() >= MOST_BLOCKS;
        if !is_counted || !turn.config().profiling || busy || self.is_known(&key) {
            return (Vec::new(), pending);
        }
        let Some(cta) = counting_usage(turn, checker, spec) else {
            return (Vec::new(), pending);
        };
        *self.counted.entry(key).or_default() += 1;
        if self.counted.len() > MOST_PROFILES {
            self.counted.pop_first();
        }
        let sm_count = u64::from(turn.facts().sm_count);
        let places = (u64::from(checker.occupancy(cta)) * sm_count).max(1);
        let (group, total) = ((session, turn.next_id()), spec.total());
        let mut parts: Vec<Pending> = parts(&slices(total, places), total)
            .into_iter()
            .map(|(range, counting, last)| {
                let id = LaunchId(turn.next_id());
                let count = last.map(|last| Count { group, counting, last });
                let mut part = Pending::clone(&pending);
                (part.spec.id, part.form) = (id, Form::Worker(count));
                (part.spec.first, part.spec.end) = (range.start, range.end);
                if counting {
                    part.spec.cta = cta;
                }
                part
            })
            .collect();
        let last = parts.pop().map_or(pending, Box::new);
        (parts, last)
    }

    fn is_known(&self, key: &ProfileKey) -> bool {
        let counted = self.counted.get(key).copied().unwrap_or(0);
        let kept = counted == 0 && self.known.contains_key(key);
        kept || counted >= COUNTED_LAUNCHES
    }

    /// Gives a counting launch its block. Without one the launch does not count.
    pub(super) fn begin(
        &mut self,
        turn: &mut Turn<'_>,
        pending: &mut Pending,
    ) -> Option<DeviceAddress> {
        let Form::Worker(Some(count)) = &mut pending.form else { return None };
        if !count.counting {
            return None;
        }
        let block = self.block_of(turn.device, count.group).unwrap_or_else(|error| {
            let text = format!("kernel `{}` is not counted: {error}", pending.spec.kernel.name);
            let about = About::default().kernel(&pending.spec.kernel.name);
            turn.log(LogLevel::Debug, about, text);
            None
        });
        count.counting = block.is_some();
        if let Some(block) = block {
            pending.spec.params.push(Hidden::CountBlock, block.0);
        }
        block
    }

    /// A part of a launch that counts has ended.
    pub(super) fn part_done(
        &mut self,
        turn: &mut Turn<'_>,
        (application, spec): (ApplicationId, &Spec),
        count: Count,
        complete: bool,
    ) {
        let Count { group, counting, last } = count;
        if let Some(open) = self.open.get_mut(&group).filter(|_| counting && complete) {
            open.ctas += spec.ctas();
        }
        if complete && !last {
            return;
        }
        // A launch whose session has gone, or that found no block, has nothing open.
        let Some(Open { block, ctas }) = self.open.remove(&group) else { return };
        self.free.push(block);
        let Some(key) = spec.profile.as_ref().filter(|_| complete) else { return };
        let (counts, records) = match read(turn.device, block, ctas) {
            Ok(read) => read,
            Err(error) => {
                let name = &spec.kernel.name;
                let text = format!("the counts of kernel `{name}` cannot be read: {error}");
                return turn.log_error(About::from(application).kernel(name), text);
            }
        };
        let launch_ctas = spec.grid_ctas();
        let (l1, llc_bytes) = (self.l1, self.llc_bytes);
        let replay = self.replays.entry(application);
        let replay = replay.or_insert_with(|| Replay::new(l1, llc_bytes));
        let llc = replay.launch(&Recorded { counts, records: &records, launch_ctas });
        let before = self.known.get(key);
        let profile = KernelProfile {
            launches: before.map_or(0, |before| before.launches) + 1,
            counts,
            llc,
            cta_time: before.and_then(|before| before.cta_time),
            alone: before.and_then(|before| before.alone),
        };
        self.insert(key.clone(), profile);
        self.keep(turn, &key.0);
    }

    /// Keeps the measured time of a kernel's CTAs, if none is kept.
    pub(super) fn keep_cta_time(&mut self, turn: &mut Turn<'_>, key: &ProfileKey, time: Nanos) {
        // A kernel that is not counted has no profile.
        if let Some(profile) = self.known.get_mut(key)
            && profile.cta_time.is_none()
        {
            profile.cta_time = Some(time);
            self.keep(turn, &key.0);
        }
    }

    /// Keeps how fast a kernel's CTAs follow each other on the whole GPU. Launches that found cold
    /// caches, or ran beside others of their application, look slower: the fastest stands.
    pub(super) fn keep_alone(&mut self, turn: &mut Turn<'_>, key: &ProfileKey, per_cta: f64) {
        let Some(profile) = self.known.get_mut(key) else { return };
        if profile.alone.is_none_or(|known| per_cta < known * FASTER) {
            profile.alone = Some(per_cta);
            self.keep(turn, &key.0);
        }
    }

    fn keep(&self, turn: &mut Turn<'_>, hash: &Arc<str>) {
        let profiles = self.of_kernel(hash);
        turn.act(Action::Profiled { hash: hash.clone(), profiles });
    }
}

/// What a CTA takes up where it counts; `None` where the launch cannot be counted.
fn counting_usage(turn: &Turn<'_>, ledger: &Ledger, spec: &Spec) -> Option<Usage> {
    if spec.cooperative {
        return None;
    }
    let facts = spec.kernel.counting_facts.as_ref()?.as_ref().ok()?;
    let checker = Checker { facts: turn.facts(), ledger };
    checker.check_resources(&spec.kernel, facts, spec.block, spec.dynamic_shared).ok()
}

/// What a counting launch may touch besides.
pub(crate) fn count_range(block: DeviceAddress) -> AddressRange {
    AddressRange { start: block, bytes: BLOCK_BYTES }
}

/// The parts of a launch, in order: its CTAs, whether they count, and for all parts up to the end
/// of the last slice whether that is their end.
fn parts(slices: &[Range<u64>], total: u64) -> Vec<(Range<u64>, bool, Option<bool>)> {
    let last = slices.last().map_or(0, |slice| slice.end);
    let mut parts = Vec::new();
    let mut end = 0;
    for slice in slices {
        if end < slice.start {
            parts.push((end..slice.start, false, Some(false)));
        }
        parts.push((slice.clone(), true, Some(slice.end == last)));
        end = slice.end;
    }
    if last < total {
        parts.push((last..total, false, None));
    }
    parts
}

/// The CTAs that are counted of a launch of `total` CTAs on a GPU with `places` places.
fn slices(total: u64, places: u64) -> Vec<Range<u64>> {
    let counted = places.saturating_mul(ROUNDS).max(SLICES);
    if total <= counted.saturating_mul(2) {
        return std::iter::once(0..total).collect();
    }
    let (each, among) = (counted / SLICES, total.min(places.saturating_mul(SPREAD)));
    let middle = |slice: u64| among / (2 * SLICES) * (2 * slice + 1) - each / 2;
    (0..SLICES).map(middle).map(|first| first..first + each).collect()
}

/// The counts and records that `ctas` CTAs have left in a count block.
fn read(
    device: &mut dyn Device,
    block: DeviceAddress,
    ctas: u64,
) -> Result<(Counts, Vec<u64>), DeviceError> {
    let mut header = [0; profile::HEADER_BYTES];
    device.peek(block, &mut header)?;
    let word = |offset: u64| {
        let at = usize::try_from(offset).expect("offsets are small");
        u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"))
    };
    let recorded = word(profile::RECORDED).min(RECORDS);
    let mut bytes = vec![0; usize::try_from(recorded * 8).expect("there is room for few")];
    device.peek(DeviceAddress(block.0 + profile::RECORDS), &mut bytes)?;
    let records =
        bytes.as_chunks::<8>().0.iter().map(|record| u64::from_le_bytes(*record)).collect();
    let counts = Counts {
        ctas,
        warp_instructions: word(profile::WARP_INSTRUCTIONS),
        thread_instructions: word(profile::THREAD_INSTRUCTIONS),
        global_loads: word(profile::GLOBAL_LOADS),
        global_stores: word(profile::GLOBAL_STORES),
        atomics: word(profile::ATOMICS),
        sectors: word(profile::GLOBAL_SECTORS),
        past_sectors: word(profile::PAST_SECTORS),
    };
    Ok((counts, records))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_lie_apart_and_are_as_many_as_shall_count() {
        for places in [1, 2, 7, 48, 132 * 16] {
            for total in [1, 5, 100, 924, 100_000, u64::MAX] {
                let found = slices(total, places);
                let counted: u64 = found.iter().map(|slice| slice.end - slice.start).sum();
                let most = (places * ROUNDS).max(SLICES);
                assert!(found.iter().all(|slice| !slice.is_empty() && slice.end <= total));
                if let [whole] = &found[..] {
                    assert!(
                        *whole == (0..total) && total <= 2 * most,
                        "{total}, {places}: {whole:?}"
                    );
                    continue;
                }
                assert!(counted <= most && counted > most - SLICES, "{total}, {places}: {found:?}");
                assert!(
                    found.windows(2).all(|two| two[0].end < two[1].start),
                    "{total}, {places}: {found:?}"
                );
                assert!(
                    found[0].start > 0 && found[1].end <= places * SPREAD,
                    "{total}, {places}: {found:?}"
                );
            }
        }
        // The second half has nothing to do: so has half of those that count.
        let worked: u64 =
            slices(700, 48).iter().map(|slice| slice.end.min(350) - slice.start.min(350)).sum();
        assert_eq!(worked * 2, 96);
    }
}

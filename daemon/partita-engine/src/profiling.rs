//! Profiles of kernels: counted at their first launches, and what CTAs are taken to do from then on.
//!
//! # What is counted
//!
//! A launch of a kernel that has a counting form beside its worker form is counted where nothing is known of the kernel in
//! launches of its shape ([`LaunchShape`]): the first [`COUNTED_LAUNCHES`] of them, so that the last one finds caches as the
//! one before left them. Of a launch the first CTAs count, [`ROUNDS`] for every place on the GPU; the others run
//! as they always do. So the launch is cut in two, one behind the other in its stream: the first part in the counting
//! form ends, then the second claims from where the first has ended. The order of CTAs stays, and what counting costs is
//! bounded, however long the launch is. A launch that is not much larger is counted whole.
//!
//! Cooperative launches, tickets and originals are not counted, nor kernels that may wait for what other CTAs write: these have no counting
//! form.
//!
//! # What comes of it
//!
//! When the counted part is done, its block is read and replayed ([`partita_policy::Replay`]); the profile goes to the shell
//! to be kept ([`Action::Profiled`]). From then on every CTA of the kernel that completes adds its part to the traffic that
//! policies see. The time of a CTA comes from launches that are not counted.

use crate::alone::at_rate;
use crate::ledger::Usage;
use crate::state::{Kernel, Launch, LaunchForm, LaunchSpec};
use crate::{Action, Engine, LogLevel};
use partita_device::{AddressRange, Device, DeviceError};
use partita_model::profile::{self, CacheShape, Counts, KernelProfile, LaunchShape};
use partita_model::{ApplicationId, DeviceAddress, LaunchId, Nanos, Traffic, WindowId};
use partita_policy::{Recorded, Replay, traffic_of};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Launches of one shape that are counted.
const COUNTED_LAUNCHES: u32 = 2;
/// CTAs that are counted for each place of the GPU.
const ROUNDS: u64 = 2;
/// Sectors that a launch can record: those of two rounds of 144 CTAs that touch 1,800 each. 4 MiB of device memory.
const RECORDS: u64 = 1 << 19;
const BLOCK_BYTES: u64 = profile::RECORDS + 8 * RECORDS;
/// Launches that can be counted at once.
const MOST_BLOCKS: usize = 4;
/// Profiles that are remembered. Beyond that some are forgotten, and counted again when they are wanted.
const MOST_PROFILES: usize = 8192;

/// Which profile: the kernel by the hash of its code, and the launch's shape.
pub(crate) type ProfileKey = (Arc<str>, LaunchShape);

/// What is known of kernels, and what counting them needs.
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

    fn acquire(&mut self, device: &mut dyn Device) -> Result<Option<DeviceAddress>, DeviceError> {
        if self.free.is_empty() && self.blocks < MOST_BLOCKS {
            let start =
                DeviceAddress(self.end - (self.blocks as u64 + 1) * BLOCK_BYTES.next_multiple_of(4096));
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

impl Engine {
    /// Takes what was kept of a kernel. What is known already goes before it.
    pub fn learn(&mut self, hash: &Arc<str>, profiles: &[(LaunchShape, KernelProfile)]) {
        if self.profiles.counted.keys().any(|(other, _)| other == hash) {
            return;
        }
        for (shape, profile) in profiles {
            self.profiles.insert((hash.clone(), *shape), *profile);
        }
    }

    /// The launch's profile key, and the parts in which it runs: one, or a counting one and the rest.
    pub(crate) fn cut_launch(
        &mut self,
        mut spec: Box<LaunchSpec>,
    ) -> (Option<Box<LaunchSpec>>, Box<LaunchSpec>) {
        if spec.form() != LaunchForm::Worker {
            return (None, spec);
        }
        let Some(hash) = &spec.kernel.hash else { return (None, spec) };
        let key = (hash.clone(), LaunchShape::new(spec.total(), spec.block, spec.dynamic_shared));
        spec.profile = Some(key.clone());
        if !self.config.profiling || self.is_known(&key) {
            return (None, spec);
        }
        let Some(cta) = self.counting_usage(&spec) else { return (None, spec) };
        *self.profiles.counted.entry(key).or_default() += 1;
        if self.profiles.counted.len() > MOST_PROFILES {
            self.profiles.counted.pop_first();
        }
        let total = spec.total();
        let places = u64::from(self.ledger.occupancy(cta)) * u64::from(self.facts.sm_count);
        let counted = (places * ROUNDS).max(1);
        if total <= counted + counted / 2 {
            spec.cta = cta;
            spec.counting = true;
            return (None, spec);
        }
        let first = LaunchSpec { cta, counting: true, end: counted, ..(*spec).clone() };
        spec.first = counted;
        (Some(Box::new(first)), spec)
    }

    fn is_known(&self, key: &ProfileKey) -> bool {
        let counted = self.profiles.counted.get(key).copied().unwrap_or(0);
        let kept = counted == 0 && self.profiles.known.contains_key(key);
        kept || counted >= COUNTED_LAUNCHES
    }

    /// What a CTA takes up where it counts; `None` where the launch cannot be counted.
    fn counting_usage(&self, spec: &LaunchSpec) -> Option<Usage> {
        let kernel: &Kernel = &spec.kernel;
        if spec.cooperative {
            return None;
        }
        let facts = kernel.counting_facts.as_ref()?.as_ref().ok()?;
        self.check_resources(facts, spec.block, spec.dynamic_shared).ok()
    }

    /// Gives a counting launch its block; without one it does not count.
    pub(crate) fn begin_counting(
        &mut self,
        device: &mut dyn Device,
        spec: &mut LaunchSpec,
    ) -> Option<DeviceAddress> {
        let block = match self.profiles.acquire(device) {
            Ok(block) => block,
            Err(error) => {
                self.log(
                    LogLevel::Debug,
                    None,
                    format!("kernel `{}` is not counted: {error}", spec.kernel.name),
                );
                None
            }
        };
        spec.counting = block.is_some();
        if let Some(block) = block {
            spec.params.resize(spec.params.len().next_multiple_of(8), 0);
            spec.params.extend_from_slice(&block.0.to_le_bytes());
        }
        block
    }

    /// What a counting launch may touch besides.
    pub(crate) fn count_range(block: DeviceAddress) -> AddressRange {
        AddressRange { start: block, bytes: BLOCK_BYTES }
    }

    /// A launch with a count block has ended.
    pub(crate) fn counting_done(&mut self, device: &mut dyn Device, launch: &Launch) {
        let Some(worker) = &launch.worker else { return };
        let Some(block) = worker.count_block else { return };
        self.profiles.free.push(block);
        let spec = &launch.spec;
        let Some(key) = &spec.profile else { return };
        if worker.seen.completed < spec.total() {
            return;
        }
        let (counts, records) = match read(device, block, spec.total() - spec.first) {
            Ok(read) => read,
            Err(error) => {
                let text = format!("the counts of kernel `{}` cannot be read: {error}", spec.kernel.name);
                self.log(LogLevel::Error, None, text);
                return;
            }
        };
        let launch_ctas = spec.grid_ctas();
        let (l1, llc_bytes) = (self.profiles.l1, self.profiles.llc_bytes);
        let replay = self.profiles.replays.entry(launch.application);
        let replay = replay.or_insert_with(|| Replay::new(l1, llc_bytes));
        let llc = replay.launch(&Recorded { counts, records: &records, launch_ctas });
        let before = self.profiles.known.get(key);
        let profile = KernelProfile {
            launches: before.map_or(0, |before| before.launches) + 1,
            counts,
            llc,
            cta_time: before.and_then(|before| before.cta_time),
        };
        self.profiles.insert(key.clone(), profile);
        self.keep_profile(&key.0);
    }

    /// The time of a kernel's CTAs has been measured.
    pub(crate) fn profile_cta_time(&mut self, id: LaunchId, time: Nanos) {
        let Some(key) = self.launches.get(&id).and_then(|launch| launch.spec.profile.clone()) else { return };
        let Some(profile) = self.profiles.known.get_mut(&key) else { return };
        if profile.cta_time.is_none() {
            profile.cta_time = Some(time);
            self.keep_profile(&key.0);
        }
    }

    fn keep_profile(&mut self, hash: &Arc<str>) {
        let profiles = self.profiles.of_kernel(hash);
        self.actions.push_back(Action::Profiled { hash: hash.clone(), profiles });
    }

    /// A launch has completed CTAs: from so many of it to so many.
    pub(crate) fn count_traffic(&mut self, id: LaunchId, from: u64, to: u64) {
        let Some(launch) = self.launches.get(&id) else { return };
        let Some(profile) = launch.spec.profile.as_ref().and_then(|key| self.profiles.get(key)) else {
            return;
        };
        let traffic = traffic_of(profile, to).combine(&traffic_of(profile, from), u64::saturating_sub);
        if let Some(application) = self.applications.get_mut(&launch.application) {
            let traffic = at_rate(traffic, application.hit_rate);
            application.profiled = application.profiled.combine(&traffic, u64::saturating_add);
        }
    }

    /// What an application's CTAs did, of those whose kernels have a profile; `None` where none has, nor will have soon.
    pub(crate) fn profiled_traffic(&self, id: ApplicationId) -> Option<Traffic> {
        let profiled = self.applications.get(&id)?.profiled;
        let soon = self.launches.values().any(|launch| launch.application == id && is_counting(launch));
        (profiled.ctas > 0 || soon).then_some(profiled)
    }

    /// Whether CTAs of an application are being counted now.
    pub(crate) fn is_counted(&self, id: ApplicationId) -> bool {
        let mut running = self.front.iter().filter_map(|launch| self.launches.get(launch));
        running.any(|launch| launch.application == id && is_counting(launch))
    }
}

fn is_counting(launch: &Launch) -> bool {
    launch.worker.as_ref().is_some_and(|worker| worker.count_block.is_some())
}

/// What so many CTAs have left in a count block.
fn read(device: &mut dyn Device, block: DeviceAddress, ctas: u64) -> Result<(Counts, Vec<u64>), DeviceError> {
    let mut header = [0; profile::HEADER_BYTES];
    device.peek(block, &mut header)?;
    let word = |offset: u64| {
        let at = usize::try_from(offset).expect("offsets are small");
        u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"))
    };
    let recorded = word(profile::RECORDED).min(RECORDS);
    let mut bytes = vec![0; usize::try_from(recorded * 8).expect("there is room for few")];
    device.peek(DeviceAddress(block.0 + profile::RECORDS), &mut bytes)?;
    let records = bytes.as_chunks::<8>().0.iter().map(|record| u64::from_le_bytes(*record)).collect();
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

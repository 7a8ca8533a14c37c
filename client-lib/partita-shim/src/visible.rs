//! The selection and order of this process's devices among the daemon's GPUs (CUDA C++ Programming
//! Guide, "CUDA Environment Variables").
//!
//! `CUDA_DEVICE_ORDER` sets the order: `FASTEST_FIRST` (the default) by SMs times clock, or
//! `PCI_BUS_ID`, the daemon's order. `CUDA_VISIBLE_DEVICES` lists the visible devices, by numbers
//! in that order or by the beginnings of UUIDs, and renumbers them in its own order. The list ends
//! at the first entry that names no device, or a device for the second time.

use partita_client::GpuOffer;

/// The devices in their order.
pub fn choose(offers: Vec<GpuOffer>, order: Option<&str>, visible: Option<&str>) -> Vec<GpuOffer> {
    let mut counted = offers;
    if order != Some("PCI_BUS_ID") {
        // The sort is stable, so equal GPUs keep the daemon's order.
        counted.sort_by_key(|offer| {
            let facts = &offer.facts;
            std::cmp::Reverse(u64::from(facts.sm_count) * u64::from(facts.sm_clock_khz))
        });
    }
    let Some(visible) = visible else { return counted };
    let mut chosen: Vec<GpuOffer> = Vec::new();
    for entry in visible.split(',') {
        let found = find(&counted, entry.trim()).filter(|found| !chosen.contains(found));
        let Some(found) = found else { break };
        chosen.push(found.clone());
    }
    chosen
}

/// Whether the only GPU that there is for this program is among those. Any number names it:
/// schedulers set numbers of the node's GPUs, of which the daemon may serve one.
pub fn shows(only: &GpuOffer, visible: Option<&str>) -> bool {
    let Some(visible) = visible else { return true };
    let first = visible.split(',').next().unwrap_or_default().trim();
    first.parse::<u16>().is_ok() || find(std::slice::from_ref(only), first).is_some()
}

/// Whether the list names no device whatever there is, so that nobody needs to be asked.
pub fn hides_all(visible: &str) -> bool {
    let first = visible.split(',').next().unwrap_or_default().trim();
    first.parse::<u16>().is_err() && !first.starts_with(PREFIX)
}

const PREFIX: &str = "GPU-";

fn find<'a>(counted: &'a [GpuOffer], entry: &str) -> Option<&'a GpuOffer> {
    if entry.starts_with(PREFIX) {
        let mut matching = counted.iter().filter(|offer| {
            let uuid = uuid_text(&offer.facts.uuid);
            uuid.get(..entry.len()).is_some_and(|start| start.eq_ignore_ascii_case(entry))
        });
        // A prefix of two UUIDs names neither GPU.
        return matching.next().filter(|_| matching.next().is_none());
    }
    counted.get(entry.parse::<usize>().ok()?)
}

/// As `nvidia-smi -L` writes it.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = PREFIX.to_owned();
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{
        Bytes, ComputeCapability, DeviceFacts, DeviceKind, GpuNumber, Timekeeping,
    };

    /// GPU 0 has 30 SMs, GPU 1 132, GPU 2 132, GPU 3 24; their UUIDs begin with 10, 11, 12, 13.
    fn offers() -> Vec<GpuOffer> {
        let offer = |(number, sm_count)| {
            let mut uuid = [0xab; 16];
            uuid[0] = 0x10 + u8::try_from(number).unwrap();
            let facts = DeviceFacts {
                kind: DeviceKind::Emulated,
                timekeeping: Timekeeping::Off,
                name: String::new(),
                uuid,
                compute_capability: ComputeCapability { major: 9, minor: 0 },
                sm_count,
                sm_clock_khz: 1000,
                memory_clock_khz: 1,
                memory_bus_bits: 1,
                threads_per_sm: 1,
                ctas_per_sm: 1,
                registers_per_sm: 1,
                threads_per_cta: 1,
                register_parts: 4,
                shared_reserved: Bytes(1024),
                absent_sms: partita_model::SmSet::EMPTY,
                memory: Bytes(1),
                llc: Bytes(1),
                shared_per_sm: Bytes(1),
                shared_per_cta: Bytes(1),
                shared_per_cta_optin: Bytes(1),
            };
            GpuOffer { number: GpuNumber(number), facts }
        };
        [(0, 30), (1, 132), (2, 132), (3, 24)].map(offer).into()
    }

    #[test]
    fn lists() {
        let check = |order: Option<&str>, visible: Option<&str>, expected: &[u16]| {
            let found: Vec<u16> =
                choose(offers(), order, visible).iter().map(|offer| offer.number.0).collect();
            assert_eq!(found, expected, "{order:?} {visible:?}");
        };
        let pci = Some("PCI_BUS_ID");
        check(None, None, &[1, 2, 0, 3]);
        check(Some("FASTEST_FIRST"), None, &[1, 2, 0, 3]);
        check(pci, None, &[0, 1, 2, 3]);
        check(pci, Some("2,0"), &[2, 0]);
        check(None, Some("0"), &[1]);
        check(None, Some("3,0"), &[3, 1]);
        check(pci, Some(" 1 , 3 "), &[1, 3]);
        for nothing in ["", "-1", "4", "none", "NoDevFiles", ",1", "GPU-", "GPU-99", "GPU-1"] {
            check(pci, Some(nothing), &[]);
        }
        check(pci, Some("1,4,2"), &[1]);
        check(pci, Some("1,-1,2"), &[1]);
        check(pci, Some("1,1"), &[1]);
        check(pci, Some("GPU-12"), &[2]);
        check(pci, Some("GPU-12ababab-abab-abab-abab-abababababab,0"), &[2, 0]);
        check(pci, Some("GPU-12ABABAB-ab,GPU-10"), &[2, 0]);
        check(pci, Some("GPU-12ababab-abab-abab-abab-abababababab0"), &[]);
    }

    #[test]
    fn any_number_names_the_only_gpu() {
        let only = offers().remove(1);
        for visible in [None, Some("0"), Some("3"), Some(" 7,0"), Some("GPU-11")] {
            assert!(shows(&only, visible), "{visible:?}");
        }
        for visible in ["", "-1", "NoDevFiles", "GPU-12", ",0"] {
            assert!(!shows(&only, Some(visible)), "{visible:?}");
        }
    }

    #[test]
    fn what_hides_all_needs_no_daemon() {
        for visible in ["", "-1", "none", ",0", "NoDevFiles"] {
            assert!(hides_all(visible), "{visible:?}");
        }
        for visible in ["0", "7,0", " 1", "GPU-1"] {
            assert!(!hides_all(visible), "{visible:?}");
        }
    }
}

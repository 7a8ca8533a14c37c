//! Limits on the memory of the machine that tenants make the daemon hold.
//!
//! A tenant's sessions hold page-locked and managed memory, what copies and kernels touched of it,
//! modules and their images, and queued operations. On the emulated GPU they hold device memory,
//! too. [`judge`] names the session that has to end where a tenant, or all of them together, hold
//! too much. The verdict depends on what is really held, not on what was asked for: memory that
//! nobody has touched costs nothing.
//!
//! The numbers come from the caller; [`machine_bytes`] and [`be_the_first_to_go`] alone talk to the
//! system.

use partita_model::{HostMemoryLimits, MemoryQuota, SessionId, TenantId};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Of eight parts of the machine's memory, how many all tenants may have together, and how many
/// each may have, unless the configuration says otherwise.
const EIGHTHS_OF_ALL: u64 = 6;
const EIGHTHS_OF_ONE: u64 = 4;

/// A session that holds less than this part of the limit of all is never ended for all: memory that
/// the process keeps from the system is nobody's fault. The part is one in this many.
const SUBSTANTIAL: u64 = 8;

/// What is added to the system's score for processes that go first when memory runs out
/// (`proc_pid_oom_score_adj(5)`).
const OOM_SCORE: i32 = 300;

/// The limits, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    all: u64,
    /// Of each tenant without an entry.
    each: u64,
    tenants: Vec<MemoryQuota>,
}

impl Limits {
    /// The limits on a machine with so much memory.
    #[must_use]
    pub fn new(machine_bytes: u64, configured: &HostMemoryLimits) -> Limits {
        let eighth = machine_bytes / 8;
        let all = configured.bytes.unwrap_or(eighth * EIGHTHS_OF_ALL);
        let each = configured.tenants.iter().find(|quota| quota.tenant.is_none());
        let each = each.map_or(eighth * EIGHTHS_OF_ONE, |quota| quota.bytes);
        let named = configured.tenants.iter().filter(|quota| quota.tenant.is_some());
        Limits { all, each, tenants: named.copied().collect() }
    }

    fn of(&self, tenant: TenantId) -> u64 {
        let entry = self.tenants.iter().find(|quota| quota.tenant == Some(tenant));
        entry.map_or(self.each, |quota| quota.bytes)
    }

    /// Below this many bytes in all, no limit is exceeded.
    #[must_use]
    pub fn least(&self) -> u64 {
        let tenants = self.tenants.iter().map(|quota| quota.bytes);
        tenants.chain([self.all, self.each]).min().unwrap_or(self.all)
    }
}

/// The memory that a session makes the daemon hold, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// The session.
    pub session: SessionId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Whether it can be ended; a session that closes gives its memory back soon. One that has
    /// failed keeps its memory until its program exits.
    pub can_end: bool,
    /// Page-locked and managed memory, and the memory that copies go through.
    pub shared: u64,
    /// Memory of an emulated GPU.
    pub device: u64,
    /// Modules and their images.
    pub modules: u64,
    /// Records of queued operations and of allocations.
    pub records: u64,
}

impl Held {
    fn bytes(&self) -> u64 {
        [self.shared, self.device, self.modules, self.records]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// Why a session has to end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// What the session holds.
    pub held: Held,
    /// Whose limit is exceeded; `None`: that of all tenants together.
    pub of: Option<TenantId>,
    /// The limit in bytes.
    pub limit: u64,
    /// What counts against it, in bytes.
    pub counted: u64,
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { tenant, shared, device, modules, records, .. } = self.held;
        match self.of {
            Some(_) => write!(
                out,
                "the programs of user {} make the daemon hold {} of the machine's memory, where \
                 {} are the limit",
                tenant.0,
                Size(self.counted),
                Size(self.limit)
            )?,
            None => write!(
                out,
                "all programs together make the daemon hold {} of the machine's memory, where {} \
                 are the limit, and those of user {} hold the most",
                Size(self.counted),
                Size(self.limit),
                tenant.0
            )?,
        }
        write!(out, "; this program holds {}:", Size(self.held.bytes()))?;
        let parts = [
            (shared, "page-locked and managed memory"),
            (device, "memory of the emulated GPU"),
            (modules, "modules"),
            (records, "queued operations and allocations"),
        ];
        let mut before = "";
        for (bytes, what) in parts.into_iter().filter(|(bytes, _)| *bytes >= 1 << 20) {
            write!(out, "{before} {} of {what}", Size(bytes))?;
            before = ",";
        }
        write!(out, "; use less, or ask for a larger limit ([[policy.host_memory]])")
    }
}

/// Bytes, for people.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.0.div_ceil(1 << 20);
        if mib < 10 << 10 { write!(out, "{mib} MiB") } else { write!(out, "{} GiB", mib >> 10) }
    }
}

/// The session that has to end, if one has: of a tenant above its limit, or of the tenant with the
/// most where all are above theirs. Of a tenant's sessions it is the largest.
///
/// `process` is what the daemon holds in truth, in bytes. Tenants cannot hold more than that, so
/// estimates in `held` end nobody below it.
#[must_use]
pub fn judge(limits: &Limits, process: u64, held: &[Held]) -> Option<Verdict> {
    let mut tenants: BTreeMap<TenantId, u64> = BTreeMap::new();
    for session in held {
        let bytes = tenants.entry(session.tenant).or_default();
        *bytes = bytes.saturating_add(session.bytes());
    }
    let open = |tenant| {
        held.iter()
            .filter(move |session| session.tenant == tenant && session.can_end)
            .max_by_key(|session| session.bytes())
    };
    let over = |(&tenant, &bytes): (&TenantId, &u64)| {
        let (limit, counted) = (limits.of(tenant), bytes.min(process));
        let verdict = |&held| Verdict { held, of: Some(tenant), limit, counted };
        if counted > limit { open(tenant).map(verdict) } else { None }
    };
    if let Some(verdict) = tenants.iter().find_map(over) {
        return Some(verdict);
    }
    if process <= limits.all {
        return None;
    }
    let (&tenant, _) = tenants.iter().max_by_key(|(_, bytes)| **bytes)?;
    let held = open(tenant).filter(|held| held.bytes() >= limits.all / SUBSTANTIAL)?;
    let (limit, counted) = (limits.all, process);
    Some(Verdict { held: *held, of: None, limit, counted })
}

/// Memory that this process may use, in bytes: the machine's, or less where a control group says
/// so. `None` where the system does not tell.
#[must_use]
pub fn machine_bytes() -> Option<u64> {
    let all = std::fs::read_to_string("/proc/meminfo").ok()?;
    let all = all.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let all = all.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).map(PathBuf::from);
    let root = Path::new("/sys/fs/cgroup");
    let bounds = own.iter().flat_map(|own| own.ancestors()).filter_map(|group| {
        let text = std::fs::read_to_string(root.join(group).join("memory.max")).ok()?;
        text.trim().parse::<u64>().ok()
    });
    bounds.chain([all]).min()
}

/// Asks the system to end this process before `partitad` where memory runs out: `partitad` can
/// start it again. A system without that file has its own order.
pub fn be_the_first_to_go() {
    const FILE: &str = "/proc/self/oom_score_adj";
    let text = std::fs::read_to_string(FILE).ok();
    let Some(score) = text.and_then(|text| text.trim().parse::<i32>().ok()) else { return };
    let score = score.saturating_add(OOM_SCORE).min(1000);
    if let Err(error) = std::fs::write(FILE, score.to_string()) {
        tracing::debug!(%error, "{FILE} stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: TenantId = TenantId(1000);
    const BOB: TenantId = TenantId(1001);

    fn limits() -> Limits {
        // 750 for all, 500 for each.
        Limits::new(1000 << 20, &HostMemoryLimits::default())
    }

    fn held(session: u64, tenant: TenantId, mib: u64) -> Held {
        Held {
            session: SessionId(session),
            tenant,
            can_end: true,
            shared: mib << 20,
            device: 0,
            modules: 0,
            records: 0,
        }
    }

    fn named(verdict: Option<Verdict>) -> Option<(u64, bool)> {
        verdict.map(|verdict| (verdict.held.session.0, verdict.of.is_some()))
    }

    #[test]
    fn a_tenant_above_its_limit_loses_its_largest_session() {
        let sessions =
            [held(1, ALICE, 200), held(2, ALICE, 301), held(3, BOB, 150), held(4, BOB, 50)];
        let verdict = judge(&limits(), 701 << 20, &sessions);
        assert_eq!(named(verdict.clone()), Some((2, true)));
        let text = verdict.unwrap().to_string();
        assert!(text.contains("user 1000 make the daemon hold 501 MiB"), "{text}");
        assert!(text.contains("where 500 MiB are the limit"), "{text}");
        assert!(text.contains("301 MiB of page-locked and managed memory"), "{text}");
    }

    #[test]
    fn together_they_lose_the_largest_of_who_has_most() {
        let sessions = [held(1, ALICE, 400), held(2, BOB, 200), held(3, BOB, 250)];
        assert_eq!(named(judge(&limits(), 751 << 20, &sessions)), Some((3, false)));
        assert_eq!(judge(&limits(), 750 << 20, &sessions), None);
    }

    #[test]
    fn estimates_end_nobody_where_the_process_is_small() {
        let sessions = [held(1, ALICE, 9000)];
        assert_eq!(judge(&limits(), 499 << 20, &sessions), None);
        assert_eq!(named(judge(&limits(), 501 << 20, &sessions)), Some((1, true)));
    }

    #[test]
    fn nobody_is_ended_for_what_nobody_holds() {
        let sessions = [held(1, ALICE, 90), held(2, BOB, 10)];
        assert_eq!(judge(&limits(), 9000 << 20, &sessions), None);
        let ended = Held { can_end: false, ..held(1, ALICE, 501) };
        assert_eq!(judge(&limits(), 600 << 20, &[ended]), None);
    }

    #[test]
    fn the_configuration_goes_first() {
        let configured = HostMemoryLimits {
            bytes: Some(64 << 20),
            tenants: vec![
                MemoryQuota { tenant: None, bytes: 16 << 20 },
                MemoryQuota { tenant: Some(BOB), bytes: 8 << 20 },
            ],
        };
        let limits = Limits::new(1 << 40, &configured);
        assert_eq!(limits.least(), 8 << 20);
        assert_eq!(named(judge(&limits, 20 << 20, &[held(1, ALICE, 17)])), Some((1, true)));
        assert_eq!(named(judge(&limits, 20 << 20, &[held(1, ALICE, 15)])), None);
        assert_eq!(named(judge(&limits, 20 << 20, &[held(1, BOB, 9)])), Some((1, true)));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(machine_bytes().unwrap() > 1 << 26);
    }
}

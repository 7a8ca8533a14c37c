//! The `[policy]` section of the configuration file: from text to a checked [`GpuConfig`].
//!
//! The caller reads the file and knows the users. An error names file, line, reason and remedy.

use partita_model::{
    GpuConfig, GpuNumber, GroupSize, HostMemoryLimits, HungAfter, LatencyTarget, Limits,
    MemoryAmount, MemoryQuota, Originals, PartitionerKind, PolicyConfig, Priority, SelectorKind,
    SessionsPerUser, Share, SmAmount, SupplyModel, TenantId, Terms, TermsRule, Weight,
};
use serde::Deserialize;
use std::fmt;
use toml::Spanned;

/// The section as it is written.
///
/// ```toml
/// [policy]
/// partitioner = "static"
/// [[policy.share]]
/// tenant = "alice"     # a user's name or number
/// tag = "train"        # what PARTITA_APP says; tenant, tag or both
/// sms = 8
/// ```
///
/// A share may say what each application that matches may have, under every partitioner: `min` and
/// `max` (SMs as in `8` or `"30%"`), `weight`, `priority`, `memory` (as in `"8G"`), `target` (as in
/// `"5ms"`), and `may_ask`, which lets the programs of the tenant ask for more ([`Terms`]). Without
/// tenant and tag it holds for all.
///
/// `no_progress_ms`, `alone_ms`, `hold_up_ms`, `prepare_ms` and `prepare_mib` are [`Limits`],
/// `hung_after_ms` is [`HungAfter`], `originals` is [`Originals`].
/// `[[policy.memory]]` with `mib` is a [`MemoryQuota`], for `tenant` or for every tenant;
/// `[[policy.host_memory]]` and `host_memory_mib` are [`HostMemoryLimits`].
/// `[[policy.unfenced]]`, for `tenant` or for every tenant, permits kernels that a real GPU cannot
/// keep to their program's memory: machine code without PTX, and kernels that no fence fits.
/// `[[policy.gpu]]` is a [`GpuSection`], the settings of one of several GPUs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicySection {
    /// The selector: the applications that run together.
    pub selector: SelectorKind,
    /// The partitioner.
    pub partitioner: Option<Spanned<PartitionerKind>>,
    /// The way in which CD-search computes supply.
    pub supply: SupplyModel,
    /// Applications that the selector `matching` runs together, at most.
    pub group: GroupSize,
    /// Shares for the static partitioner.
    pub share: Vec<Spanned<ShareSection>>,
    /// Device memory of tenants.
    pub memory: Vec<Spanned<MemorySection>>,
    /// The machine's memory that programs of all users may make the daemon hold, in MiB.
    pub host_memory_mib: Option<Spanned<i64>>,
    /// The same for the programs of each user.
    pub host_memory: Vec<Spanned<MemorySection>>,
    /// Tenants that may run kernels without a fence.
    pub unfenced: Vec<Spanned<UnfencedSection>>,
    /// Settings of single GPUs.
    pub gpu: Vec<Spanned<GpuSection>>,
    /// A launch is stuck after this many milliseconds of device time without a completed CTA.
    pub no_progress_ms: Option<Spanned<i64>>,
    /// A kernel that must run alone may keep others waiting for this many milliseconds.
    pub alone_ms: Option<Spanned<i64>>,
    /// The most sessions of one user on a GPU.
    pub sessions_per_user: Option<Spanned<i64>>,
    /// A `partita-gpu` that answers nothing for this many milliseconds is hung.
    pub hung_after_ms: Option<Spanned<i64>>,
    /// A launch that completes no CTA may keep others waiting for this many milliseconds of the
    /// host's time.
    pub hold_up_ms: Option<Spanned<i64>>,
    /// A module may take this many milliseconds to prepare.
    pub prepare_ms: Option<Spanned<i64>>,
    /// A module may take this many MiB of memory to prepare.
    pub prepare_mib: Option<Spanned<i64>>,
    /// When kernels run as they were written: `alone` or `never`.
    pub originals: Originals,
}

/// The shortest time, in milliseconds, after which a `partita-gpu` may be taken for hung. A healthy
/// one answers within milliseconds, and within a second where it measures the device.
const SHORTEST_HANG_MS: u32 = 2_000;

/// One share, as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareSection {
    /// A user's name or number.
    pub tenant: Option<TenantName>,
    /// An application tag.
    pub tag: Option<String>,
    /// For the partitioner `static`: SMs for all applications that match.
    pub sms: Option<i64>,
    /// SMs that each application that matches has whenever it has work.
    pub min: Option<SmAmount>,
    /// SMs that each has at most.
    pub max: Option<SmAmount>,
    /// Its part in what is left.
    pub weight: Option<Weight>,
    /// Who yields to whom.
    pub priority: Option<Priority>,
    /// Device memory that each has at most.
    pub memory: Option<MemoryAmount>,
    /// The time that a request may take.
    pub target: Option<LatencyTarget>,
    /// Whether programs of the tenant may ask for more.
    pub may_ask: Option<bool>,
    /// The number of the GPU; `None` means each GPU.
    pub gpu: Option<i64>,
}

/// The section of one of several GPUs, as written.
///
/// ```toml
/// [[policy.gpu]]
/// number = 1
/// tenants = ["alice", 1001]
/// partitioner = "even"
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuSection {
    /// The number of the GPU, from 0, in the order in which the daemon serves them.
    pub number: i64,
    /// The users of the GPU, by name or number; `None` means every user.
    pub tenants: Option<Vec<TenantName>>,
    /// The selector, instead of the policy's.
    pub selector: Option<SelectorKind>,
    /// The partitioner, instead of the policy's.
    pub partitioner: Option<Spanned<PartitionerKind>>,
}

/// One quota of device memory, as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemorySection {
    /// A user's name or number; `None` means each user without an entry.
    pub tenant: Option<TenantName>,
    /// MiB for all programs of the user.
    pub mib: i64,
}

/// One right, as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnfencedSection {
    /// A user's name or number; `None` means every user.
    pub tenant: Option<TenantName>,
}

/// A tenant, as written.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged)]
pub enum TenantName {
    /// A user's number.
    Number(u32),
    /// A user's name.
    Name(String),
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TenantName::Number(number) => write!(f, "{number}"),
            TenantName::Name(name) => f.write_str(name),
        }
    }
}

/// Why a configuration is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{file}:{line}: {reason}")]
pub struct ConfigError {
    /// The file's name as the caller gave it.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The error and its remedy.
    pub reason: String,
}

/// The source of a section, and the GPUs and users that it may name.
#[derive(Clone, Copy)]
pub struct ConfigContext<'a> {
    /// The file's name.
    pub file: &'a str,
    /// Its text.
    pub text: &'a str,
    /// The GPU for which it is read.
    pub gpu: GpuNumber,
    /// The number of GPUs that the daemon serves.
    pub gpu_count: u16,
    /// SMs of the GPU.
    pub sm_count: u16,
    /// The number of the user of a name, if there is one.
    pub user: &'a dyn Fn(&str) -> Option<TenantId>,
    /// Whether there is a user of a number.
    pub user_exists: &'a dyn Fn(TenantId) -> bool,
}

impl ConfigContext<'_> {
    fn error(&self, at: usize, reason: String) -> ConfigError {
        error_at(self.file, self.text, at, reason)
    }
}

/// The policy section of a daemon's configuration; `None` where it has none.
///
/// ```toml
/// [policy]
/// selector = "everyone"
/// partitioner = "cd-search"
/// ```
///
/// # Errors
/// Where the file does not parse or its policy cannot hold.
pub fn read_policy(context: &ConfigContext<'_>) -> Result<Option<GpuConfig>, ConfigError> {
    let file = parse(context.file, context.text)?;
    file.policy.map(|section| section.check(context)).transpose()
}

/// Checks that a text parses and names only keys that exist. The values may still be wrong.
///
/// # Errors
/// The first error of the form.
pub fn check_form(file: &str, text: &str) -> Result<(), ConfigError> {
    parse(file, text).map(drop)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    policy: Option<PolicySection>,
}

fn parse(file: &str, text: &str) -> Result<File, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        error_at(file, text, at, error.message().to_owned())
    })
}

fn error_at(file: &str, text: &str, at: usize, reason: String) -> ConfigError {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
    ConfigError { file: file.to_owned(), line, reason }
}

impl PolicySection {
    /// The checked settings.
    ///
    /// # Errors
    /// The first wrong entry: no or too many SMs, an unknown tenant or GPU, no tenant, a duplicate,
    /// or shares that leave no SM for applications without a share.
    pub fn check(&self, context: &ConfigContext<'_>) -> Result<GpuConfig, ConfigError> {
        let own = self.check_gpus(context)?;
        let shares = self.check_shares(context)?;
        let (terms, askers) = self.check_terms(context)?;
        let named = own.and_then(|gpu| gpu.partitioner.as_ref()).or(self.partitioner.as_ref());
        let selector = own.and_then(|gpu| gpu.selector).unwrap_or(self.selector);
        let partitioner = named.map_or(selector.usual_partitioner(), |named| *named.get_ref());
        if partitioner == PartitionerKind::Static && shares.is_empty() {
            let whose =
                if context.gpu_count > 1 { format!(" for {}", context.gpu) } else { String::new() };
            return Err(context.error(
                named.map_or(0, |named| named.span().start),
                format!(
                    "partitioner `static` needs at least one [[policy.share]]{whose}; without one \
                     use `even`"
                ),
            ));
        }
        let tenants =
            own.and_then(|gpu| gpu.tenants.as_ref()).map(|names| read_users(names, context));
        let quotas = read_quotas(&self.memory, context)?;
        let host_memory = HostMemoryLimits {
            bytes: self.host_memory_mib.as_ref().map(|mib| read_mib(mib, context)).transpose()?,
            tenants: read_quotas(&self.host_memory, context)?,
        };
        let mut unfenced = Vec::new();
        for entry in &self.unfenced {
            let tenant = read_tenant(entry.get_ref().tenant.as_ref(), context);
            unfenced.push(tenant.map_err(|reason| context.error(entry.span().start, reason))?);
        }
        let PolicySection { supply, originals, group, .. } = *self;
        let default = Limits::default();
        let ms = |written: &Option<Spanned<i64>>, default| {
            within(context, written.as_ref(), "ms", 1, default)
        };
        let limits = Limits {
            no_progress_ms: ms(&self.no_progress_ms, default.no_progress_ms)?,
            alone_ms: ms(&self.alone_ms, default.alone_ms)?,
            hold_up_ms: ms(&self.hold_up_ms, default.hold_up_ms)?,
            prepare_ms: ms(&self.prepare_ms, default.prepare_ms)?,
            prepare_mib: within(context, self.prepare_mib.as_ref(), "MiB", 1, default.prepare_mib)?,
        };
        let HungAfter(default) = HungAfter::default();
        let hung_after = self.hung_after_ms.as_ref();
        let hung_after = HungAfter(within(context, hung_after, "ms", SHORTEST_HANG_MS, default)?);
        let SessionsPerUser(default) = SessionsPerUser::default();
        let most = self.sessions_per_user.as_ref();
        let sessions_per_user = SessionsPerUser(within(context, most, "sessions", 1, default)?);
        // `check_gpus` has checked that these users exist.
        let tenants = tenants.transpose().map_err(|reason| context.error(0, reason))?;
        let policy = PolicyConfig { selector, partitioner, supply, shares, group };
        Ok(GpuConfig {
            policy,
            limits,
            originals,
            quotas,
            host_memory,
            unfenced,
            terms,
            askers,
            tenants,
            hung_after,
            sessions_per_user,
        })
    }

    /// The shares of the context's GPU: each tenant and tag once, with at least one SM left over.
    fn check_shares(&self, context: &ConfigContext<'_>) -> Result<Vec<Share>, ConfigError> {
        let mut shares: Vec<Share> = Vec::new();
        let mut total = 0_u32;
        for entry in &self.share {
            let refuse = |reason| Err(context.error(entry.span().start, reason));
            match entry.get_ref().gpu.map(|number| read_gpu(number, context)).transpose() {
                Ok(Some(gpu)) if gpu != context.gpu => continue,
                Ok(_) => {}
                Err(reason) => return refuse(reason),
            }
            let share = match read_share(entry.get_ref(), context) {
                Ok(Some(share)) => share,
                Ok(None) => continue,
                Err(reason) => return refuse(reason),
            };
            if shares.iter().any(|other| (other.tenant, &other.tag) == (share.tenant, &share.tag)) {
                return refuse(format!("a second share for {share}: merge it with the first"));
            }
            total += u32::from(share.sms);
            let most = u32::from(context.sm_count.saturating_sub(1));
            if total > most {
                return refuse(format!(
                    "the shares up to this one add up to {total} SMs of {}: leave at least one \
                     for applications without a share",
                    context.sm_count
                ));
            }
            shares.push(share);
        }
        Ok(shares)
    }

    /// What applications may have on the context's GPU, and who may ask for more.
    fn check_terms(
        &self,
        context: &ConfigContext<'_>,
    ) -> Result<(Vec<TermsRule>, Vec<Option<TenantId>>), ConfigError> {
        let (mut rules, mut askers) = (Vec::<TermsRule>::new(), Vec::new());
        for entry in &self.share {
            let section = entry.get_ref();
            // `check_shares` has checked the number.
            let gpu = section.gpu.and_then(|number| read_gpu(number, context).ok());
            if gpu.is_some_and(|gpu| gpu != context.gpu) {
                continue;
            }
            let rule = read_terms(section, context);
            let rule = rule.map_err(|reason| context.error(entry.span().start, reason))?;
            if section.may_ask == Some(true) {
                askers.push(rule.tenant);
            }
            if rule.terms.is_empty() {
                continue;
            }
            if rules.iter().any(|other| (other.tenant, &other.tag) == (rule.tenant, &rule.tag)) {
                let reason = "second terms for the same applications: merge them with the first";
                return Err(context.error(entry.span().start, reason.to_owned()));
            }
            rules.push(rule);
        }
        Ok((rules, askers))
    }

    /// Checks the sections of single GPUs, and returns the section of the context's GPU.
    fn check_gpus(&self, context: &ConfigContext<'_>) -> Result<Option<&GpuSection>, ConfigError> {
        let mut seen: Vec<GpuNumber> = Vec::new();
        let mut own = None;
        for entry in &self.gpu {
            let section = entry.get_ref();
            let number =
                read_gpu(section.number, context).and_then(|number| match &section.tenants {
                    _ if seen.contains(&number) => {
                        Err(format!("a second entry for {number}: merge it with the first"))
                    }
                    Some(names) if names.is_empty() => {
                        Err(format!("{number} is for nobody: name `tenants`, or do not serve it"))
                    }
                    Some(names) => read_users(names, context).map(|_| number),
                    None => Ok(number),
                });
            let number = number.map_err(|reason| context.error(entry.span().start, reason))?;
            if number == context.gpu {
                own = Some(section);
            }
            seen.push(number);
        }
        Ok(own)
    }
}

/// A limit as it is written, or the default. It is at least `least`.
fn within(
    context: &ConfigContext<'_>,
    written: Option<&Spanned<i64>>,
    unit: &str,
    least: u32,
    default: u32,
) -> Result<u32, ConfigError> {
    let Some(written) = written else { return Ok(default) };
    let given = u32::try_from(*written.get_ref()).ok().filter(|given| *given >= least);
    given.ok_or_else(|| {
        let reason =
            format!("a limit of {} {unit}: give {least} to {}", written.get_ref(), u32::MAX);
        context.error(written.span().start, reason)
    })
}

fn read_gpu(number: i64, context: &ConfigContext<'_>) -> Result<GpuNumber, String> {
    let found = u16::try_from(number).ok().filter(|number| *number < context.gpu_count);
    found.map(GpuNumber).ok_or_else(|| match context.gpu_count {
        1 => format!("there is no GPU {number}: the daemon serves one, GPU 0"),
        count => {
            format!("there is no GPU {number}: the daemon serves {count}, GPU 0 to {}", count - 1)
        }
    })
}

fn read_users(names: &[TenantName], context: &ConfigContext<'_>) -> Result<Vec<TenantId>, String> {
    let mut tenants = Vec::new();
    for name in names {
        tenants.extend(read_tenant(Some(name), context)?);
    }
    Ok(tenants)
}

fn read_tenant(
    written: Option<&TenantName>,
    context: &ConfigContext<'_>,
) -> Result<Option<TenantId>, String> {
    match written {
        None => Ok(None),
        Some(TenantName::Number(number)) if (context.user_exists)(TenantId(*number)) => {
            Ok(Some(TenantId(*number)))
        }
        Some(TenantName::Number(number)) => Err(format!("no user has the number {number}")),
        Some(TenantName::Name(name)) => {
            (context.user)(name).map(Some).ok_or_else(|| format!("no user is named `{name}`"))
        }
    }
}

/// Quotas, with at most one for each tenant.
fn read_quotas(
    entries: &[Spanned<MemorySection>],
    context: &ConfigContext<'_>,
) -> Result<Vec<MemoryQuota>, ConfigError> {
    let mut quotas: Vec<MemoryQuota> = Vec::new();
    for entry in entries {
        let quota = read_quota(entry.get_ref(), context).and_then(|quota| {
            match quotas.iter().any(|other| other.tenant == quota.tenant) {
                true => Err("a second quota for the same: merge it with the first".to_owned()),
                false => Ok(quota),
            }
        });
        quotas.push(quota.map_err(|reason| context.error(entry.span().start, reason))?);
    }
    Ok(quotas)
}

fn read_quota(entry: &MemorySection, context: &ConfigContext<'_>) -> Result<MemoryQuota, String> {
    let tenant = read_tenant(entry.tenant.as_ref(), context)?;
    Ok(MemoryQuota { tenant, bytes: mib_to_bytes(entry.mib)? })
}

fn read_mib(mib: &Spanned<i64>, context: &ConfigContext<'_>) -> Result<u64, ConfigError> {
    mib_to_bytes(*mib.get_ref()).map_err(|reason| context.error(mib.span().start, reason))
}

fn mib_to_bytes(mib: i64) -> Result<u64, String> {
    let bytes = u64::try_from(mib).ok().filter(|mib| *mib > 0);
    let bytes = bytes.and_then(|mib| mib.checked_mul(1 << 20));
    bytes.ok_or_else(|| format!("a quota of {mib} MiB: give at least 1 and less than 2^44"))
}

/// The share of the partitioner `static`, where the entry has one.
fn read_share(entry: &ShareSection, context: &ConfigContext<'_>) -> Result<Option<Share>, String> {
    let sm_count = context.sm_count;
    let tenant = read_tenant(entry.tenant.as_ref(), context)?;
    let Some(sms) = entry.sms else { return Ok(None) };
    if tenant.is_none() && entry.tag.is_none() {
        return Err("a share for nobody: name a `tenant`, a `tag` or both".to_owned());
    }
    let sms = match u16::try_from(sms) {
        Ok(0) => return Err("a share of 0 SMs: give at least 1, or remove the entry".to_owned()),
        Ok(sms) if sms <= sm_count => sms,
        _ if sms < 0 => return Err(format!("a share of {sms} SMs: give at least 1")),
        _ => return Err(format!("a share of {sms} SMs: the GPU has {sm_count}")),
    };
    Ok(Some(Share { tenant, tag: entry.tag.clone(), sms }))
}

/// What an entry says of each application that matches.
fn read_terms(entry: &ShareSection, context: &ConfigContext<'_>) -> Result<TermsRule, String> {
    let ShareSection { min, max, weight, priority, memory, target, .. } = *entry;
    let terms = Terms { min, max, weight, priority, memory, target };
    if terms.is_empty() && entry.sms.is_none() && entry.may_ask.is_none() {
        return Err("a share that says nothing: give `min`, `max`, `weight`, `priority`, \
                    `memory`, `target` or `may_ask`, or `sms` for the partitioner `static`"
            .to_owned());
    }
    if entry.may_ask == Some(true) && entry.tag.is_some() {
        return Err("`may_ask` is a right of users, and any program may take a tag: name no `tag`"
            .to_owned());
    }
    if let Some(reason) = terms.impossible_on(context.sm_count) {
        return Err(reason);
    }
    let tenant = read_tenant(entry.tenant.as_ref(), context)?;
    Ok(TermsRule { tenant, tag: entry.tag.clone(), terms })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<GpuConfig, String> {
        parse_for(0, 1, text)
    }

    fn parse_for(gpu: u16, gpu_count: u16, text: &str) -> Result<GpuConfig, String> {
        read_policy(&ConfigContext {
            file: "policy.toml",
            text,
            gpu: GpuNumber(gpu),
            gpu_count,
            sm_count: 24,
            user: &|name| (name == "alice").then_some(TenantId(1000)),
            user_exists: &|tenant| tenant.0 < 2000,
        })
        .map(Option::unwrap_or_default)
        .map_err(|error| error.to_string())
    }

    #[test]
    fn good_configurations() {
        assert_eq!(parse("").unwrap(), GpuConfig::default());
        let config =
            parse("[policy]\npartitioner = \"cd-search\"\nsupply = \"bottleneck\"").unwrap().policy;
        assert_eq!(
            (config.partitioner, config.supply),
            (PartitionerKind::CdSearch, SupplyModel::Bottleneck)
        );
        let slate = parse("[policy]\nselector = \"slate\"").unwrap().policy;
        assert_eq!(
            (slate.selector, slate.partitioner),
            (SelectorKind::Slate, PartitionerKind::Demand)
        );
        let matching = parse("[policy]\nselector = \"matching\"\ngroup = 3").unwrap().policy;
        assert_eq!(
            (matching.selector, matching.partitioner, matching.group.get()),
            (SelectorKind::Matching, PartitionerKind::Smra, 3)
        );
        let error = parse("[policy]\ngroup = 5").unwrap_err();
        assert_eq!(error, "policy.toml:2: a group has 2, 3 or 4 applications, not 5");
        let limits = parse("[policy]\nno_progress_ms = 5\nhold_up_ms = 7").unwrap().limits;
        assert_eq!(limits, Limits { no_progress_ms: 5, hold_up_ms: 7, ..Limits::default() });
        let config = parse("[policy]\nhung_after_ms = 2000").unwrap();
        assert_eq!(config.hung_after, HungAfter(2000));
        let config = parse("[policy]\nsessions_per_user = 3").unwrap();
        assert_eq!(config.sessions_per_user, SessionsPerUser(3));
        let limits = parse("[policy]\nprepare_ms = 7\nprepare_mib = 8").unwrap().limits;
        assert_eq!((limits.prepare_ms, limits.prepare_mib), (7, 8));
        let all = [Originals::Short, Originals::Alone, Originals::Never];
        for (written, originals) in ["short", "alone", "never"].into_iter().zip(all) {
            let text = format!("[policy]\noriginals = \"{written}\"");
            assert_eq!(parse(&text).unwrap().originals, originals);
        }
        let text = "[policy]\n[[policy.memory]]\nmib = 512\n[[policy.memory]]\ntenant \
            = \"alice\"\nmib = 2048";
        let rights = "[policy]\n[[policy.unfenced]]\ntenant = \"alice\"\n[[policy.unfenced]]";
        assert_eq!(parse(rights).unwrap().unfenced, [Some(TenantId(1000)), None]);
        let quota = |tenant, mib: u64| MemoryQuota { tenant, bytes: mib << 20 };
        assert_eq!(
            parse(text).unwrap().quotas,
            [quota(None, 512), quota(Some(TenantId(1000)), 2048)]
        );
        let text = "[policy]\npartitioner = \"static\"\n[[policy.share]]\ntenant = \"alice\"\ntag \
            = \"train\"\nsms = 8\n\
                    [[policy.share]]\ntenant = 1001\nsms = 15";
        let shares = parse(text).unwrap().policy.shares;
        assert_eq!(
            shares[0],
            Share { tenant: Some(TenantId(1000)), tag: Some("train".into()), sms: 8 }
        );
        assert_eq!(shares[1], Share { tenant: Some(TenantId(1001)), tag: None, sms: 15 });
    }

    #[test]
    fn terms_of_applications() {
        let text = "[policy]\n[[policy.share]]\nweight = 2\n[[policy.share]]\ntenant = \"alice\"\n\
            min = 4\nmax = \"50%\"\nmay_ask = true\n[[policy.share]]\ntag = \"serve\"\n\
            priority = \"latency\"\nmemory = \"8G\"\ntarget = \"5ms\"\n\
            [[policy.share]]\ntag = \"elsewhere\"\nweight = 3\ngpu = 1";
        let config = parse_for(0, 2, text).unwrap();
        assert_eq!(config.policy.shares, []);
        assert_eq!(config.askers, [Some(TenantId(1000))]);
        let [all, alice, serve] = &config.terms[..] else { panic!("{:?}", config.terms) };
        assert_eq!((all.tenant, &all.tag), (None, &None));
        assert_eq!(all.terms.weight.map(|weight| weight.get()), Some(2));
        assert_eq!(alice.tenant, Some(TenantId(1000)));
        assert_eq!(
            (alice.terms.min, alice.terms.max),
            (Some(SmAmount::Sms(4)), Some(SmAmount::PerCent(50)))
        );
        assert_eq!(serve.terms.priority, Some(Priority::Latency));
        assert_eq!(serve.terms.memory.map(MemoryAmount::bytes), Some(8 << 30));
        assert_eq!(serve.terms.target.map(|target| target.nanos().0), Some(5_000_000));
        assert_eq!(parse_for(1, 2, text).unwrap().terms.len(), 4);
    }

    #[test]
    fn bad_terms_name_the_line_and_the_remedy() {
        let check = |entry: &str, expected: &str| {
            let error = parse(&format!("[policy]\n[[policy.share]]\n{entry}")).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check("tag = \"a\"", "policy.toml:2: a share that says nothing: give `min`");
        check("min = 9\nmax = 8", "policy.toml:2: a minimum of 9 SMs with a maximum of 8");
        check("max = 0", "policy.toml:2: a maximum of 0 SMs: give at least 1");
        check("min = 25", "policy.toml:2: a minimum of 25 SMs: the GPU has 24");
        check("min = \"101%\"", "policy.toml:3: `101%` is no number of SMs");
        check("weight = 1001", "policy.toml:3: a weight of 1001: give 0 to 1000");
        check("priority = \"high\"", "policy.toml:3: unknown variant `high`");
        check("memory = \"8 apples\"", "policy.toml:3: `8 apples` is no amount of memory");
        check("memory = 8", "policy.toml:3: invalid type: integer `8`, expected a string");
        check("target = \"5\"", "policy.toml:3: `5` is no latency target");
        check("tag = \"a\"\nmay_ask = true", "name no `tag`");
        check("weight = 1\n[[policy.share]]\nweight = 2", "policy.toml:4: second terms");
    }

    #[track_caller]
    fn refused(text: &str, expected: &str) {
        assert_eq!(parse(text).unwrap_err(), expected);
    }

    #[test]
    fn bad_configurations_name_file_line_and_reason() {
        let header = "[policy]\npartitioner = \"static\"\n\n[[policy.share]]\n";
        refused(
            &format!("{header}tag = \"a\"\nsms = 25"),
            "policy.toml:4: a share of 25 SMs: the GPU has 24",
        );
        refused(
            &format!("{header}tag = \"a\"\nsms = 70000"),
            "policy.toml:4: a share of 70000 SMs: the GPU has 24",
        );
        refused(
            &format!("{header}tag = \"a\"\nsms = 0"),
            "policy.toml:4: a share of 0 SMs: give at least 1, or remove the entry",
        );
        refused(
            &format!("{header}tag = \"a\"\nsms = -3"),
            "policy.toml:4: a share of -3 SMs: give at least 1",
        );
        refused(
            &format!("{header}tenant = \"bob\"\nsms = 3"),
            "policy.toml:4: no user is named `bob`",
        );
        refused(
            &format!("{header}tenant = 5000\nsms = 3"),
            "policy.toml:4: no user has the number 5000",
        );
        refused(
            &format!("{header}sms = 3"),
            "policy.toml:4: a share for nobody: name a `tenant`, a `tag` or both",
        );
        refused(
            &format!("{header}tag = \"a\"\nsms = 12\n[[policy.share]]\ntag = \"b\"\nsms = 12"),
            "policy.toml:7: the shares up to this one add up to 24 SMs of 24: leave at least one \
             for applications \
             without a share",
        );
        refused(
            &format!("{header}tag = \"a\"\nsms = 1\n[[policy.share]]\ntag = \"a\"\nsms = 2"),
            "policy.toml:7: a second share for tag `a`: merge it with the first",
        );
        refused(
            "[policy]\npartitioner = \"static\"",
            "policy.toml:2: partitioner `static` needs at least one [[policy.share]]; without one \
             use `even`",
        );
        assert!(
            parse("[policy]\n\npartitioner = \"best\"")
                .unwrap_err()
                .starts_with("policy.toml:3: unknown variant")
        );
        for (text, line, value) in
            [("\nno_progress_ms = 0", 2, "0"), ("\n\nalone_ms = -7", 3, "-7")]
        {
            let reason = format!("policy.toml:{line}: a limit of {value} ms: give 1 to 4294967295");
            refused(&format!("[policy]{text}"), &reason);
        }
        refused(
            "[policy]\nhung_after_ms = 1999",
            "policy.toml:2: a limit of 1999 ms: give 2000 to 4294967295",
        );
        refused(
            "[policy]\nsessions_per_user = 0",
            "policy.toml:2: a limit of 0 sessions: give 1 to 4294967295",
        );
        let header = "[policy]\n[[policy.memory]]\n";
        refused(
            &format!("{header}tenant = \"bob\"\nmib = 3"),
            "policy.toml:2: no user is named `bob`",
        );
        for mib in [0, -1, i64::MAX] {
            let reason =
                format!("policy.toml:2: a quota of {mib} MiB: give at least 1 and less than 2^44");
            refused(&format!("{header}mib = {mib}"), &reason);
        }
        refused(
            &format!("{header}mib = 1\n[[policy.memory]]\nmib = 2"),
            "policy.toml:4: a second quota for the same: merge it with the first",
        );
        assert!(parse("\nshares = 3").unwrap_err().starts_with("policy.toml:2: unknown field"));
        assert!(parse("[[share]").unwrap_err().starts_with("policy.toml:1: "));
    }

    #[test]
    fn what_is_said_of_one_gpu_holds_there_only() {
        let text = "[policy]\npartitioner = \"static\"\n[[policy.share]]\ntag = \"a\"\nsms = \
            20\ngpu = 0\n\
                    [[policy.share]]\ntag = \"a\"\nsms = 3\ngpu = 1\n[[policy.share]]\ntag \
                    = \"b\"\nsms = 1\n\
                    [[policy.gpu]]\nnumber = 1\ntenants = [\"alice\", 1001]\npartitioner \
                    = \"even\"\nselector = \"slate\"\n";
        let [first, second] = [0, 1].map(|gpu| parse_for(gpu, 2, text).unwrap());
        let sms = |config: &GpuConfig| {
            config.policy.shares.iter().map(|share| share.sms).collect::<Vec<_>>()
        };
        assert_eq!((sms(&first), sms(&second)), (vec![20, 1], vec![3, 1]));
        assert_eq!(
            (first.policy.partitioner, second.policy.partitioner),
            (PartitionerKind::Static, PartitionerKind::Even)
        );
        assert_eq!(
            (first.policy.selector, second.policy.selector),
            (SelectorKind::Everyone, SelectorKind::Slate)
        );
        assert_eq!(
            (first.tenants, second.tenants),
            (None, Some(vec![TenantId(1000), TenantId(1001)]))
        );
    }

    #[test]
    fn gpus_that_cannot_be_are_refused() {
        let check = |text: &str, expected: &str| {
            for gpu in [0, 1] {
                assert_eq!(parse_for(gpu, 2, &format!("[policy]\n{text}")).unwrap_err(), expected);
            }
        };
        check(
            "[[policy.gpu]]\nnumber = 2",
            "policy.toml:2: there is no GPU 2: the daemon serves 2, GPU 0 to 1",
        );
        check(
            "[[policy.share]]\ntag = \"a\"\nsms = 1\ngpu = -1",
            "policy.toml:2: there is no GPU -1: the daemon serves 2, GPU 0 to 1",
        );
        check(
            "[[policy.gpu]]\nnumber = 1\n[[policy.gpu]]\nnumber = 1",
            "policy.toml:4: a second entry for GPU 1: merge it with the first",
        );
        check(
            "[[policy.gpu]]\nnumber = 1\ntenants = []",
            "policy.toml:2: GPU 1 is for nobody: name `tenants`, or do not serve it",
        );
        check(
            "[[policy.gpu]]\nnumber = 1\ntenants = [\"bob\"]",
            "policy.toml:2: no user is named `bob`",
        );
        refused(
            "[policy]\n[[policy.gpu]]\nnumber = 1",
            "policy.toml:2: there is no GPU 1: the daemon serves one, GPU 0",
        );
        let text =
            "[policy]\npartitioner = \"static\"\n[[policy.share]]\ntag = \"a\"\nsms = 20\ngpu = 0";
        assert_eq!(
            parse_for(1, 2, text).unwrap_err(),
            "policy.toml:2: partitioner `static` needs at least one [[policy.share]] for GPU 1; \
             without one use `even`"
        );
    }
}

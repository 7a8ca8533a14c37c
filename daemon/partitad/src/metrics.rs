//! The page of metrics: what GPUs and applications have and have had, by names and labels that
//! change as little as the API does.
//!
//! Every page is made anew from the accounts of the data planes. Labels are `gpu` and `uuid`; of
//! an application also `partition` (its id), `tenant` (its uid) and `job` (its tag, without one
//! empty). No label has a process id, a program's name or a kernel's name.

use crate::api::uuid_text;
use partita_model::{
    AccountsReport, ApplicationAccount, DeviceFacts, GpuNumber, Histogram, MemoryAmount,
    MemoryQuota, ResizeReason,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

/// Content types of the two formats.
pub const TEXT: &str = prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
/// As [`TEXT`], for OpenMetrics.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const NANOS: f64 = 1e-9;

type Labels = Vec<(&'static str, String)>;

/// What a page says of one GPU.
#[derive(Debug)]
pub struct GpuPage {
    labels: Labels,
    facts: Option<DeviceFacts>,
    restarts: u32,
    /// Nothing while no `partita-gpu` serves the GPU.
    accounts: Option<AccountsReport>,
    applications: Vec<ApplicationPage>,
}

#[derive(Debug)]
struct ApplicationPage {
    labels: Labels,
    account: ApplicationAccount,
    memory_limit: Option<u64>,
}

impl GpuPage {
    /// What is known of a GPU.
    #[must_use]
    pub fn new(
        gpu: GpuNumber,
        (facts, restarts): (Option<DeviceFacts>, u32),
        mut accounts: Option<AccountsReport>,
        quotas: &[MemoryQuota],
    ) -> GpuPage {
        let uuid = facts.as_ref().map(|facts| uuid_text(&facts.uuid)).unwrap_or_default();
        let labels = vec![("gpu", gpu.0.to_string()), ("uuid", uuid)];
        let applications =
            accounts.as_mut().map(|accounts| std::mem::take(&mut accounts.applications));
        let page = |account: ApplicationAccount| {
            let own = [
                ("partition", account.id.0.to_string()),
                ("tenant", account.tenant.0.to_string()),
                ("job", account.tag.clone().unwrap_or_default()),
            ];
            let of = |tenant| quotas.iter().find(|quota| quota.tenant == tenant);
            let quota = of(Some(account.tenant)).or_else(|| of(None)).map(|quota| quota.bytes);
            let own_limit = account.entitlement.and_then(|own| own.memory);
            ApplicationPage {
                labels: labels.iter().cloned().chain(own).collect(),
                memory_limit: quota.into_iter().chain(own_limit.map(MemoryAmount::bytes)).min(),
                account,
            }
        };
        let applications = applications.into_iter().flatten().map(page).collect();
        GpuPage { labels, facts, restarts, accounts, applications }
    }

    /// Speeds against alone of the applications that have SMs; nothing where one is not known.
    fn speeds(&self) -> Option<Vec<f64>> {
        let with_sms = self.applications.iter().filter(|one| one.account.sms > 0);
        let speeds: Option<Vec<f64>> = with_sms.map(|one| one.account.usage.progress).collect();
        speeds.filter(|speeds| !speeds.is_empty() && speeds.iter().all(|speed| *speed > 0.0))
    }

    /// System throughput: the sum of the speeds, each against alone.
    fn throughput(&self) -> Option<f64> {
        Some(self.speeds()?.iter().sum())
    }

    /// Average normalised turnaround time: the mean of alone against these speeds.
    fn turnaround(&self) -> Option<f64> {
        let speeds = self.speeds()?;
        Some(speeds.iter().map(|speed| 1.0 / speed).sum::<f64>() / as_float(speeds.len() as u64))
    }
}

/// All GPUs.
#[derive(Debug)]
struct Page(Vec<GpuPage>);

/// The page as text, in OpenMetrics' format or in Prometheus's.
///
/// # Errors
/// Where the text cannot be written, which a `String` always can.
pub fn text(gpus: Vec<GpuPage>, open_metrics: bool) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("partita");
    let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "The daemon's version", build);
    registry.register_collector(Box::new(Page(gpus)));
    let mut text = String::new();
    match open_metrics {
        true => prometheus_client::encoding::text::encode(&mut text, &registry)?,
        false => prometheus_client::encoding::prometheus_text::encode(&mut text, &registry)?,
    }
    Ok(text)
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.gpus(&mut encoder)?;
        self.totals(&mut encoder)?;
        self.partitions(&mut encoder)
    }
}

#[expect(clippy::cast_precision_loss, reason = "metrics are 64-bit floats")]
fn as_float(count: u64) -> f64 {
    count as f64
}

fn seconds(nanos: u64) -> f64 {
    as_float(nanos) * NANOS
}

/// The name, the help and the unit of a metric.
type Metric = (&'static str, &'static str, Option<Unit>);

fn gauges<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, unit): Metric,
    rows: impl Iterator<Item = (&'a Labels, f64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
    for (labels, value) in rows {
        ConstGauge::new(value).encode(family.encode_family(labels)?)?;
    }
    Ok(())
}

fn counters<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, unit): Metric,
    rows: impl Iterator<Item = (&'a Labels, f64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
    for (labels, value) in rows {
        ConstCounter::new(value).encode(family.encode_family(labels)?)?;
    }
    Ok(())
}

impl Page {
    fn gpus(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let of = |value: fn(&GpuPage) -> Option<f64>| {
            self.0.iter().filter_map(move |gpu| Some((&gpu.labels, value(gpu)?)))
        };
        let metric = ("gpu", "The GPU's name and kind", None);
        let mut family =
            encoder.encode_descriptor(metric.0, metric.1, metric.2, MetricType::Info)?;
        for gpu in &self.0 {
            let Some(facts) = &gpu.facts else { continue };
            let kind = format!("{:?}", facts.kind).to_lowercase();
            let names = vec![("modelName", facts.name.clone()), ("kind", kind)];
            Info::new(names).encode(family.encode_family(&gpu.labels)?)?;
        }
        let metric = ("gpu_up", "Whether a partita-gpu serves the GPU", None);
        gauges(encoder, metric, of(|gpu| Some(f64::from(u8::from(gpu.accounts.is_some())))))?;
        let metric = ("gpu_restarts", "Restarts of partita-gpu", None);
        counters(encoder, metric, of(|gpu| Some(gpu.restarts.into())))?;
        let metric = ("gpu_sms", "SMs of the GPU", None);
        gauges(encoder, metric, of(|gpu| Some(gpu.facts.as_ref()?.sm_count.into())))?;
        let metric = ("gpu_memory", "Device memory", Some(Unit::Bytes));
        gauges(encoder, metric, of(|gpu| Some(as_float(gpu.facts.as_ref()?.memory.0))))?;
        let metric = ("gpu_memory_used", "Device memory in use", Some(Unit::Bytes));
        let used = of(|gpu| Some(as_float(gpu.accounts.as_ref()?.memory_used_bytes)));
        gauges(encoder, metric, used)?;
        let metric = ("gpu_device_time", "Device time since the start", Some(Unit::Seconds));
        counters(encoder, metric, of(|gpu| Some(seconds(gpu.accounts.as_ref()?.time.0))))?;
        let metric = ("gpu_energy", "Energy, where the device counts it", Some(Unit::Joules));
        let energy = of(|gpu| Some(seconds(gpu.accounts.as_ref()?.energy_nj?)));
        counters(encoder, metric, energy)?;
        let metric = ("applications", "Applications that have a session", None);
        let count =
            of(|gpu| gpu.accounts.as_ref().map(|_| as_float(gpu.applications.len() as u64)));
        gauges(encoder, metric, count)?;
        let metric = (
            "system_throughput",
            "Sum of the applications' speeds, each against alone on the whole GPU (STP)",
            None,
        );
        gauges(encoder, ratio(metric), of(GpuPage::throughput))?;
        let metric = (
            "normalized_turnaround",
            "Mean of the applications' times, each against alone on the whole GPU (ANTT)",
            None,
        );
        gauges(encoder, ratio(metric), of(GpuPage::turnaround))
    }

    fn totals(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = || self.0.iter().filter_map(|gpu| Some((&gpu.labels, gpu.accounts.as_ref()?)));
        let metric = ("sessions", "Sessions that have come", None);
        let sessions = all().map(|(labels, of)| (labels, as_float(of.totals.sessions)));
        counters(encoder, metric, sessions)?;
        let metric = ("decisions", "Decisions of the policy", None);
        counters(encoder, metric, all().map(|(labels, of)| (labels, as_float(of.decisions))))?;

        let with = |labels: &Labels, name, value: String| {
            labels.iter().cloned().chain([(name, value)]).collect::<Labels>()
        };
        let mut rows = Vec::new();
        for (labels, of) in all() {
            for (reason, count) in &of.totals.resizes {
                let reason = reason_text(*reason).to_owned();
                rows.push((with(labels, "reason", reason), as_float(*count)));
            }
        }
        let metric = ("resizes", "Decisions and plans that took SMs from an application", None);
        counters(encoder, metric, rows.iter().map(|(labels, count)| (labels, *count)))?;
        let mut rows = Vec::new();
        for (labels, of) in all() {
            for (error, count) in &of.totals.faults {
                rows.push((with(labels, "kind", error.clone()), as_float(*count)));
            }
        }
        let metric = ("client_faults", "Sessions that have failed, by CUDA's error", None);
        counters(encoder, metric, rows.iter().map(|(labels, count)| (labels, *count)))?;

        let metric = ("resize_duration", "From a resize until the last SM has changed hands");
        histograms(encoder, metric, all().map(|(labels, of)| (labels, &of.totals.resize_time)))?;
        let metric = ("launch_wait", "From the call of a launch until it is first of its stream");
        histograms(encoder, metric, all().map(|(labels, of)| (labels, &of.totals.launch_wait)))?;
        let metric = ("launch_duration", "From there until the launch is complete");
        histograms(encoder, metric, all().map(|(labels, of)| (labels, &of.totals.launch_time)))
    }

    fn partitions(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let of = |value: fn(&ApplicationPage) -> Option<f64>| {
            let all = self.0.iter().flat_map(|gpu| &gpu.applications);
            all.filter_map(move |one| Some((&one.labels, value(one)?)))
        };
        let time = Some(Unit::Seconds);
        let metric = ("partition_sms", "SMs that the application has", None);
        gauges(encoder, metric, of(|one| Some(one.account.sms.into())))?;
        let metric = (
            "partition_progress",
            "Speed of late against alone on the whole GPU, where that is known",
            None,
        );
        gauges(encoder, ratio(metric), of(|one| one.account.usage.progress))?;
        let metric = ("partition_stuck", "Whether a launch makes no progress", None);
        gauges(encoder, metric, of(|one| Some(f64::from(u8::from(one.account.stuck)))))?;
        let metric = ("partition_sessions", "Sessions of the application", None);
        gauges(encoder, metric, of(|one| Some(as_float(one.account.sessions as u64))))?;
        let metric = ("memory_used", "Device memory that it uses", Some(Unit::Bytes));
        gauges(encoder, metric, of(|one| Some(as_float(one.account.memory_used_bytes))))?;
        let metric =
            ("memory_limit", "Device memory that its tenant or it may have", Some(Unit::Bytes));
        gauges(encoder, metric, of(|one| one.memory_limit.map(as_float)))?;
        let metric = ("partition_sm", "SMs that it had × time", time.clone());
        counters(encoder, metric, of(|one| Some(seconds(one.account.usage.sm_ns))))?;
        let metric = ("partition_launches", "Launches that have completed", None);
        counters(encoder, metric, of(|one| Some(as_float(one.account.launches))))?;
        let metric = ("partition_ctas", "CTAs of original work that have completed", None);
        counters(encoder, metric, of(|one| Some(as_float(one.account.ctas))))?;
        let metric = (
            "partition_wait",
            "Time from calls of launches until they were first of their streams",
            time.clone(),
        );
        counters(encoder, metric, of(|one| Some(seconds(one.account.usage.wait_ns))))?;
        let metric =
            ("partition_run", "Time for which launches were first of their streams", time.clone());
        counters(encoder, metric, of(|one| Some(seconds(one.account.usage.run_ns))))?;
        let metric =
            ("partition_compared", "That of launches whose time alone is known", time.clone());
        counters(encoder, metric, of(|one| Some(one.account.usage.compared_ns * NANOS)))?;
        let metric =
            ("partition_alone", "What these would have taken alone on the whole GPU", time.clone());
        counters(encoder, metric, of(|one| Some(one.account.usage.alone_ns * NANOS)))?;
        let metric = ("partition_busy", "Time with work that keeps to its SMs", time.clone());
        counters(encoder, metric, of(|one| Some(seconds(one.account.usage.busy_ns))))?;
        let metric =
            ("partition_short", "That in which it had fewer SMs than its minimum", time.clone());
        counters(encoder, metric, of(|one| Some(seconds(one.account.usage.short_ns))))?;
        let metric = (
            "partition_minimum_lent",
            "Time without such work and with fewer SMs than its minimum",
            time.clone(),
        );
        counters(encoder, metric, of(|one| Some(seconds(one.account.usage.lent_ns))))?;
        let metric = ("partition_minimum_sms", "SMs that it has whenever it has work", None);
        gauges(encoder, metric, of(|one| Some(one.account.entitlement?.min.into())))?;
        let metric =
            ("partition_maximum_sms", "SMs that it has at most, where it has a limit", None);
        let maximum = of(|one| Some(one.account.entitlement?.limit()?.into()));
        gauges(encoder, metric, maximum)?;
        let metric = ("partition_target", "The time that a request may take", time.clone());
        gauges(encoder, metric, of(|one| Some(seconds(one.account.target?.target.nanos().0))))?;
        let metric = ("partition_requests", "Requests since the target was set", None);
        counters(encoder, metric, of(|one| Some(as_float(one.account.target?.seen))))?;
        let metric =
            ("partition_requests_missed", "Requests that took longer than the target", None);
        counters(encoder, metric, of(|one| Some(as_float(one.account.target?.missed))))?;
        let metric = ("partition_faults", "Sessions of it that have failed", None);
        counters(encoder, metric, of(|one| Some(as_float(one.account.usage.faults))))
    }
}

/// Prometheus names the unit of a part `ratio`.
fn ratio((name, help, _): Metric) -> Metric {
    (name, help, Some(Unit::Other("ratio".into())))
}

fn histograms<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&'static str, &'static str),
    rows: impl Iterator<Item = (&'a Labels, &'a Histogram)>,
) -> fmt::Result {
    let unit = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Histogram)?;
    for (labels, histogram) in rows {
        let buckets: Vec<(f64, u64)> =
            histogram.ends().map(|(end, count)| (end * NANOS, count)).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = seconds(histogram.sum_ns);
        let mut encoder = family.encode_family(labels)?;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
    }
    Ok(())
}

fn reason_text(reason: ResizeReason) -> &'static str {
    match reason {
        ResizeReason::Membership => "membership",
        ResizeReason::Configuration => "configuration",
        ResizeReason::Interval => "interval",
        ResizeReason::Terms => "terms",
        ResizeReason::Plan => "plan",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{
        ApplicationId, Bytes, Entitlement, LatencyTarget, Nanos, TargetReport, TenantId, Totals,
        Usage,
    };
    use std::collections::BTreeSet;

    const DASHBOARD: &str = include_str!("../../../docs/grafana/partita.json");

    fn page(progress: Option<f64>) -> GpuPage {
        page_with(progress, 16)
    }

    fn page_with(progress: Option<f64>, max: u16) -> GpuPage {
        let mut totals = Totals::default();
        totals.resizes.insert(ResizeReason::Interval, 2);
        totals.faults.insert("CUDA_ERROR_LAUNCH_TIMEOUT".into(), 1);
        totals.launch_wait.count(Nanos(1500));
        let account = ApplicationAccount {
            id: ApplicationId(3),
            name: "secret".into(),
            tag: Some("a \"job\"\n".into()),
            tenant: TenantId(1001),
            sessions: 1,
            sms: 12,
            memory_used_bytes: 4096,
            launches: 7,
            ctas: 70,
            stuck: false,
            entitlement: Some(Entitlement { min: 8, max, ..Entitlement::default() }),
            target: LatencyTarget::of(Nanos(5_000_000)).map(|target| TargetReport {
                target,
                seen: 100,
                missed: 1,
                sms: Some(9),
            }),
            usage: Usage {
                sm_ns: 1_500_000_000,
                progress,
                busy_ns: 2_000_000_000,
                short_ns: 500_000_000,
                lent_ns: 250_000_000,
                ..Usage::default()
            },
        };
        let accounts = AccountsReport {
            time: Nanos(2_000_000_000),
            memory_used_bytes: 4096,
            energy_nj: None,
            decisions: 5,
            applications: vec![account],
            totals,
            jobs: Vec::new(),
        };
        let quota = MemoryQuota { tenant: None, bytes: Bytes(1 << 30).0 };
        GpuPage::new(GpuNumber(0), (None, 0), Some(accounts), &[quota])
    }

    #[test]
    fn a_page_says_what_applications_have() {
        let text = text(vec![page(Some(0.5))], false).unwrap();
        let labels = r#"{gpu="0",uuid="",partition="3",tenant="1001",job="a \"job\"\n"}"#;
        for line in [
            &format!("partita_partition_sms{labels} 12.0"),
            &format!("partita_partition_sm_seconds_total{labels} 1.5"),
            &format!("partita_partition_progress_ratio{labels} 0.5"),
            &format!("partita_partition_busy_seconds_total{labels} 2.0"),
            &format!("partita_partition_short_seconds_total{labels} 0.5"),
            &format!("partita_partition_minimum_lent_seconds_total{labels} 0.25"),
            &format!("partita_partition_minimum_sms{labels} 8.0"),
            &format!("partita_partition_maximum_sms{labels} 16.0"),
            &format!("partita_partition_target_seconds{labels} 0.005"),
            &format!("partita_partition_requests_total{labels} 100.0"),
            &format!("partita_partition_requests_missed_total{labels} 1.0"),
            &format!("partita_memory_used_bytes{labels} 4096.0"),
            &format!("partita_memory_limit_bytes{labels} 1073741824.0"),
            r#"partita_system_throughput_ratio{gpu="0",uuid=""} 0.5"#,
            r#"partita_normalized_turnaround_ratio{gpu="0",uuid=""} 2.0"#,
            r#"partita_resizes_total{gpu="0",uuid="",reason="interval"} 2.0"#,
            r#"partita_client_faults_total{gpu="0",uuid="",kind="CUDA_ERROR_LAUNCH_TIMEOUT"} 1.0"#,
            r#"partita_launch_wait_seconds_count{gpu="0",uuid=""} 1"#,
            r#"partita_gpu_up{gpu="0",uuid=""} 1.0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("secret"));
        let unknown = super::text(vec![page(None)], true).unwrap();
        assert!(!unknown.contains("throughput_ratio{") && unknown.ends_with("# EOF\n"));
        let unlimited = super::text(vec![page_with(None, u16::MAX)], false).unwrap();
        assert!(!unlimited.contains("maximum_sms{"), "{unlimited}");
    }

    #[test]
    fn the_dashboard_asks_for_what_is_exported() {
        let text = text(vec![page(Some(0.5))], false).unwrap();
        let mut exported = BTreeSet::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            let parts: &[&str] = if kind == "histogram" { &["_bucket", "_sum"] } else { &[""] };
            exported.extend(parts.iter().map(|part| format!("{name}{part}")));
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = DASHBOARD.split(|c| !is_part(c));
        let asked: BTreeSet<&str> = words.filter(|word| word.starts_with("partita_")).collect();
        assert!(asked.len() > 10);
        for name in asked {
            assert!(exported.contains(name), "{name} is not among {exported:#?}");
        }
    }
}

//! `partita status`: the daemon's status report as text.

use crate::failure::Failure;
use crate::names;
use crate::table::{Table, bytes, nanos, printable};
use crate::terms;
use crate::view::View;
use clap::Args;
use partita_model::{
    ApplicationId, Class, DeviceKind, GpuStatus, HostTime, OtherUsers, Sharing, SmSet,
    StatusReport, Timekeeping,
};
use std::collections::BTreeMap;
use std::fmt::Write;

const EXAMPLES: &str = "\
Examples:
  partita status
      show the GPU, the applications on it, their SMs, and the forms of their kernels
  partita status --gpu 1
      show GPU 1 only, where the daemon serves several
  partita status --watch 0.5
      the same again every half second
  partita status --json | jq '.partitions'
      the same as JSON, as GET /v1/status returns it";

/// Show the GPU, the applications on it, and the SMs of each.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    #[command(flatten)]
    view: View,
}

impl StatusArgs {
    /// Asks and shows.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        self.view.run(|| self.once())
    }

    fn once(&self) -> Result<Vec<u8>, Failure> {
        match self.view.json {
            true => Ok(self.view.get_line("/v1/status")?),
            false => Ok(render_all(self.view.get("/v1/status")?).into_bytes()),
        }
    }
}

/// One section for each GPU.
fn render_all(mut report: StatusReport) -> String {
    let others = std::mem::take(&mut report.others);
    let version = report.version.clone();
    let mut text =
        if others.is_empty() { String::new() } else { format!("{}\n", report.gpu.number) };
    text.push_str(&render(&report));
    for other in others {
        let GpuStatus { gpu, applications, partitions, policy, other_users } = other;
        let (version, others) = (version.clone(), Vec::new());
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{}", gpu.number);
        text.push_str(&render(&StatusReport {
            version,
            gpu,
            applications,
            partitions,
            policy,
            other_users,
            others,
        }));
    }
    text
}

fn render(report: &StatusReport) -> String {
    let mut text = String::new();
    for (name, value) in head(report) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<12} {value}");
    }
    let mut applications = applications(report);
    if applications.is_empty() {
        let of_yours = if report.other_users.is_some() { " of yours" } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "\nNo application{of_yours} is connected. Start one with: partita run PROGRAM"
        );
    } else {
        let _ = write!(text, "\n{}", applications.render());
    }
    let mut kernels = kernels(report);
    if !kernels.is_empty() {
        let _ = write!(text, "\n{}", kernels.render());
    }
    for application in &report.applications {
        if let Some(time) = application.stuck_ns {
            let (id, time) = (application.id, nanos(time));
            let _ = writeln!(text, "\n{id} has made no progress for {time}: see `partita why`");
        }
        if let Some(time) = application.lent_ns.filter(|time| *time > 0) {
            let (id, time) = (application.id, nanos(time));
            let _ = writeln!(text, "\n{id} has lent SMs of its minimum for {time}");
        }
        if application.copies_waiting > 0 {
            let (id, copies) = (application.id, application.copies_waiting);
            let _ = writeln!(text, "\n{id}: copies that wait for their turn: {copies}");
        }
    }
    text
}

/// The lines about the GPU, the daemon and the policy: names and values.
fn head(report: &StatusReport) -> Vec<(&'static str, String)> {
    let gpu = &report.gpu;
    let kind = match gpu.kind {
        DeviceKind::Emulated => "emulated, ",
        DeviceKind::Cuda => "",
    };
    let (name, capability, sms) = (printable(&gpu.name), gpu.compute_capability, gpu.sms);
    let memory = format!("{} of {} in use", bytes(gpu.memory_used_bytes), bytes(gpu.memory_bytes));
    let time = match gpu.timekeeping {
        Timekeeping::Real | Timekeeping::Simulated => nanos(gpu.device_time_ns),
        Timekeeping::Off => "not kept (timing=off): times only rise".into(),
    };
    let mut lines = vec![
        ("GPU", format!("{name} ({kind}compute capability {capability}, {sms} SMs)")),
        ("memory", memory),
        ("device time", time),
    ];
    if let Some(HostTime { call, patience_ms, .. }) = gpu.host_time {
        let late = match gpu.patience_exceeded {
            0 => "never exceeded".into(),
            times => format!("exceeded {times} times: results depend on the host"),
        };
        let call = nanos(call.0);
        lines.push((
            "host time",
            format!("{call} from call to call; patience {patience_ms} ms, {late}"),
        ));
    }
    if gpu.stray_accesses > 0 {
        let stray = gpu.stray_accesses;
        lines.push((
            "memory checks",
            format!("{stray} accesses past an allocation, in mapped pages"),
        ));
    }
    lines.extend(gpu.limits.iter().map(|limit| ("limit", printable(limit))));
    let process = match gpu.pid {
        0 => "not running".into(),
        pid => format!("pid {pid}"),
    };
    let restarts = gpu.restarts;
    lines.push(("data plane", format!("partita-gpu, {process}, restarted {restarts} times")));
    if let Some(reason) = &gpu.last_restart {
        lines.push(("last restart", printable(reason)));
    }
    if let Some(users) = &report.other_users {
        let OtherUsers { applications, sessions, sms, memory_used_bytes, .. } = users;
        let memory = bytes(*memory_used_bytes);
        let text = format!(
            "{applications} applications, {sessions} sessions, {sms} SMs, {memory}; only root and \
             the daemon's user see more"
        );
        lines.push(("other users", text));
    }
    lines.push(("daemon", format!("partitad {}", printable(&report.version))));
    lines.push(match report.policy.sharing {
        Sharing::Spatial => ("policy", policy(report)),
        Sharing::TimeSlice => {
            ("sharing", "time slices: the hardware serves one context after the other".into())
        }
        Sharing::Mps => {
            ("sharing", "as under MPS: the hardware's block scheduler serves all contexts".into())
        }
    });
    lines
}

fn applications(report: &StatusReport) -> Table {
    let partitions: BTreeMap<ApplicationId, String> = report
        .partitions
        .iter()
        .map(|partition| {
            let part = partition.part.map(|part| format!("{part} of ")).unwrap_or_default();
            let pinned = if partition.pinned { " (pinned)" } else { "" };
            (partition.application, format!("{part}{}{pinned}", partition.sms))
        })
        .collect();
    let mut table = Table::new(&[
        "APP", "PROGRAM", "UID", "SESSIONS", "PIDS", "SMS", "CLASS", "MEMORY", "LAUNCHES", "CTAS",
    ]);
    for application in &report.applications {
        let sessions: Vec<String> =
            application.sessions.iter().map(|id| id.0.to_string()).collect();
        let pids: Vec<String> = application.pids.iter().map(|pid| process(*pid)).collect();
        let terms = terms::of_application(application);
        let terms = terms.map(|terms| format!(" [{terms}]")).unwrap_or_default();
        table.row([
            application.id.0.to_string(),
            application.name.clone(),
            application.tenant.0.to_string(),
            sessions.join(","),
            pids.join(","),
            format!("{}{terms}", partitions.get(&application.id).map_or("none", String::as_str)),
            class(application.class).into(),
            bytes(application.memory_used_bytes),
            application.launches_completed.to_string(),
            application.ctas_completed.to_string(),
        ]);
    }
    table
}

/// A process by its number, which those of a PID namespace that the daemon does not see lack.
fn process(pid: u32) -> String {
    if pid == 0 { "?".into() } else { pid.to_string() }
}

fn kernels(report: &StatusReport) -> Table {
    let mut table = Table::new(&["APP", "KERNEL", "LAUNCHES", "FORM", "WHY NOT A WORKER"]);
    for application in &report.applications {
        for kernel in &application.kernels {
            let mut form = kernel.form.clone();
            if kernel.as_written > 0 {
                form = format!("{form}, {} as written", kernel.as_written);
            }
            if kernel.slices > 0 {
                form = format!("{form}, {} slices", kernel.slices);
            }
            if kernel.unfenced.is_some() {
                form.push_str(", unfenced");
            }
            let reasons: Vec<String> =
                kernel.reason.iter().chain(&kernel.unfenced).cloned().collect();
            table.row([
                application.id.0.to_string(),
                names::kernel(&kernel.name),
                kernel.launches.to_string(),
                form,
                reasons.join("; unfenced: "),
            ]);
        }
    }
    table
}

fn policy(report: &StatusReport) -> String {
    let policy = &report.policy;
    let mut text = printable(&policy.partitioner);
    if !policy.stage.is_empty() && policy.stage != policy.partitioner {
        text = format!("{text} ({})", printable(&policy.stage));
    }
    for (what, sms) in [("stalled", policy.stalled), ("gated", policy.gated)] {
        if sms != SmSet::EMPTY {
            text = format!("{text}, {what}: {sms}");
        }
    }
    text
}

/// A class in a column.
pub fn class(class: Option<Class>) -> &'static str {
    match class {
        Some(Class::Compute) => "compute",
        Some(Class::Memory) => "memory",
        Some(Class::Unknown) | None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"{"version": "0.1.0",
        "gpu": {"name": "emu 24", "kind": "emulated", "timekeeping": "simulated",
        "compute_capability": {"major": 9, "minor": 0}, "sms": 24,
            "memory_bytes": 4294967296, "memory_used_bytes": 1048576, "device_time_ns": 1500000,
            "energy_nj": null, "pid": 7,
            "restarts": 0},
        "applications": [{"id": 1, "name": "poly", "tenant": 1000, "sessions": [3], "pids": [42],
            "memory_used_bytes": 1048576, "class": "memory", "launches_completed": 2,
            "ctas_completed": 512,
            "kernels": [{"name": "_Z4polyPf", "form": "worker", "reason": null, "launches": 3}]}],
        "partitions": [{"application": 1, "sms": "0-11", "pinned": true}],
        "policy": {"selector": "everyone", "partitioner": "cd-search", "stage": "watch",
        "stalled": "none", "gated": "20-23",
            "why": [], "decisions": []}}"#;

    #[test]
    fn a_report_as_text() {
        let mut report: StatusReport = serde_json::from_str(REPORT).unwrap();
        let expected = "\
GPU          emu 24 (emulated, compute capability 9.0, 24 SMs)
memory       1.0 MiB of 4.0 GiB in use
device time  1.5 ms
data plane   partita-gpu, pid 7, restarted 0 times
daemon       partitad 0.1.0
policy       cd-search (watch), gated: 20-23

APP  PROGRAM  UID   SESSIONS  PIDS  SMS            CLASS   MEMORY   LAUNCHES  CTAS
1    poly     1000  3         42    0-11 (pinned)  memory  1.0 MiB  2         512

APP  KERNEL     LAUNCHES  FORM    WHY NOT A WORKER
1    _Z4polyPf  3         worker
";
        assert_eq!(render(&report), expected);
        let mut other = GpuStatus::from(report.clone());
        other.gpu.number = partita_model::GpuNumber(1);
        let two = StatusReport { others: vec![other], ..report.clone() };
        assert_eq!(render_all(report.clone()), expected);
        assert_eq!(render_all(two), format!("GPU 0\n{expected}\nGPU 1\n{expected}"));
        report.gpu.limits = vec!["streams hold up others".into()];
        assert!(render(&report).contains("\nlimit        streams hold up others\n"));
        report.gpu.timekeeping = Timekeeping::Off;
        assert!(render(&report).contains("\ndevice time  not kept (timing=off)"));
        report.applications[0].stuck_ns = Some(2_000_000);
        let stuck = "\n\napplication 1 has made no progress for 2.0 ms: see `partita why`\n";
        assert!(render(&report).ends_with(stuck), "{}", render(&report));
        report.applications[0].lent_ns = Some(2_500_000_000);
        let lent = "\napplication 1 has lent SMs of its minimum for 2.5 s\n";
        assert!(render(&report).contains(lent), "{}", render(&report));
        report.applications[0].copies_waiting = 3;
        let copies = "\napplication 1: copies that wait for their turn: 3\n";
        assert!(render(&report).ends_with(copies), "{}", render(&report));
        report.gpu.last_restart = Some("partita-gpu ended (signal: 9)".into());
        report.other_users = Some(OtherUsers { applications: 2, sms: 12, ..OtherUsers::default() });
        let lines = "\nlast restart partita-gpu ended (signal: 9)\nother users  2 applications, 0 \
                     sessions, 12 SMs, 0 B; only root and the daemon's user see more\n";
        assert!(render(&report).contains(lines), "{}", render(&report));
        report.applications.clear();
        let text = render(&report);
        assert!(text.contains("\nNo application of yours is connected."), "{text}");
        report.other_users = None;
        report.gpu.pid = 0;
        assert!(render(&report).contains("partita-gpu, not running, restarted"));
        assert!(
            render(&report).ends_with(
                "\n\nNo application is connected. Start one with: partita run PROGRAM\n"
            )
        );
    }
}

//! A real Prometheus reads the metrics of a real daemon.

use super::{DEVICE, Daemon};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const DASHBOARD: &str = include_str!("../../../../docs/grafana/partita.json");
const PATIENCE: Duration = Duration::from_secs(120);

/// Asks a server on this machine; nothing where nobody listens.
fn get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    Some((head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned()))
}

/// A Prometheus that reads one target; `None` where it is not installed.
struct Prometheus {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(target: &str) -> Option<Prometheus> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("prometheus.yml");
        let config = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: partita\n  \
             honor_labels: true\n  static_configs:\n  - targets: ['{target}']\n"
        );
        std::fs::write(&file, config).unwrap();
        // A free port that the next process takes.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Prometheus { child, address, _folder: folder }),
            Err(error) => {
                eprintln!("SKIPPED: no Prometheus ({error}); tests/setup.sh installs it");
                None
            }
        }
    }

    /// The series of an expression.
    fn series(&self, expression: &str) -> Option<Vec<Value>> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let (status, body) = get(&self.address, &format!("/api/v1/query?query={encoded}"))?;
        assert_eq!(status, 200, "{expression}: {body}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        Some(answer["data"]["result"].as_array().unwrap().clone())
    }

    fn wait_for(&self, expression: &str, enough: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let start = Instant::now();
        loop {
            let found = self.series(expression);
            if let Some(found) = found.as_ref().filter(|found| enough(found)) {
                return found.clone();
            }
            assert!(start.elapsed() < PATIENCE, "waited in vain for {expression}: {found:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A daemon with `--metrics-listen`, and its address.
fn daemon() -> (Daemon, String) {
    let more = ["--policy", "even", "--metrics-listen", "127.0.0.1:0"];
    let daemon = Daemon::serving(DEVICE, &[], &more);
    let log = daemon.log();
    let address = log.split("metrics are at http://").nth(1).unwrap();
    (daemon, address.split("/metrics").next().unwrap().to_owned())
}

#[test]
fn prometheus_reads_what_the_daemon_says() {
    let (daemon, address) = daemon();
    let Some(prometheus) = Prometheus::start(&address) else { return };
    let (first, second) = (daemon.connect(), daemon.connect());
    let spins = [(&first, first.spin(100, 50)), (&second, second.spin(33, 70))];
    for (client, spinning) in &spins {
        client.check(spinning);
    }
    let all =
        |found: &[Value]| found.len() == 2 && found.iter().all(|series| series["value"][1] == "1");
    let series = prometheus.wait_for("partita_partition_launches_total", all);
    let uid = rustix::process::geteuid().as_raw().to_string();
    let status = daemon.status();
    for (series, application) in series.iter().zip(&status.applications) {
        let labels = &series["metric"];
        assert_eq!(labels["partition"], application.id.0.to_string());
        assert_eq!((&labels["gpu"], &labels["tenant"]), (&"0".into(), &uid.as_str().into()));
        assert!(labels.get("pid").is_none());
    }
    let one = |found: &[Value], value: &str| found.len() == 1 && found[0]["value"][1] == value;
    prometheus.wait_for("partita_gpu_sms", |found| one(found, "24"));
    prometheus.wait_for("partita_launch_duration_seconds_count", |found| one(found, "2"));
    prometheus.wait_for("sum(partita_partition_ctas_total)", |found| one(found, "133"));
    prometheus.wait_for("up", |found| one(found, "1"));
    // Every query of the dashboard is one.
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let query = query.replace("$gpu", ".*").replace("$__rate_interval", "1m");
            prometheus.series(&query).unwrap();
            queries += 1;
        }
    }
    assert!(queries > 10);
}

#[test]
fn the_address_for_metrics_serves_nothing_else() {
    let (daemon, address) = daemon();
    assert_eq!(get(&address, "/-/ready").unwrap(), (200, "ready\n".into()));
    assert_eq!(get(&address, "/v1/status").unwrap().0, 404);
    let (status, page) = get(&address, "/metrics").unwrap();
    assert!(status == 200 && page.contains("partita_gpu_up"), "{page}");
    drop(daemon);
    assert!(get(&address, "/metrics").is_none());
}

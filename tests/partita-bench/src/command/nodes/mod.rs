//! `partita bench nodes`: what a cluster of many nodes asks of the API, measured on one daemon.
//!
//! A private daemon serves an emulated GPU that does not execute kernels to many applications.
//! [`load`] plays the share of one node in the cluster's load: a metrics scraper, central
//! schedulers that poll, readers of events, and reservations. [`rates`] raises the rate of
//! reservations until they are late. [`cursor`] has readers of events come again with their cursor.
//! The sums for the cluster are the daemon's figures times the number of nodes.
//!
//! Every request has a time at which it is due, and its latency counts from there: a daemon that is
//! late is not asked less.

mod cursor;
mod load;
mod rates;

use crate::api::{Api, ApiBenchError, daemon_of, io, push, raise_descriptor_limit};
use crate::wire::{Client, Config, DEVICE, WireError};
use clap::Args;
use partita_cli::failure::Failure;
use partita_cli::report::{Metric, Report};
use partita_cli::run::child::{ChildDaemon, Parts};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  partita bench nodes
      256 applications on one daemon, and the sums of a cluster of 1,000 such nodes
  partita bench nodes --nodes 200 --applications 16 --scrape-seconds 30
      the same for a smaller cluster
  partita bench nodes --quick --json
      measure less, and print JSON

No other program should run: it slows requests.";

/// CTAs of a launch.
const CTAS: u32 = 1000;

/// Measure what a cluster of many nodes asks of the API.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct NodesArgs {
    /// The number of applications of the daemon.
    #[arg(long, value_name = "N", default_value_t = 256,
        value_parser = clap::value_parser!(u16).range(1..=2048))]
    applications: u16,

    /// The number of nodes of the cluster, for the sums.
    #[arg(long, value_name = "N", default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,

    /// The time between two scrapes of a node, for the sums.
    #[arg(long, value_name = "SECONDS", default_value_t = 15,
        value_parser = clap::value_parser!(u32).range(1..))]
    scrape_seconds: u32,

    /// The number of readers of events of the daemon.
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=512))]
    readers: u16,

    /// The bound of the 99th percentile for reservations, which ends the search for their rate.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..))]
    bound: u32,

    /// Measure only how many reservations a second are made in time, without applications.
    #[arg(long)]
    reservations: bool,

    /// Measure less: whether everything works, within a minute.
    #[arg(long)]
    quick: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl NodesArgs {
    /// Measures.
    pub fn report(&self) -> Result<Report, Failure> {
        raise_descriptor_limit();
        let parts = Parts::find(DEVICE.to_owned())?;
        let config = Config::new("even")?;
        let daemon = ChildDaemon::start(&parts, &config.arguments())?;
        let folder = daemon.folder();
        let api = Api(folder.join("api.sock"));
        let mut metrics = Vec::new();
        let device = format!("{DEVICE}, host time");
        if self.reservations {
            self.rates(&api, &mut metrics)?;
            return Ok(Report { bench: "nodes".into(), device, seed: 0, metrics });
        }
        let clients: Vec<Client> =
            (0..self.applications).map(|_| Client::connect(folder)).collect::<Result<_, _>>()?;
        for client in &clients {
            client.launch(CTAS).map_err(WireError::from)?;
            client.session.synchronize(None).map_err(WireError::from)?;
        }
        self.answers(&api, &mut metrics)?;
        load::measure(&self.load(), &api, folder, clients, &mut metrics)?;
        self.rates(&api, &mut metrics)?;
        cursor::measure(&api, folder, if self.quick { 5 } else { 100 }, &mut metrics)?;
        Ok(Report { bench: "nodes".into(), device, seed: 0, metrics })
    }

    fn rates(&self, api: &Api, metrics: &mut Vec<Metric>) -> Result<(), ApiBenchError> {
        let steps = if self.quick { 1 } else { 12 };
        let bound = Duration::from_millis(self.bound.into());
        rates::measure(api, self.span() / 8, steps, bound, metrics)
    }

    fn span(&self) -> Duration {
        Duration::from_secs(if self.quick { 2 } else { 30 })
    }

    fn load(&self) -> load::Load {
        load::Load { readers: self.readers, span: self.span() }
    }

    /// Sizes and times of answers while nothing else is asked, and the sums of the cluster.
    fn answers(&self, api: &Api, metrics: &mut Vec<Metric>) -> Result<(), ApiBenchError> {
        let page = api.get("GET /metrics")?;
        let series = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let (of_applications, of_gpus): (Vec<&str>, Vec<&str>) =
            series.partition(|line| line.contains("partition=\""));
        let applications = f64::from(self.applications);
        let total = (of_applications.len() + of_gpus.len()) as f64;
        let each = of_applications.len() as f64 / applications;
        metrics.push(Metric::plain("applications", applications, ""));
        metrics.push(Metric::plain("series of the daemon and its GPU", of_gpus.len() as f64, ""));
        metrics.push(Metric::plain("series of each application", each, ""));
        metrics.push(Metric::plain("series of the node", total, ""));
        let count = if self.quick { 20 } else { 300 };
        for path in ["/metrics", "/v1/status", "/v1/partitions", "/v1/applications"] {
            let request = format!("GET {path}");
            let bytes = api.get(&request)?.len() as f64;
            metrics.push(Metric::plain(format!("{path}: size"), bytes / 1024.0, "KiB"));
            push(metrics, &format!("{path}, nothing else"), &api.times(&request, count)?, None);
        }
        let nodes = f64::from(self.nodes);
        let name = format!("series of {} nodes", self.nodes);
        metrics.push(Metric::plain(name, nodes * total, ""));
        let scrapes = nodes / f64::from(self.scrape_seconds);
        let sum = |what: &str| format!("{what} of {} nodes", self.nodes);
        metrics.push(Metric::plain(sum("scrapes"), scrapes, "/s"));
        metrics.push(Metric::plain(sum("samples"), scrapes * total, "/s"));
        let bytes = scrapes * page.len() as f64 / f64::from(1 << 20);
        metrics.push(Metric::plain(sum("pages"), bytes, "MiB/s"));
        Ok(())
    }
}

/// CPU time of a process so far, over all its threads.
fn cpu_time(pid: u32) -> Result<Duration, ApiBenchError> {
    let file = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&file).map_err(io(&file))?;
    // proc(5): the name in brackets may hold spaces; utime and stime are fields 14 and 15.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

//! `partita predict`: what launches would take on a number of SMs, alone and beside other
//! applications.
//!
//! The command asks and prints. The daemon's models answer; nothing changes.

use crate::api::{OfGpu, Target};
use crate::failure::Failure;
use crate::names;
use crate::table::Table;
use clap::Args;
use partita_model::{
    AdviceReport, AdviceRequest, Forecast, ForecastMember, ForecastReport, ForecastRequest,
    PairsReport,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

const EXAMPLES: &str = "\
Examples:
  partita predict
      predict all applications on the SMs that they have
  partita predict 1=12 triad=12
      predict application 1 and the program triad side by side with 12 SMs each
  partita predict 1:eliminate=6
      predict one kernel of an application alone with 6 SMs
  partita predict --pairs
      list pairs of applications by what they do side by side, the best first
  partita predict 1 --target 500us
      find the fewest SMs with which a launch takes no longer than 500 us
  partita predict 1 --target 500us --beside
      the same while all other applications go on, and what is left of their speeds
  partita predict 1=12 2=12 --json | jq '.forecasts[] | {program, speed, reason}'
      the answer of the API

A kernel has a forecast once it was counted and timed alone: run its program under any policy but
`even` and `static`, alone for a while and beside another program for two launches.";

/// Predict what launches take on part of the SMs, alone and beside others, and why.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PredictArgs {
    /// Applications that run together, by id or program's name, with the SMs of each, e.g. `1=12`;
    /// `1:KERNEL=12` names a kernel. Without a kernel, the one that takes the most time counts.
    #[arg(value_name = "APP[:KERNEL]=SMS", conflicts_with = "pairs", value_parser = parse)]
    members: Vec<Named>,

    /// List pairs of applications, the best first.
    #[arg(long, conflicts_with = "target_time")]
    pairs: bool,

    /// Find the fewest SMs with which a launch of one application takes no longer, e.g. 500us.
    #[arg(long = "target", value_name = "TIME", value_parser = parse_time)]
    target_time: Option<f64>,

    /// With --target: all other applications go on, on equal parts of the other SMs.
    #[arg(long = "beside", requires = "target_time")]
    beside_others: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    gpu: OfGpu,

    #[command(flatten)]
    target: Target,
}

/// An application, a kernel of it, and SMs.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Named {
    application: String,
    kernel: Option<String>,
    sms: Option<u16>,
}

impl PredictArgs {
    /// Asks, and prints the answer.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        if let Some(target_ns) = self.target_time {
            let [Named { application, kernel, sms: None }] = &self.members[..] else {
                return usage(
                    "--target takes one application without SMs, as in `1 --target 500us`",
                );
            };
            let (application, kernel) = (application.clone(), kernel.clone());
            let beside_others = self.beside_others;
            let request = AdviceRequest { application, kernel, target_ns, beside_others };
            let answer: AdviceReport = self.post("/v1/advice", &request)?;
            return self.shown(&answer, &advice(&answer, target_ns));
        }
        if self.pairs {
            let answer: PairsReport = self.target.get(&self.gpu.path("/v1/advice"))?;
            return self.shown(&answer, &pairs(&answer));
        }
        let answer: ForecastReport = if self.members.is_empty() {
            self.target.get(&self.gpu.path("/v1/predict"))?
        } else {
            let member = |named: &Named| {
                let (application, kernel) = (named.application.clone(), named.kernel.clone());
                named.sms.map(|sms| ForecastMember { application, kernel, sms })
            };
            let Some(members) = self.members.iter().map(member).collect() else {
                return usage("each application needs its SMs, as in `1=12`; --target finds them");
            };
            self.post("/v1/predict", &ForecastRequest { members })?
        };
        self.shown(&answer, &forecasts(&answer))
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        Ok(self.target.post(&self.gpu.path(path), &serde_json::to_value(body)?)?)
    }

    fn shown(&self, answer: &impl Serialize, text: &str) -> Result<Vec<u8>, Failure> {
        let text = if self.json { serde_json::to_string(answer)? + "\n" } else { text.to_owned() };
        Ok(text.into_bytes())
    }
}

fn usage(text: &str) -> Result<Vec<u8>, Failure> {
    Err(Failure::new(text.to_owned()).with_code(2))
}

/// `APP`, `APP=SMS`, `APP:KERNEL` or `APP:KERNEL=SMS`.
fn parse(text: &str) -> Result<Named, String> {
    let (name, sms) = match text.rsplit_once('=') {
        None => (text, None),
        Some((name, sms)) => {
            let count: Option<u16> = sms.parse().ok().filter(|count| *count > 0);
            let wrong = || format!("`{sms}` is not a number of SMs; write e.g. {name}=12");
            (name, Some(count.ok_or_else(wrong)?))
        }
    };
    let (application, kernel) = match name.split_once(':') {
        None => (name, None),
        Some((application, kernel)) => (application, Some(kernel.to_owned())),
    };
    if application.is_empty() || kernel.as_ref().is_some_and(String::is_empty) {
        return Err("expected APP=SMS or APP:KERNEL=SMS, e.g. 1=12".to_owned());
    }
    Ok(Named { application: application.to_owned(), kernel, sms })
}

/// A time with its unit, in nanoseconds.
fn parse_time(text: &str) -> Result<f64, String> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let nanos = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err("expected a time with its unit: ns, us, ms or s, e.g. 500us".to_owned()),
    };
    let number: Option<f64> = number.parse().ok();
    let number = number.filter(|number| number.is_finite() && *number > 0.0);
    number.map(|number| number * nanos).ok_or_else(|| "expected a time above 0".to_owned())
}

fn forecasts(report: &ForecastReport) -> String {
    let heading =
        ["APP", "PROGRAM", "KERNEL", "SMS", "ALL SMS", "ALONE", "BESIDE", "BOUNDS", "SPEED"];
    let mut table = Table::new(&heading);
    for found in &report.forecasts {
        table.row(vec![
            found.application.0.to_string(),
            found.program.clone(),
            names::kernel(&found.kernel),
            found.sms.to_string(),
            time(found.whole_ns),
            time(found.alone_ns),
            time(found.likely_ns),
            format!("{} to {}", time(found.lower_ns), time(found.upper_ns)),
            format!("{:.0} %", 100.0 * found.speed),
        ]);
    }
    let mut text = if report.forecasts.is_empty() { String::new() } else { table.render() + "\n" };
    for found in &report.forecasts {
        text.push_str(&sentence(found));
    }
    if report.forecasts.is_empty() && report.left_out.is_empty() {
        text.push_str("No application is connected.\n");
    }
    text + &left_out(&report.left_out)
}

fn sentence(found: &Forecast) -> String {
    format!("application {} ({}): {}\n", found.application.0, found.program, found.reason)
}

fn left_out(reasons: &[String]) -> String {
    reasons.iter().map(|reason| format!("left out: {reason}\n")).collect()
}

fn pairs(report: &PairsReport) -> String {
    let mut table = Table::new(&["APPS", "PROGRAMS", "SMS", "SPEEDS", "THROUGHPUT"]);
    for pair in &report.pairs {
        let [one, other] = pair.applications;
        table.row(vec![
            format!("{}+{}", one.0, other.0),
            pair.programs.join("+"),
            format!("{}+{}", pair.sms[0], pair.sms[1]),
            format!("{:.0} %, {:.0} %", 100.0 * pair.speeds[0], 100.0 * pair.speeds[1]),
            format!("{:.2}", pair.throughput),
        ]);
    }
    let text = if report.pairs.is_empty() {
        "No two applications have forecasts.\n".to_owned()
    } else {
        table.render()
    };
    text + &left_out(&report.left_out)
}

fn advice(report: &AdviceReport, target_ns: f64) -> String {
    let found = &report.forecast;
    let count = found.sms;
    let verdict = match (report.met, report.is_certain) {
        (true, true) => format!("{count} SMs are enough for {}", time(target_ns)),
        (true, false) => format!("{count} SMs are likely enough for {}", time(target_ns)),
        (false, _) if report.others.is_empty() => {
            format!("all {count} SMs are not enough for {}", time(target_ns))
        }
        (false, _) => format!(
            "{count} SMs, all but one for each other application, are not enough for {}",
            time(target_ns)
        ),
    };
    let bounds = format!("{} to {}", time(found.lower_ns), time(found.upper_ns));
    let name = names::kernel(&found.kernel);
    let kernel = format!("{name} takes {} ({bounds})", time(found.likely_ns));
    let mut text = format!("{verdict}: {kernel}.\n{}", sentence(found));
    for other in &report.others {
        let Forecast { application, program, sms, speed, .. } = other;
        let kept = format!("keeps {:.0} % of its speed on {sms} SMs", 100.0 * speed);
        text.push_str(&format!("application {} ({program}) {kept}\n", application.0));
    }
    text + &left_out(&report.left_out)
}

fn time(nanos: f64) -> String {
    match nanos {
        nanos if nanos < 1e3 => format!("{nanos:.0} ns"),
        nanos if nanos < 1e6 => format!("{:.1} us", nanos / 1e3),
        nanos if nanos < 1e9 => format!("{:.2} ms", nanos / 1e6),
        nanos => format!("{:.2} s", nanos / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_applications_kernels_and_sms() {
        let named = |application: &str, kernel: Option<&str>, sms| {
            let kernel = kernel.map(str::to_owned);
            Ok(Named { application: application.to_owned(), kernel, sms })
        };
        assert_eq!(parse("1=12"), named("1", None, Some(12)));
        assert_eq!(parse("triad:copy=3"), named("triad", Some("copy"), Some(3)));
        assert_eq!(parse("1"), named("1", None, None));
        let refused = "`0` is not a number of SMs; write e.g. 1=12";
        assert_eq!(parse("1=0"), Err(refused.to_owned()));
        for bad in ["=3", "1:=3", "1=many", "1=70000"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_units() {
        let near = |text: &str, wanted: f64| {
            assert!((parse_time(text).unwrap() / wanted - 1.0).abs() < 1e-9, "{text}");
        };
        near("500us", 5e5);
        near("1.5ms", 1.5e6);
        near("2s", 2e9);
        near("10ns", 10.0);
        for bad in ["500", "us", "0us", "-1ms", "1h", ""] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
        assert_eq!(time(512_345.0), "512.3 us");
    }
}

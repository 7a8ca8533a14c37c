//! The summary of the measurements at the end.

use super::Way;
use super::track::{ResizeLatencies, antt, float, stp};
use crate::report::{Metric, Report};
use crate::status::class;
use crate::table::{Table, nanos, printable};
use partita_model::Class;

/// The figures of one way of sharing.
pub struct Outcome {
    pub way: Way,
    /// Speed of each program ÷ its speed alone.
    pub relative: Vec<f64>,
    /// The same during the policy's search, where the search took long enough to measure.
    pub searching: Option<Vec<f64>>,
    /// The length of the search, in nanoseconds of device time.
    pub search_nanos: Option<u64>,
    /// Mean power after the search, where the device counts energy.
    pub watts: Option<f64>,
    /// SMs of each program at the end.
    pub sms: Vec<u16>,
    pub classes: Vec<Option<Class>>,
    /// SMs that stay empty to save power.
    pub gated: u16,
    pub why: Vec<String>,
    pub resizes: ResizeLatencies,
}

/// All of them.
pub struct Summary {
    pub device: String,
    pub names: Vec<(char, &'static str)>,
    pub outcomes: Vec<Outcome>,
}

impl Summary {
    fn of(&self, way: Way) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| outcome.way == way)
    }

    /// The summary as text.
    pub fn text(&self) -> String {
        let mut heading = vec!["SHARING".to_owned(), "STP".into(), "ANTT".into(), "POWER".into()];
        heading.extend(self.names.iter().map(|(letter, name)| format!("{letter} {name}")));
        let mut table = Table::new(&heading.iter().map(String::as_str).collect::<Vec<_>>());
        for outcome in &self.outcomes {
            let programs = outcome.relative.iter().zip(&outcome.sms);
            let cells = programs.map(|(relative, sms)| match sms {
                0 => format!("{:.1} %", relative * 100.0),
                sms => format!("{:.1} % with {sms} SMs", relative * 100.0),
            });
            let name = outcome.way.name().to_owned();
            let power =
                outcome.watts.map_or_else(|| "unknown".to_owned(), |watts| format!("{watts:.1} W"));
            let figures = [
                name,
                format!("{:.3}", stp(&outcome.relative)),
                format!("{:.3}", antt(&outcome.relative)),
                power,
            ];
            table.row(figures.into_iter().chain(cells));
        }
        let mut text = format!(
            "\n{}: speeds against each program's own kernels alone on all SMs, in device \
             time\n\n{}",
            printable(&self.device),
            table.render()
        );
        text.push('\n');
        let mut line = |name: &str, value: String| text.push_str(&format!("{name:<10} {value}\n"));
        if let (Some(even), Some(search)) = (self.of(Way::Even), self.of(Way::CdSearch)) {
            let gain = (stp(&search.relative) / stp(&even.relative) - 1.0) * 100.0;
            line("gain", format!("CD-search has {gain:+.1} % STP against even shares"));
            let classes: Vec<String> = (self.names.iter().zip(&search.classes))
                .map(|((letter, name), found)| format!("{letter} {name}: {}", class(*found)))
                .collect();
            line("classes", classes.join(", "));
            let took = search.search_nanos.map_or_else(|| "none".to_owned(), nanos);
            let during = search
                .searching
                .as_deref()
                .map(|relative| format!(" at an STP of {:.3}", stp(relative)));
            line("search", format!("{took} of device time{}", during.unwrap_or_default()));
            line("resizes", latency_text(&search.resizes));
            if search.gated > 0 {
                line("gated", format!("{} SMs stay empty and without power", search.gated));
            }
            for (index, sentence) in search.why.iter().enumerate() {
                line(if index == 0 { "why" } else { "" }, printable(sentence));
            }
        }
        text
    }

    /// The summary in the form of the benchmarks.
    pub fn report(&self) -> Report {
        let mut metrics = Vec::new();
        for outcome in &self.outcomes {
            let policy = outcome.way.name();
            metrics.push(Metric::plain(format!("{policy}: STP"), stp(&outcome.relative), ""));
            metrics.extend(
                outcome.watts.map(|watts| Metric::plain(format!("{policy}: power"), watts, "W")),
            );
            metrics.push(Metric::plain(format!("{policy}: ANTT"), antt(&outcome.relative), ""));
            for ((letter, name), (relative, sms)) in
                self.names.iter().zip(outcome.relative.iter().zip(&outcome.sms))
            {
                metrics.push(Metric::plain(
                    format!("{policy}: {letter} {name}: speed against alone"),
                    *relative,
                    "",
                ));
                metrics.push(Metric::plain(
                    format!("{policy}: {letter} {name}: SMs"),
                    f64::from(*sms),
                    "SMs",
                ));
            }
        }
        if let Some(search) = self.of(Way::CdSearch) {
            for ((letter, name), found) in self.names.iter().zip(&search.classes) {
                let memory = f64::from(u8::from(*found == Some(Class::Memory)));
                metrics.push(Metric::plain(
                    format!("{letter} {name}: memory-intensive"),
                    memory,
                    "0 or 1",
                ));
            }
            let took = search.search_nanos.map(float);
            metrics.extend(took.map(|took| Metric::plain("search", took, "ns of device time")));
            if let Some(relative) = &search.searching {
                metrics.push(Metric::plain("STP during the search", stp(relative), ""));
            }
            metrics.push(Metric::plain("gated", f64::from(search.gated), "SMs"));
            for (what, times) in [
                ("last worker left", &search.resizes.leave),
                ("first worker came", &search.resizes.come),
            ] {
                if let Some(longest) = times.iter().max() {
                    metrics.push(Metric::plain(
                        format!("resize: {what}, longest"),
                        float(*longest),
                        "ns of device time",
                    ));
                }
            }
        }
        Report { bench: "demo".into(), device: self.device.clone(), seed: 0, metrics }
    }
}

fn latency_text(resizes: &ResizeLatencies) -> String {
    let longest =
        |times: &[u64]| times.iter().max().map_or_else(|| "none".to_owned(), |time| nanos(*time));
    format!(
        "of running kernels: the last worker had left after at most {}, the first had come after \
         at most {}",
        longest(&resizes.leave),
        longest(&resizes.come)
    )
}

//! A trace as an SVG for papers and slides: a row for each SM and each kind of copy, device time
//! from left to right, a colour for each application, and a dashed line for each border that moved.
//!
//! Colours are those of Okabe and Ito, which people with colour blindness tell apart. Where
//! applications share an SM, its row is split between them.

use super::segments::{Segment, segments, time_of};
use crate::table::nanos;
use partita_model::{
    ApplicationId, CopyKind, GpuStatus, SmId, TraceEntry, TraceReport, TracedCopy,
};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Okabe and Ito's colours without black, in the order of ids.
const COLOURS: [&str; 7] =
    ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"];
/// Of the picture, in pixels.
const WIDTH: f64 = 960.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const ROW: f64 = 14.0;
const TICKS: u64 = 8;

/// The stretch of device time to draw, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Its beginning.
    pub from: u64,
    /// Its end.
    pub to: u64,
}

/// The file's contents; `None` where the trace has nothing in the span.
pub fn render(
    trace: &TraceReport,
    status: &GpuStatus,
    from: Option<u64>,
    to: Option<u64>,
) -> Option<Vec<u8>> {
    let first = trace.entries.first().map(time_of)?;
    let last = trace.entries.last().map(time_of)?;
    let span = Span { from: from.unwrap_or(first), to: to.unwrap_or(last) };
    let segments: Vec<Segment> = segments(&trace.entries)
        .into_iter()
        .filter(|segment| segment.start < span.to && segment.end > span.from)
        .collect();
    let lowest = segments.iter().map(|segment| segment.sm).min()?;
    let highest = segments.iter().map(|segment| segment.sm).max()?;
    let is_inside = |copy: &&TracedCopy| copy.start.0 < span.to && copy.end.0 > span.from;
    let copies: Vec<&TracedCopy> = trace.copies.iter().filter(is_inside).collect();
    let applications: Vec<ApplicationId> = {
        let of = segments.iter().flat_map(|segment| segment.applications.iter().copied());
        let of = of.chain(copies.iter().map(|copy| copy.application));
        of.collect::<BTreeSet<_>>().into_iter().collect()
    };
    let kinds: BTreeSet<CopyKind> = copies.iter().map(|copy| copy.kind).collect();
    let kinds = kinds.into_iter().collect();
    let picture = Picture { span, lowest, highest, kinds, applications };
    Some(picture.draw(trace, status, &segments, &copies).into_bytes())
}

struct Picture {
    span: Span,
    lowest: SmId,
    highest: SmId,
    /// The kinds of copies, which have rows below the SMs.
    kinds: Vec<CopyKind>,
    applications: Vec<ApplicationId>,
}

impl Picture {
    #[expect(clippy::cast_precision_loss, reason = "pixels of a picture")]
    fn x(&self, time: u64) -> f64 {
        let time = time.clamp(self.span.from, self.span.to) - self.span.from;
        let whole = (self.span.to - self.span.from).max(1);
        LEFT + time as f64 / whole as f64 * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, sm: SmId) -> f64 {
        TOP + f64::from(sm.0 - self.lowest.0) * ROW
    }

    fn colour(&self, id: ApplicationId) -> &'static str {
        COLOURS[self.applications.binary_search(&id).unwrap_or(0) % COLOURS.len()]
    }

    /// The row of a kind of copies that the picture has.
    fn y_of_copies(&self, kind: CopyKind) -> f64 {
        let before = self.kinds.iter().take_while(|other| **other != kind);
        before.fold(self.y(self.highest) + ROW, |y, _| y + ROW)
    }

    fn draw(
        &self,
        trace: &TraceReport,
        status: &GpuStatus,
        segments: &[Segment],
        copies: &[&TracedCopy],
    ) -> String {
        let bottom = self.kinds.iter().fold(self.y(self.highest) + ROW, |y, _| y + ROW);
        let height = bottom + 40.0;
        let mut svg = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <title>SMs of {} by application over device time</title>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>",
            status.gpu.number
        );
        self.legend(&mut svg, status);
        let sms = (self.lowest.0..=self.highest.0).map(SmId);
        let labels = sms.map(|sm| (self.y(sm), sm.to_string()));
        let copied = self.kinds.iter().map(|kind| (self.y_of_copies(*kind), label(*kind).into()));
        for (y, label) in labels.chain(copied) {
            let (x, y) = (LEFT - 6.0, y + ROW - 3.0);
            let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{label}</text>");
        }
        for segment in segments {
            self.segment(&mut svg, segment);
        }
        for copy in copies {
            self.copy(&mut svg, copy);
        }
        self.resizes(&mut svg, &trace.entries, bottom);
        self.axis(&mut svg, bottom);
        svg.push_str("</svg>\n");
        svg
    }

    fn segment(&self, svg: &mut String, segment: &Segment) {
        let (x, end) = (self.x(segment.start), self.x(segment.end));
        let parts = u32::try_from(segment.applications.len()).unwrap_or(1).max(1);
        let height = (ROW - 1.0) / f64::from(parts);
        let mut y = self.y(segment.sm);
        for id in &segment.applications {
            let _ = writeln!(
                svg,
                "<rect class=\"sm\" data-sm=\"{}\" data-application=\"{}\" data-start=\"{}\" \
                 data-end=\"{}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{:.2}\" height=\"{height:.2}\" \
                 fill=\"{}\"/>",
                segment.sm.0,
                id.0,
                segment.start,
                segment.end,
                end - x,
                self.colour(*id)
            );
            y += height;
        }
    }

    fn copy(&self, svg: &mut String, copy: &TracedCopy) {
        let (x, y) = (self.x(copy.start.0), self.y_of_copies(copy.kind));
        let _ = writeln!(
            svg,
            "<rect class=\"copy\" data-application=\"{}\" data-start=\"{}\" data-end=\"{}\" \
             x=\"{x:.2}\" y=\"{y:.2}\" width=\"{:.2}\" height=\"{:.2}\" fill=\"{}\">\
             <title>{}, {} bytes</title></rect>",
            copy.application.0,
            copy.start.0,
            copy.end.0,
            self.x(copy.end.0) - x,
            ROW - 1.0,
            self.colour(copy.application),
            copy.kind,
            copy.bytes
        );
    }

    fn resizes(&self, svg: &mut String, entries: &[TraceEntry], bottom: f64) {
        for entry in entries {
            let TraceEntry::Resize { time, application, from, to } = entry else { continue };
            if !(self.span.from..=self.span.to).contains(&time.0) {
                continue;
            }
            let x = self.x(time.0);
            let _ = writeln!(
                svg,
                "<line class=\"resize\" x1=\"{x:.2}\" y1=\"{TOP}\" x2=\"{x:.2}\" y2=\"{bottom}\" \
                 stroke=\"#000000\" stroke-dasharray=\"3 3\"><title>{application}: {from} -&gt; \
                 {to} at {} ns</title></line>",
                time.0
            );
        }
    }

    fn legend(&self, svg: &mut String, status: &GpuStatus) {
        let mut x = LEFT;
        for id in &self.applications {
            let found = status.applications.iter().find(|application| application.id == *id);
            let name = found.map(|application| format!(" ({})", application.name));
            let text = escape(&format!("{id}{}", name.unwrap_or_default()));
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"10\" width=\"11\" height=\"11\" fill=\"{}\"/>\
                 <text x=\"{}\" y=\"20\">{text}</text>",
                self.colour(*id),
                x + 16.0
            );
            // Letters of this size are about 6 pixels wide.
            x += 36.0 + 6.0 * f64::from(u32::try_from(text.chars().count()).unwrap_or(0));
        }
    }

    fn axis(&self, svg: &mut String, bottom: f64) {
        for tick in 0..=TICKS {
            let time = self.span.from + (self.span.to - self.span.from) / TICKS * tick;
            let (x, anchor) = match tick {
                0 => (self.x(time), "start"),
                TICKS => (self.x(time), "end"),
                _ => (self.x(time), "middle"),
            };
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.2}\" y1=\"{bottom}\" x2=\"{x:.2}\" y2=\"{}\" stroke=\"#555555\"/>\
                 <text x=\"{x:.2}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
                bottom + 4.0,
                bottom + 17.0,
                nanos(time)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">device time; dashed: a border moved\
             </text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            bottom + 33.0
        );
    }
}

/// The name of a row of copies, as long as that of an SM.
fn label(kind: CopyKind) -> &'static str {
    match kind {
        CopyKind::HostToDevice => "to GPU",
        CopyKind::DeviceToHost => "to host",
        CopyKind::DeviceToDevice => "inside",
        CopyKind::Fill => "fill",
    }
}

/// Text in XML. Control characters have no place there.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() => escaped.push('?'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::segments::samples;
    use super::*;

    fn attribute<'a>(line: &'a str, name: &str) -> &'a str {
        let start = line.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
        line[start..].split('"').next().unwrap()
    }

    #[test]
    fn the_picture_says_what_the_trace_says() {
        let trace = samples::trace(3);
        let mut status = crate::watch::samples::gpu(0);
        status.applications[0].name = "<poly>".into();
        let svg = String::from_utf8(render(&trace, &status, None, None).unwrap()).unwrap();
        let boxes: Vec<&str> = svg.lines().filter(|line| line.contains("class=\"sm\"")).collect();
        for sm in 0..4_u16 {
            for application in 1..4_u32 {
                let time: u64 = boxes
                    .iter()
                    .filter(|line| attribute(line, "data-sm") == sm.to_string())
                    .filter(|line| attribute(line, "data-application") == application.to_string())
                    .map(|line| {
                        let number = |name| attribute(line, name).parse::<u64>().unwrap();
                        number("data-end") - number("data-start")
                    })
                    .sum();
                assert_eq!(time, samples::time_on(&trace, sm, application), "{sm} {application}");
            }
        }
        // The end of a row is where the time is, to a hundredth of a pixel.
        for line in &boxes {
            let number = |name| attribute(line, name).parse::<f64>().unwrap();
            assert!(number("x") >= LEFT && number("x") + number("width") <= WIDTH - RIGHT + 0.02);
        }
        let copies: Vec<&str> = svg.lines().filter(|l| l.contains("class=\"copy\"")).collect();
        let of = |line: &&str| {
            let number = |name| attribute(line, name).parse::<u64>().unwrap();
            (number("data-application"), number("data-start"))
        };
        let found: Vec<(u64, u64)> = copies.iter().map(of).collect();
        assert_eq!(found, [(1, 1000), (1, 1100), (4, 1200)]);
        let rows: Vec<&str> = copies.iter().map(|line| attribute(line, "y")).collect();
        assert!(rows[0] == rows[1] && rows[1] != rows[2], "{rows:?}");
        assert_eq!(svg.matches("class=\"resize\"").count(), 1);
        assert!(svg.contains("application 1: 0-3 -&gt; 0-1 at"), "{svg}");
        assert!(svg.contains("application 1 (&lt;poly&gt;)") && !svg.contains("<poly>"));
    }

    #[test]
    fn a_part_of_the_time() {
        let trace = samples::trace(3);
        let status = crate::watch::samples::gpu(0);
        let last = trace.entries.last().map_or(0, time_of);
        let svg = render(&trace, &status, Some(last - 500), None).unwrap();
        let all = render(&trace, &status, None, None).unwrap();
        assert!(svg.len() < all.len());
        assert!(render(&trace, &status, Some(last + 5), Some(last + 10)).is_none());
    }
}

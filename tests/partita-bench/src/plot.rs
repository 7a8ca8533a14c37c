//! Plots as SVG: sorted bars and curves.

use std::fmt::Write;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 110.0;
/// Colours that people with the usual colour blindnesses tell apart (Okabe and Ito 2008).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// A line through points, each x and y.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its points, x rising.
    pub points: Vec<(f64, f64)>,
    /// Drawn with gaps.
    pub dashed: bool,
}

/// Values of several kinds for each of some names.
#[derive(Clone, PartialEq, Debug)]
pub struct Bars {
    /// What is on the axis.
    pub names: Vec<String>,
    /// For each kind its name and its values.
    pub kinds: Vec<(String, Vec<f64>)>,
}

struct Frame {
    text: String,
    low: f64,
    high: f64,
}

impl Frame {
    fn new(title: &str, axis: &str, values: impl Iterator<Item = f64>) -> Frame {
        let (low, high) = values
            .filter(|value| value.is_finite())
            .fold((0.0_f64, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        let step = tick(high - low);
        let (low, high) = ((low / step).floor() * step, (high / step).ceil().max(1.0) * step);
        let mut frame = Frame { text: String::new(), low, high };
        frame.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" \
             font-size=\"12\"><rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>"
        ));
        frame.words(WIDTH / 2.0, 22.0, "middle", 15, title);
        frame.put(format_args!(
            "<text transform=\"translate(18 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (TOP + HEIGHT - BOTTOM) / 2.0,
            escaped(axis)
        ));
        let mut value = low;
        while value <= high + step / 2.0 {
            let y = frame.y(value);
            frame.line(
                LEFT,
                y,
                WIDTH - RIGHT,
                y,
                if value.abs() < step / 2.0 { "#333" } else { "#ddd" },
            );
            frame.words(
                LEFT - 6.0,
                y + 4.0,
                "end",
                12,
                &format!("{}", (value * 1000.0).round() / 1000.0),
            );
            value += step;
        }
        frame
    }

    fn put(&mut self, what: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{what}");
    }

    fn y(&self, value: f64) -> f64 {
        let span = (self.high - self.low).max(1e-12);
        HEIGHT - BOTTOM - (value - self.low) / span * (HEIGHT - BOTTOM - TOP)
    }

    fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, colour: &str) {
        self.put(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" \
             stroke=\"{colour}\"/>"
        ));
    }

    fn words(&mut self, x: f64, y: f64, anchor: &str, size: u32, text: &str) {
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" \
             font-size=\"{size}\">{}</text>",
            escaped(text)
        ));
    }

    fn legend(&mut self, index: usize, name: &str) {
        let y = TOP + 16.0 * float(index);
        self.put(format_args!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{}\"/>",
            WIDTH - RIGHT + 12.0,
            y,
            colour(index)
        ));
        self.words(WIDTH - RIGHT + 28.0, y + 10.0, "start", 12, name);
    }

    fn end(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

/// Curves over numbers, as in CD-search Fig. 7.
#[must_use]
pub fn curves(title: &str, x_axis: &str, y_axis: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let most = points().map(|point| point.0).fold(1.0, f64::max);
    let mut frame = Frame::new(title, y_axis, points().map(|point| point.1));
    let x = |value: f64| LEFT + value / most * (WIDTH - RIGHT - LEFT);
    let step = tick(most);
    let mut value = 0.0;
    while value <= most {
        frame.words(x(value), HEIGHT - BOTTOM + 18.0, "middle", 12, &format!("{value}"));
        value += step;
    }
    frame.words((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - BOTTOM + 40.0, "middle", 12, x_axis);
    for (index, line) in lines.iter().enumerate() {
        let path: Vec<String> = line
            .points
            .iter()
            .map(|point| format!("{:.1},{:.1}", x(point.0), frame.y(point.1)))
            .collect();
        let dash = if line.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        frame.put(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{dash}/>",
            path.join(" "),
            colour(index)
        ));
        frame.legend(index, &line.name);
    }
    frame.end()
}

/// Bars beside each other, sorted by the first kind, as in CD-search Figs. 10 to 12.
#[must_use]
pub fn sorted_bars(title: &str, y_axis: &str, bars: &Bars) -> String {
    let values = bars.kinds.iter().flat_map(|(_, values)| values.iter().copied());
    let mut frame = Frame::new(title, y_axis, values);
    let mut order: Vec<usize> = (0..bars.names.len()).collect();
    if let Some((_, first)) = bars.kinds.first() {
        order.sort_by(|a, b| first[*a].total_cmp(&first[*b]));
    }
    let place = (WIDTH - RIGHT - LEFT) / float(order.len().max(1));
    let width = 0.8 * place / float(bars.kinds.len().max(1));
    for (position, &item) in order.iter().enumerate() {
        let left = LEFT + place * (float(position) + 0.1);
        for (index, (_, values)) in bars.kinds.iter().enumerate() {
            let (from, to) = (frame.y(0.0), frame.y(values[item]));
            frame.put(format_args!(
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
                left + width * float(index),
                from.min(to),
                (from - to).abs(),
                colour(index)
            ));
        }
        frame.put(format_args!(
            "<text transform=\"translate({:.1} {:.1}) rotate(-60)\" text-anchor=\"end\" \
             font-size=\"10\">{}</text>",
            left + place * 0.4,
            HEIGHT - BOTTOM + 14.0,
            escaped(&bars.names[item])
        ));
    }
    for (index, (name, _)) in bars.kinds.iter().enumerate() {
        frame.legend(index, name);
    }
    frame.end()
}

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// A round step that makes about six of a span.
fn tick(span: f64) -> f64 {
    let rough = (span / 6.0).max(1e-9);
    let power = 10.0_f64.powf(rough.log10().floor());
    let fits = |factor: &&f64| **factor * power >= rough;
    [1.0, 2.0, 5.0, 10.0].iter().find(fits).map_or(power, |factor| factor * power)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[expect(clippy::cast_precision_loss, reason = "counts of bars and lines")]
fn float(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_sorted_by_the_first_kind() {
        let bars = Bars {
            names: vec!["b".into(), "a<b".into()],
            kinds: vec![("STP".into(), vec![2.0, -1.0]), ("ANTT".into(), vec![0.0, 0.0])],
        };
        let svg = sorted_bars("t", "%", &bars);
        let at = |text: &str| svg.find(text).unwrap_or_else(|| panic!("no {text} in {svg}"));
        assert!(at(">a&lt;b<") < at(">b<"));
        assert_eq!(svg.matches("<rect").count(), 1 + 4 + 2, "background, bars, legend");
    }

    #[test]
    fn curves_have_a_line_each() {
        let line = |name: &str, dashed| Line {
            name: name.into(),
            points: vec![(1.0, 1.0), (24.0, 9.0)],
            dashed,
        };
        let svg = curves("t", "SMs", "speed", &[line("one", false), line("two", true)]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("dasharray").count(), 1);
    }

    #[test]
    fn ticks_are_round() {
        for (span, expected) in [(24.0, 5.0), (1.0, 0.2), (60.0, 10.0), (0.0, 1e-9)] {
            assert!((tick(span) - expected).abs() < 1e-9, "{span}: {}", tick(span));
        }
    }
}

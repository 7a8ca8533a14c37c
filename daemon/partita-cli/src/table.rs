//! Text in columns, and quantities as people read them.

use comfy_table::presets::NOTHING;
use comfy_table::{ColumnConstraint, ContentArrangement, Width};
use std::io::IsTerminal;

/// Spaces between two columns.
const GAP: u16 = 2;

/// Rows of cells, printed in columns that are as wide as their widest cell. Lines have no spaces at
/// their ends. Scripts cut these columns: the form stays, but on a terminal too narrow for a table
/// its cells have several lines.
pub struct Table {
    table: comfy_table::Table,
    /// The width of each heading, in columns.
    least: Vec<u16>,
}

impl Table {
    /// A table with this heading.
    pub fn new(heading: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING).set_header(heading);
        let width = |text: &&str| u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
        Table { table, least: heading.iter().map(width).collect() }
    }

    /// Appends a row. Names come from programs: control characters are shown, not sent to the
    /// terminal.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.table.add_row(cells.into_iter().map(|cell| printable(&cell)));
    }

    /// Whether there is only the heading.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The table as lines, as wide as the terminal where stdout is one.
    pub fn render(&mut self) -> String {
        self.render_within(terminal_width())
    }

    fn render_within(&mut self, width: Option<u16>) -> String {
        if let Some(width) = width {
            // The last column has a gap behind it, too, which is cut off.
            self.table.set_width(width.saturating_add(GAP));
            self.table.set_content_arrangement(ContentArrangement::Dynamic);
        }
        for (column, least) in self.table.column_iter_mut().zip(&self.least) {
            column.set_padding((0, GAP));
            // Headings stay whole.
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least + GAP)));
        }
        self.table.trim_fmt() + "\n"
    }
}

/// The columns of the terminal that stdout is, where it is one.
pub fn terminal_width() -> Option<u16> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    // A terminal without a size, as a serial line has it, has 0 columns.
    Some(size.ws_col).filter(|columns| *columns > 0)
}

/// The text with control characters escaped.
pub fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| -> Box<dyn Iterator<Item = char>> {
            if c.is_control() { Box::new(c.escape_default()) } else { Box::new(std::iter::once(c)) }
        })
        .collect()
}

/// Bytes in the binary unit that leaves one to four digits before the point.
pub fn bytes(count: u64) -> String {
    scaled(count, 1024, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

/// Nanoseconds in the unit that leaves one to three digits before the point.
pub fn nanos(count: u64) -> String {
    scaled(count, 1000, &["ns", "us", "ms", "s", "ks", "Ms", "Gs"])
}

/// One decimal, rounded down, exact in integers.
fn scaled(count: u64, step: u64, units: &[&str]) -> String {
    let mut divisor = 1;
    let mut index = 0;
    while count / divisor >= step && index + 1 < units.len() {
        divisor *= step;
        index += 1;
    }
    if index == 0 {
        return format!("{count} {}", units[0]);
    }
    let tenths = count % divisor / (divisor / 10).max(1);
    format!("{}.{} {}", count / divisor, tenths.min(9), units[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["ID", "NAME", "SMS"]);
        assert!(table.is_empty());
        table.row(["1".into(), "poly".into(), "0-11".into()]);
        table.row(["12".into(), "p\n\u{1b}[31m".into(), String::new()]);
        assert_eq!(
            table.render(),
            "ID  NAME           SMS\n1   poly           0-11\n12  p\\n\\u{1b}[31m\n"
        );
    }

    #[test]
    fn a_narrow_terminal_gets_cells_of_several_lines() {
        let table = || {
            let mut table = Table::new(&["APP", "KERNEL", "WHY NOT A WORKER"]);
            let reason = "a barrier in a branch that depends on the thread";
            table.row(["1".into(), "_Z4polyPf".into(), reason.into()]);
            table
        };
        let (wide, narrow) = (table().render_within(Some(100)), table().render_within(Some(40)));
        assert_eq!(wide, table().render_within(None));
        assert!(narrow.lines().all(|line| line.len() <= 40), "{narrow}");
        let words = |text: &str| {
            let mut words: Vec<String> = text.split_whitespace().map(Into::into).collect();
            words.sort_unstable();
            words
        };
        assert_eq!(words(&narrow), words(&wide), "nothing is cut off");
        let tight = table().render_within(Some(32));
        assert!(
            tight.starts_with("APP  KERNEL") && tight.contains("WHY NOT A WORKER\n"),
            "{tight}"
        );
    }

    #[test]
    fn quantities() {
        let check = |found: String, expected: &str| assert_eq!(found, expected);
        check(bytes(0), "0 B");
        check(bytes(1023), "1023 B");
        check(bytes(1024), "1.0 KiB");
        check(bytes(1536), "1.5 KiB");
        check(bytes(2047), "1.9 KiB");
        check(bytes(141 << 30), "141.0 GiB");
        check(bytes(u64::MAX), "15.9 EiB");
        check(nanos(999), "999 ns");
        check(nanos(1_000_000), "1.0 ms");
        check(nanos(61_500_000_000), "61.5 s");
        check(nanos(u64::MAX), "18.4 Gs");
    }
}

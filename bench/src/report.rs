//! Output: tables of figures, and the result of each goal.

use std::path::Path;

use anyhow::{Context, Result};
use gapless_cli::output::line;
use serde_json::{Map, Value, json};

/// One row of a table. Cells have a number for JSON and a text for printing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row(Vec<(&'static str, String, Value)>);

impl Row {
    pub(crate) fn text(mut self, column: &'static str, text: impl Into<String>) -> Row {
        let text = text.into();
        self.0.push((column, text.clone(), Value::from(text)));
        self
    }

    /// A number with this many decimal places.
    pub(crate) fn number(mut self, column: &'static str, value: f64, digits: usize) -> Row {
        self.0.push((column, grouped(value, digits), json!(value)));
        self
    }

    /// A number that may be missing.
    pub(crate) fn maybe(self, column: &'static str, value: Option<f64>, digits: usize) -> Row {
        match value {
            Some(value) => self.number(column, value, digits),
            None => {
                let mut row = self;
                row.0.push((column, "-".to_owned(), Value::Null));
                row
            }
        }
    }

    fn json(&self) -> Value {
        let cells = self.0.iter().map(|(column, _, value)| ((*column).to_owned(), value.clone()));
        Value::Object(cells.collect::<Map<_, _>>())
    }
}

/// `12345.6` → `12,345.6`
fn grouped(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let (sign, text) = text.strip_prefix('-').map_or(("", text.as_str()), |rest| ("-", rest));
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    format!("{sign}{out}{rest}")
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>) -> Table {
        Table { title: title.into(), rows: Vec::new() }
    }

    /// Columns in order of their first occurrence.
    fn columns(&self) -> Vec<&'static str> {
        let mut columns: Vec<&'static str> = Vec::new();
        for (column, ..) in self.rows.iter().flat_map(|row| &row.0) {
            if !columns.contains(column) {
                columns.push(column);
            }
        }
        columns
    }

    fn cells(&self) -> Vec<Vec<String>> {
        let columns = self.columns();
        let cell = |row: &Row, column: &str| {
            row.0.iter().find(|(name, ..)| *name == column).map_or(String::new(), |(_, text, _)| text.clone())
        };
        self.rows.iter().map(|row| columns.iter().map(|column| cell(row, column)).collect()).collect()
    }

    fn print(&self, markdown: bool) {
        let columns = self.columns();
        if markdown {
            line(format!("\n### {}\n", self.title));
            line(format!("| {} |", columns.join(" | ")));
            line(format!("|{}", "---|".repeat(columns.len())));
            self.cells().iter().for_each(|row| line(format!("| {} |", row.join(" | "))));
        } else {
            line(format!("\n{}", self.title));
            gapless_cli::output::table(&columns, &self.cells());
        }
    }
}

/// Whether a goal was met.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GoalResult {
    Met,
    Missed,
    /// Undecided in this run, with the reason.
    Open(&'static str),
}

impl GoalResult {
    pub(crate) fn of(met: bool) -> GoalResult {
        if met { GoalResult::Met } else { GoalResult::Missed }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Goal {
    pub(crate) what: String,
    pub(crate) goal: String,
    pub(crate) measured: String,
    pub(crate) result: GoalResult,
}

/// Collected results.
#[derive(Debug)]
pub(crate) struct Report {
    markdown: bool,
    tables: Vec<(&'static str, Table)>,
    goals: Vec<Goal>,
    /// Parts of the summary line.
    headlines: Vec<String>,
}

impl Report {
    pub(crate) fn new(markdown: bool) -> Report {
        Report { markdown, tables: Vec::new(), goals: Vec::new(), headlines: Vec::new() }
    }

    /// Printed immediately, because runs are long.
    pub(crate) fn table(&mut self, benchmark: &'static str, table: Table) {
        table.print(self.markdown);
        self.tables.push((benchmark, table));
    }

    pub(crate) fn goal(
        &mut self,
        what: impl Into<String>,
        goal: impl Into<String>,
        measured: impl Into<String>,
        result: GoalResult,
    ) {
        self.goals.push(Goal { what: what.into(), goal: goal.into(), measured: measured.into(), result });
    }

    pub(crate) fn headline(&mut self, text: impl Into<String>) {
        self.headlines.push(text.into());
    }

    pub(crate) fn print_goals(&self) {
        let mut table = Table::new("Goals");
        table.rows = self.goals.iter().map(goal_row).collect();
        table.print(self.markdown);
    }

    pub(crate) fn print_summary(&self) {
        let count =
            |result: fn(&GoalResult) -> bool| self.goals.iter().filter(|goal| result(&goal.result)).count();
        let (met, missed) = (count(|v| *v == GoalResult::Met), count(|v| *v == GoalResult::Missed));
        let open = self.goals.len() - met - missed;
        let goals = format!("goals: {met} met, {missed} missed, {open} open");
        line(format!("\nbench: {}; {goals}", self.headlines.join(", ")));
    }

    /// Writes one file per benchmark, and `goals.json`.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let mut files: Map<String, Value> = Map::new();
        for (benchmark, table) in &self.tables {
            let tables = files.entry(*benchmark).or_insert_with(|| json!([]));
            let rows: Vec<Value> = table.rows.iter().map(Row::json).collect();
            if let Some(tables) = tables.as_array_mut() {
                tables.push(json!({ "title": table.title, "rows": rows }));
            }
        }
        files.insert("goals".to_owned(), self.goals.iter().map(|goal| goal_row(goal).json()).collect());
        for (name, value) in files {
            let path = dir.join(format!("{name}.json"));
            let text = serde_json::to_string_pretty(&value)?;
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

fn goal_row(goal: &Goal) -> Row {
    let result = match goal.result {
        GoalResult::Met => "met".to_owned(),
        GoalResult::Missed => "MISSED".to_owned(),
        GoalResult::Open(why) => format!("open: {why}"),
    };
    let row = Row::default().text("what", &goal.what).text("goal", &goal.goal);
    row.text("measured", &goal.measured).text("result", result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(grouped(0.05, 2), "0.05");
        assert_eq!(grouped(999.0, 0), "999");
        assert_eq!(grouped(1_234_567.89, 1), "1,234,567.9");
        assert_eq!(grouped(-1_234.0, 0), "-1,234");
    }

    #[test]
    fn rows_may_lack_columns_and_the_json_keeps_the_numbers() {
        let mut table = Table::new("t");
        table.rows.push(Row::default().text("a", "x").number("b", 1234.5, 1));
        table.rows.push(Row::default().text("a", "y").maybe("c", None, 1));
        assert_eq!(table.columns(), ["a", "b", "c"]);
        assert_eq!(table.cells(), [vec!["x", "1,234.5", ""], vec!["y", "", "-"]]);
        assert_eq!(table.rows[0].json(), json!({ "a": "x", "b": 1234.5 }));
    }
}

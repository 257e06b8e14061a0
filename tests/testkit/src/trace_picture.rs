//! Draws the spans of a trace as an SVG picture, for docs/operate/traces.md.

use std::fmt::Write as _;

use crate::collector::ExportedSpan;

const WIDTH: u64 = 960;
const LABELS: u64 = 250;
const ROW: u64 = 26;
const TOP: u64 = 40;
const API: &str = "#2f6fde";
const WORKER: &str = "#1f9d6b";

/// `spans` in order of their start.
pub fn trace_picture(title: &str, spans: &[ExportedSpan]) -> String {
    let start = spans.iter().map(|span| span.start).min().unwrap_or(0);
    let end = spans.iter().map(|span| span.end).max().unwrap_or(1);
    let total = (end - start).max(1);
    let chart = WIDTH - LABELS - 90;
    let x = |at: u64| LABELS + (at - start) * chart / total;
    let height = TOP + ROW * spans.len() as u64 + 24;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"12\" y=\"24\" font-weight=\"bold\" fill=\"#1f2933\">{title}</text>\n"
    );
    for (service, colour, at) in [("gapless-api", API, WIDTH - 240), ("gapless-worker", WORKER, WIDTH - 130)]
    {
        let _ = writeln!(
            svg,
            "<rect x=\"{at}\" y=\"13\" width=\"14\" height=\"14\" rx=\"2\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"24\" fill=\"#616e7c\" font-size=\"11\">{service}</text>",
            at + 20,
        );
    }
    for quarter in 0..=4 {
        let at = LABELS + chart * quarter / 4;
        let time = total * quarter / 4;
        let _ = writeln!(
            svg,
            "<line x1=\"{at}\" y1=\"{TOP}\" x2=\"{at}\" y2=\"{}\" stroke=\"#d9e0e6\"/>\
             <text x=\"{at}\" y=\"{}\" text-anchor=\"middle\" fill=\"#616e7c\" font-size=\"11\">{}</text>",
            height - 22,
            height - 8,
            milliseconds(time),
        );
    }
    for (row, span) in spans.iter().enumerate() {
        let y = TOP + ROW * row as u64;
        let (from, to) = (x(span.start), x(span.end));
        let colour = if span.service == "gapless-api" { API } else { WORKER };
        let indent = 12 + 14 * depth(spans, span);
        let detail = span.attributes.get("state").or(span.attributes.get("answer"));
        let label = match detail.filter(|detail| **detail != span.name) {
            Some(detail) => format!("{} ({detail})", span.name),
            None => span.name.clone(),
        };
        let _ = writeln!(
            svg,
            "<text x=\"{indent}\" y=\"{}\" fill=\"#1f2933\">{label}</text>\
             <rect x=\"{from}\" y=\"{}\" width=\"{}\" height=\"14\" rx=\"2\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{}\" fill=\"#616e7c\" font-size=\"11\">{}</text>",
            y + 16,
            y + 5,
            (to - from).max(2),
            to.max(from + 2) + 5,
            y + 16,
            milliseconds(span.end - span.start),
        );
    }
    svg + "</svg>\n"
}

fn depth(spans: &[ExportedSpan], span: &ExportedSpan) -> u64 {
    let parent = spans.iter().find(|one| one.span_id == span.parent);
    parent.map_or(0, |parent| 1 + depth(spans, parent))
}

fn milliseconds(nanoseconds: u64) -> String {
    format!("{:.1} ms", nanoseconds as f64 / 1e6)
}

//! Figures and lines of the text that tables and plots are made of.

use std::fmt::Write as _;

/// Formats a figure for a table; the empty string for `None`.
pub fn shown(figure: Option<f64>, digits: usize) -> String {
    figure.map_or_else(String::new, |figure| format!("{figure:.digits$}"))
}

/// Appends a line. Writing to a string cannot fail.
pub fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    let _ = writeln!(text, "{arguments}");
}

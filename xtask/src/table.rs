//! Tables of text for a terminal.

/// Rows of cells as aligned columns, the first row underlined.
pub fn render(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &[String]| {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        text += &line(row);
        if index == 0 {
            let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
            text += &line(&rule);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_aligned() {
        let rows = [
            vec!["a".to_owned(), "long head".to_owned()],
            vec!["wide".to_owned(), "x".to_owned()],
        ];
        assert_eq!(
            super::render(&rows),
            "a     long head\n────  ─────────\nwide  x\n"
        );
    }
}

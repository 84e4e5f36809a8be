//! Columns of text.

/// Rows with their columns aligned, two spaces apart; the last `numbers` columns to the right.
pub fn table(rows: &[Vec<String>], numbers: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or_default()
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, &width))| {
                if column + numbers >= columns {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                }
            })
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [
            &["place", "packets"][..],
            &["ingress", "5"],
            &["é", "12345678"],
        ]
        .map(|row| {
            row.iter()
                .map(|cell| (*cell).to_owned())
                .collect::<Vec<_>>()
        });
        assert_eq!(
            table(&rows, 1),
            "place     packets\ningress         5\né        12345678\n"
        );
        assert_eq!(table(&[], 1), "");
    }
}

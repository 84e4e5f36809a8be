//! What documents say of the configuration is what there is.

use std::{fs, path::Path};

use xkub_userspace::config::{Config, KEYS};

#[test]
fn the_table_of_keys_is_complete_and_right() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let text = fs::read_to_string(path).unwrap();
    let found: Vec<&str> = text
        .lines()
        .skip_while(|line| *line != "| key | default | flag | variable | meaning |")
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    let default = Config::default();
    let expected: Vec<String> = KEYS
        .iter()
        .map(|key| {
            format!(
                "| `{}` | `{}` | `--{}` | `{}` | {} |",
                key.path,
                key.value(&default),
                key.flag(),
                key.variable(),
                key.help()
            )
        })
        .collect();
    // The left side is what to put into the document.
    assert_eq!(expected.join("\n"), found.join("\n"));
}

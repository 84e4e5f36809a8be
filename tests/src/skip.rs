//! How a test says that it could not run: such a test is counted as skipped, never as passed.

use std::fs::OpenOptions;
use std::io::Write as _;

/// Names the file that collects skipped tests, one `name<TAB>reason` a line; `cargo xtask test` sets it.
pub const LOG_VARIABLE: &str = "XKUB_SKIP_LOG";

/// Notes that the test `name` can't run here because of `reason`; the caller returns right after.
///
/// The file named in `XKUB_SKIP_LOG` is what is counted: standard error alone would be swallowed by libtest.
pub fn skip(name: &str, reason: &str) {
    eprintln!("SKIPPED: {name}: {reason}");
    let Some(path) = std::env::var_os(LOG_VARIABLE) else {
        return;
    };
    // One write call, in append mode: lines of tests that run at the same time do not mix.
    let line = format!("{name}\t{}\n", reason.replace('\n', " "));
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        eprintln!(
            "cannot note the skipped test in {}: {error}",
            path.display()
        );
    }
}

/// Skips the current test with a reason: `skip_test!("the kernel has no SCTP")` names it by its thread.
#[macro_export]
macro_rules! skip_test {
    ($($reason:tt)+) => {{
        let thread = ::std::thread::current();
        $crate::skip::skip(thread.name().unwrap_or("unnamed test"), &::std::format!($($reason)+));
        return;
    }};
}

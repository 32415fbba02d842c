//! Long lists of cases: some of them in `cargo test`, all of them in `.ci/full properties`.

/// Every `n`-th of `cases`, or all of them where `BATCHFIT_ALL_CASES` is in the environment.
pub(crate) fn sample<T>(n: usize, cases: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let is_whole = std::env::var_os("BATCHFIT_ALL_CASES").is_some();
    cases.into_iter().step_by(if is_whole { 1 } else { n })
}

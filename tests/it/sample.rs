//! Long lists of cases: some of them in `cargo test`, all of them in `.ci/full properties`.

/// Whether all cases are wanted: where `BATCHFIT_ALL_CASES` is in the environment.
pub(crate) fn is_whole() -> bool {
    std::env::var_os("BATCHFIT_ALL_CASES").is_some()
}

/// Every `n`-th of `cases`, or all of them where [`is_whole`].
pub(crate) fn sample<T>(n: usize, cases: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    cases.into_iter().step_by(if is_whole() { 1 } else { n })
}

//! Presets beside the exporter's graphs of the same models.

use super::beside_exports::assert_all_equal;

/// With `BATCHFIT_PRESETS_ONLY=resnet` in the environment, only presets whose names begin so are compared.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "whoever works on one model compares that alone"
)]
fn presets_equal_exported_graphs() {
    let only = std::env::var("BATCHFIT_PRESETS_ONLY").unwrap_or_default();
    assert_all_equal("presets", &only);
}

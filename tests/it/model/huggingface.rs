//! Models from Hugging Face configs beside the exporter's graphs of the same configs.

use super::beside_exports::assert_all_equal;

/// With `BATCHFIT_HUGGINGFACE_ONLY=llama` in the environment, only models whose names begin so are compared.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "whoever works on one model compares that alone"
)]
fn programs_equal_those_of_exported_graphs() {
    let only = std::env::var("BATCHFIT_HUGGINGFACE_ONLY").unwrap_or_default();
    assert_all_equal("huggingface", &only);
}

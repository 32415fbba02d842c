//! The kernels written by hand, by file.

use crate::generate::Source;

/// A file of kernels.
pub(crate) struct KernelFile {
    /// Its name, for messages.
    pub(crate) name: &'static str,
    text: &'static str,
    /// The kernels in it that the host launches.
    pub(crate) kernels: &'static [&'static str],
}

/// What comes before each file.
const PRELUDE: &str = concat!(
    include_str!("../generate/common.cuh"),
    include_str!("kernels/prelude.cu")
);

/// Attention on tensor cores for one element type and heads of up to so many features.
macro_rules! tensor_attention {
    ($dtype:literal, $element:literal, $features:literal, $products:literal) => {
        KernelFile {
            name: concat!(
                "attention_tensor.cu for ",
                $dtype,
                " and ",
                $features,
                " features"
            ),
            text: concat!(
                "#define ELEMENT ",
                $element,
                "\n#define FEATURES ",
                $features,
                "\n#define NAMED(kernel) kernel##_",
                $dtype,
                "_",
                $features,
                "\n",
                include_str!("kernels/attention_arguments.cu"),
                include_str!($products),
                include_str!("kernels/attention_tensor.cu")
            ),
            kernels: &[
                concat!("attention_", $dtype, "_", $features),
                concat!("attention_grad_queries_", $dtype, "_", $features),
                concat!("attention_grad_keys_", $dtype, "_", $features),
            ],
        }
    };
}

/// All that models may need. A file is compiled when one of its kernels is.
#[rustfmt::skip]
pub(crate) static FILES: [KernelFile; 18] = [
    KernelFile { name: "elementwise.cu", text: include_str!("kernels/elementwise.cu"), kernels: &[
        "map8", "map4", "map1", "map_runs8", "map_light4", "map_light8", "map_medium4", "map_medium8",
    ] },
    KernelFile { name: "random.cu", text: include_str!("kernels/random.cu"), kernels: &[
        "random", "dropout4", "dropout8", "dropout_grad4", "dropout_grad8",
    ] },
    KernelFile { name: "reduce.cu", text: include_str!("kernels/reduce.cu"), kernels: &[
        "sum_along8", "sum_along4", "sum_along1", "sum_across4", "sum_across1", "sum_direct", "sum_finish",
    ] },
    KernelFile { name: "batch_norm.cu", text: include_str!("kernels/batch_norm.cu"), kernels: &[
        "batch_norm_statistics8", "batch_norm_statistics4", "batch_norm_statistics1", "batch_norm_finish", "batch_norm_apply8",
        "batch_norm_apply4", "batch_norm_apply1", "batch_norm_inference8", "batch_norm_inference4", "batch_norm_inference1",
        "batch_norm_grad_sums8", "batch_norm_grad_sums4", "batch_norm_grad_sums1", "batch_norm_grad_finish", "batch_norm_grad_input8",
        "batch_norm_grad_input4", "batch_norm_grad_input1",
    ] },
    KernelFile { name: "pool.cu", text: include_str!("kernels/pool.cu"), kernels: &[
        "max_pool", "max_pool_grad", "max_pool_grad_tiles", "adaptive_avg_pool", "adaptive_avg_pool_grad",
    ] },
    KernelFile { name: "loss.cu", text: include_str!("kernels/loss.cu"), kernels: &[
        "softmax_rows", "softmax_rows_grad", "softmax_wide", "softmax_wide_grad", "softmax_columns", "softmax_columns_grad",
        "nll_loss_partial", "nll_loss_finish", "nll_loss_grad", "nll_loss_grad_wide",
    ] },
    KernelFile { name: "optimizer.cu", text: include_str!("kernels/optimizer.cu"), kernels: &[
        "sgd", "sgd_momentum", "adam", "unscale", "update_scale",
    ] },
    KernelFile { name: "layer_norm.cu", text: include_str!("kernels/layer_norm.cu"), kernels: &[
        "layer_norm", "layer_norm_warp8", "layer_norm_warp16", "layer_norm_grad_input", "layer_norm_grad_sums", "layer_norm_grad_warp8",
        "layer_norm_grad_warp16", "layer_norm_grad_finish",
    ] },
    KernelFile { name: "attention.cu", text: concat!(include_str!("kernels/attention_arguments.cu"), include_str!("kernels/attention.cu")), kernels: &[
        "attention64", "attention128", "attention_delta", "attention_grad_queries64", "attention_grad_queries128",
        "attention_grad_keys64", "attention_grad_keys128",
    ] },
    tensor_attention!("float32", "F32", "32", "kernels/attention_tensor_float.cu"),
    tensor_attention!("float32", "F32", "64", "kernels/attention_tensor_float.cu"),
    tensor_attention!("float32", "F32", "128", "kernels/attention_tensor_float.cu"),
    tensor_attention!("float16", "F16", "32", "kernels/attention_tensor_half.cu"),
    tensor_attention!("float16", "F16", "64", "kernels/attention_tensor_half.cu"),
    tensor_attention!("float16", "F16", "128", "kernels/attention_tensor_half.cu"),
    tensor_attention!("bfloat16", "BF16", "32", "kernels/attention_tensor_half.cu"),
    tensor_attention!("bfloat16", "BF16", "64", "kernels/attention_tensor_half.cu"),
    tensor_attention!("bfloat16", "BF16", "128", "kernels/attention_tensor_half.cu"),
];

/// Kernels of the search for unwritten results, which a numerics check asks for.
pub(crate) static CHECKS: [KernelFile; 1] = [KernelFile {
    name: "poison.cu",
    text: include_str!("kernels/poison.cu"),
    kernels: &["poison_fill", "poison_count"],
}];

/// A text to be compiled, and what messages call it.
pub(crate) struct Text {
    pub(crate) name: &'static str,
    pub(crate) text: String,
}

impl Text {
    /// The text of a file of kernels.
    pub(crate) fn of(file: &KernelFile) -> Text {
        Text {
            name: file.name,
            text: format!("{PRELUDE}\n#line 1 \"{}\"\n{}", file.name, file.text),
        }
    }

    /// The text of a generated kernel.
    pub(crate) fn generated(source: &Source) -> Text {
        Text {
            name: "a generated kernel",
            text: source.text(),
        }
    }
}

/// The file that a kernel written by hand is in.
pub(crate) fn file_of(kernel: &str) -> Option<&'static KernelFile> {
    let files = FILES.iter().chain(&CHECKS);
    files
        .into_iter()
        .find(|file| file.kernels.contains(&kernel))
}

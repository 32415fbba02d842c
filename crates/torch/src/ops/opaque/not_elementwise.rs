//! Operators that are known not to be elementwise, and are never taken to be.

/// What is known not to be elementwise: the beginnings of operators' names without namespace, overload and
/// leading underscores, and why what they take cannot be told from their operands and results.
const FAMILIES: &str = include_str!("not_elementwise.txt");

/// Why an operator is known not to be elementwise, if it is.
///
/// A name belongs to a family when it is one of its beginnings, or goes on behind one with an underscore or a
/// digit: `conv3d` and `max_pool3d`, but not `maximum` or `meshgrid`.
pub fn not_elementwise(target: &str) -> Option<&'static str> {
    let (namespace, name) = target.split_once('.').unwrap_or(("", target));
    // What others have registered may be called anything.
    if !["aten", "prims", "torchvision"].contains(&namespace) {
        return None;
    }
    let name = name.split('.').next().unwrap_or(name).trim_matches('_');
    let name = name.strip_prefix("special_").unwrap_or(name);
    let is_of = |beginning: &str| {
        name.strip_prefix(beginning).is_some_and(|rest| {
            let next = rest.chars().next();
            next.is_none_or(|next| next == '_' || next.is_ascii_digit())
                || IS_WHOLE_STEM.contains(&beginning)
        })
    };
    let mut families = FAMILIES.lines().filter_map(|line| line.split_once(" | "));
    let family = families.find(|(names, _)| names.split(' ').any(is_of));
    family.map(|(_, why)| why)
}

/// Beginnings behind which a name may go on in letters: `convolution`, `sparsemax`.
const IS_WHOLE_STEM: [&str; 7] = [
    "conv",
    "cudnn_conv",
    "miopen_conv",
    "mkldnn_conv",
    "linalg",
    "upsample",
    "searchsorted",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_not_to_be_elementwise_is_never_assumed() {
        let names = "aten.conv3d.default aten.convolution.default aten._convolution_mode.default aten.lstm.input aten.gru.data \
             aten.rnn_tanh.input aten.lstm_cell.default aten._cudnn_rnn.default aten.fft_rfft2.default aten._fft_r2c.default \
             aten.stft.center aten.mm.default aten.tensordot.default aten.cdist.default aten.linalg_svd.default \
             aten.sort.stable aten.kthvalue.default aten._scaled_dot_product_flash_attention.default aten.cumprod.default \
             aten.logcumsumexp.default aten.max_pool3d.default aten.adaptive_avg_pool3d.default \
             aten.upsample_trilinear3d.vec aten.native_layer_norm.default aten.special_logsumexp.default \
             aten._ctc_loss.default aten._embedding_bag.default aten.index_copy.default aten.take_along_dim.default \
             aten.amax.default";
        for name in names.split(' ') {
            assert!(not_elementwise(name).is_some(), "{name}");
        }
    }

    #[test]
    fn functions_of_elements_and_operators_of_others_may_be_assumed() {
        let names = "aten.celu.default aten.atan2.default aten.maximum.default aten.minimum.default aten.fmod.Tensor \
             aten.special_erfcx.default aten.lerp.Tensor aten.linspace.default aten.logical_xor.default \
             aten.diagonal.default aten.meshgrid.default aten.standard_gamma.default aten.pixel_shuffle.default \
             aten.detach_copy.default aten.normal.Tensor_float my_ops.conv.default my_ops.sort.default";
        for name in names.split(' ') {
            assert_eq!(not_elementwise(name), None, "{name}");
        }
    }
}

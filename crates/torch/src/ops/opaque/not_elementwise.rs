//! Operators that are known not to be elementwise, and are never taken to be.

/// What is known not to be elementwise: the beginnings of operators' names without namespace, overload and
/// leading underscores, and why what they take cannot be told from their operands and results.
const FAMILIES: &[(&str, &str)] = &[
    (
        "conv cudnn_conv miopen_conv mkldnn_conv slow_conv thnn_conv deform_conv",
        "a convolution takes scratch memory",
    ),
    (
        "lstm gru rnn cudnn_rnn miopen_rnn thnn_fused quantized_lstm quantized_gru",
        "a recurrent net keeps the states of all its steps",
    ),
    (
        "fft stft istft",
        "a Fourier transform takes scratch memory and makes complex numbers",
    ),
    (
        "mm bmm mv dot vdot inner outer ger addmm addmv addbmm baddbmm addr sspaddmm matmul matrix_exp matrix_power chain_matmul \
         tensordot einsum bilinear trilinear kron cdist pdist linear scaled_mm scaled_grouped_mm grouped_mm int_mm sparse_mm \
         foreach_addmm cosine_similarity pairwise_distance",
        "a product of matrices or vectors takes workspaces and makes results of another shape",
    ),
    (
        "linalg cholesky qr svd lu inverse pinverse det logdet slogdet ormqr geqrf triangular_solve lstsq orgqr eig",
        "a matrix decomposition takes scratch memory",
    ),
    (
        "sort argsort msort topk kthvalue median nanmedian mode unique quantile nanquantile searchsorted bucketize histogram bincount \
         histc",
        "a sort or a search takes scratch memory",
    ),
    (
        "scaled_dot_product flash_attention efficient_attention cudnn_attention flex_attention multi_head_attention \
         native_multi_head_attention triton_multi_head_attention transform_bias_rescale_qkv transformer_encoder_layer varlen_attn",
        "attention keeps or recomputes scores",
    ),
    (
        "cumsum cumprod cummax cummin cumulative logcumsumexp associative_scan trapz trapezoid",
        "a scan takes scratch memory",
    ),
    (
        "max_pool avg_pool lp_pool adaptive_max_pool adaptive_avg_pool fractional_max_pool max_unpool mkldnn_max_pool mkldnn_adaptive",
        "a pool keeps places or copies its input",
    ),
    (
        "upsample interpolate grid_sampler affine_grid im2col col2im fold unfold roi nms",
        "a resampling's gradient is not made from one element each",
    ),
    (
        "batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm instance_norm layer_norm native_layer_norm group_norm \
         native_group_norm rms_norm fused_rms_norm local_response_norm weight_norm renorm norm batch_norm_impl_index",
        "a normalization keeps statistics",
    ),
    (
        "sum mean prod var std amax amin aminmax max min argmax argmin logsumexp nansum nanmean count_nonzero all any softmax \
         log_softmax softmin safe_softmax masked_softmax trace dist segment_reduce",
        "a reduction takes scratch memory and keeps what a derivative needs",
    ),
    (
        "ctc_loss cross_entropy nll_loss multi_margin multilabel_margin cosine_embedding_loss triplet_margin hinge_embedding_loss \
         margin_ranking_loss kl_div poisson_nll_loss gaussian_nll_loss linear_cross_entropy",
        "a loss is made of several operations",
    ),
    (
        "embedding gather scatter index take put masked_select masked_scatter nonzero argwhere unsafe_index unsafe_masked_index \
         repeat_interleave",
        "a look-up's gradient sorts or adds up positions",
    ),
    (
        "sparse to_sparse coalesce nested jagged",
        "its memory depends on its values",
    ),
];

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
    let family = FAMILIES
        .iter()
        .find(|(names, _)| names.split(' ').any(is_of));
    family.map(|(_, why)| *why)
}

/// Beginnings behind which a name may go on in letters: `convolution`, `sparsemax`.
const IS_WHOLE_STEM: &[&str] = &[
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
        for name in [
            "aten.conv3d.default",
            "aten.convolution.default",
            "aten._convolution_mode.default",
            "aten.lstm.input",
            "aten.gru.data",
            "aten.rnn_tanh.input",
            "aten.lstm_cell.default",
            "aten._cudnn_rnn.default",
            "aten.fft_rfft2.default",
            "aten._fft_r2c.default",
            "aten.stft.center",
            "aten.mm.default",
            "aten.tensordot.default",
            "aten.cdist.default",
            "aten.linalg_svd.default",
            "aten.sort.stable",
            "aten.kthvalue.default",
            "aten._scaled_dot_product_flash_attention.default",
            "aten.cumprod.default",
            "aten.logcumsumexp.default",
            "aten.max_pool3d.default",
            "aten.adaptive_avg_pool3d.default",
            "aten.upsample_trilinear3d.vec",
            "aten.native_layer_norm.default",
            "aten.special_logsumexp.default",
            "aten._ctc_loss.default",
            "aten._embedding_bag.default",
            "aten.index_copy.default",
            "aten.take_along_dim.default",
            "aten.amax.default",
        ] {
            assert!(not_elementwise(name).is_some(), "{name}");
        }
    }

    #[test]
    fn functions_of_elements_and_operators_of_others_may_be_assumed() {
        for name in [
            "aten.celu.default",
            "aten.atan2.default",
            "aten.maximum.default",
            "aten.minimum.default",
            "aten.fmod.Tensor",
            "aten.special_erfcx.default",
            "aten.lerp.Tensor",
            "aten.linspace.default",
            "aten.logical_xor.default",
            "aten.diagonal.default",
            "aten.meshgrid.default",
            "aten.standard_gamma.default",
            "aten.pixel_shuffle.default",
            "aten.detach_copy.default",
            "aten.normal.Tensor_float",
            "my_ops.conv.default",
            "my_ops.sort.default",
        ] {
            assert_eq!(not_elementwise(name), None, "{name}");
        }
    }
}

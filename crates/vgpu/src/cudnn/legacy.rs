//! What is asked of the older interface with a handle: sizes, and calls that would launch something. All else it has are descriptors, which the
//! real cuDNN keeps.

use std::ffi::c_int;

use super::handle::check_handle;
use super::{BAD_PARAM, NOT_SUPPORTED, Opaque, Status, out, real};
use crate::config;
use crate::names::{functions, refuses};

/// Writes a size, which is asked for with a handle.
unsafe fn out_size(handle: u64, to: *mut usize, bytes: usize) -> Result<(), Status> {
    out(to, bytes)?;
    check_handle(handle)
}

/// Nothing is launched by a call: only its handle is looked at. What is asked for in the rest of its arguments is on the device.
macro_rules! launches {
    ($($name:ident)*) => { functions! { $($name(handle: u64) { check_handle(handle) })* } };
}

launches! {
    cudnnActivationBackward cudnnActivationForward cudnnAddTensor cudnnBatchNormalizationBackward cudnnBatchNormalizationBackwardEx
    cudnnBatchNormalizationForwardInference cudnnBatchNormalizationForwardTraining cudnnBatchNormalizationForwardTrainingEx cudnnBuildRNNDynamic
    cudnnCTCLoss cudnnCTCLoss_v8 cudnnConvolutionBackwardBias cudnnConvolutionBackwardData cudnnConvolutionBackwardFilter
    cudnnConvolutionBiasActivationForward cudnnConvolutionForward cudnnDivisiveNormalizationBackward cudnnDivisiveNormalizationForward
    cudnnDropoutBackward cudnnDropoutForward cudnnFusedOpsExecute cudnnIm2Col cudnnLRNCrossChannelBackward cudnnLRNCrossChannelForward
    cudnnMultiHeadAttnBackwardData cudnnMultiHeadAttnBackwardWeights cudnnMultiHeadAttnForward cudnnNormalizationBackward
    cudnnNormalizationForwardInference cudnnNormalizationForwardTraining cudnnOpTensor cudnnPoolingBackward cudnnPoolingForward
    cudnnRNNBackwardData_v8 cudnnRNNBackwardWeights_v8 cudnnRNNForward cudnnReduceTensor cudnnReorderFilterAndBias cudnnScaleTensor cudnnSetTensor
    cudnnSoftmaxBackward cudnnSoftmaxForward cudnnSpatialTfGridGeneratorBackward cudnnSpatialTfGridGeneratorForward cudnnSpatialTfSamplerBackward
    cudnnSpatialTfSamplerForward cudnnTransformFilter cudnnTransformTensor cudnnTransformTensorEx
}

// What there is no answer to.
refuses! {
    NOT_SUPPORTED;
    cudnnFindConvolutionBackwardDataAlgorithm cudnnFindConvolutionBackwardDataAlgorithmEx cudnnFindConvolutionBackwardFilterAlgorithm
    cudnnFindConvolutionBackwardFilterAlgorithmEx cudnnFindConvolutionForwardAlgorithm cudnnFindConvolutionForwardAlgorithmEx
    cudnnGetConvolutionBackwardDataAlgorithmMaxCount cudnnGetConvolutionBackwardDataAlgorithm_v7 cudnnGetConvolutionBackwardDataWorkspaceSize
    cudnnGetConvolutionBackwardFilterAlgorithmMaxCount cudnnGetConvolutionBackwardFilterAlgorithm_v7
    cudnnGetConvolutionBackwardFilterWorkspaceSize cudnnGetConvolutionForwardAlgorithmMaxCount cudnnGetConvolutionForwardAlgorithm_v7
    cudnnGetConvolutionForwardWorkspaceSize cudnnGetMultiHeadAttnBuffers cudnnGetMultiHeadAttnWeights
    cudnnGetNormalizationBackwardWorkspaceSize cudnnGetNormalizationForwardTrainingWorkspaceSize cudnnGetNormalizationTrainingReserveSpaceSize
    cudnnGetReductionIndicesSize cudnnGetReductionWorkspaceSize cudnnMakeFusedOpsPlan
}

/// `CUDNN_BATCHNORM_SPATIAL_PERSISTENT`, which PyTorch asks for on channels-last data.
const PERSISTENT: c_int = 2;
/// `CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION`, which keeps a bit of each element for the backward pass.
const WITH_SUM: c_int = 2;

/// What a tensor's descriptor says: type, extents and strides.
unsafe fn tensor(descriptor: Opaque) -> Option<(c_int, Vec<usize>, Vec<usize>)> {
    /// `CUDNN_DIM_MAX`.
    const MOST: usize = 8;
    let (mut dtype, mut rank, mut extents, mut strides) = (0, 0, [0_i32; MOST], [0_i32; MOST]);
    if descriptor.is_null() {
        return None;
    }
    let told = real!(cudnnGetTensorNdDescriptor(descriptor => Opaque, MOST as c_int => c_int, &raw mut dtype => *mut c_int, &raw mut rank => *mut c_int, extents.as_mut_ptr() => *mut c_int, strides.as_mut_ptr() => *mut c_int));
    let of = |lengths: &[i32]| lengths.iter().map(|length| usize::try_from(*length).ok()).collect::<Option<Vec<_>>>();
    let rank = usize::try_from(rank).ok().filter(|rank| *rank <= MOST)?;
    told.ok()?;
    Some((dtype, of(&extents[..rank])?, of(&strides[..rank])?))
}

/// Groups of 64 channels, and pixels of all samples, of a tensor that the persistent kernels of batch norm take: channels-last, or of one pixel.
unsafe fn persistent(mode: c_int, descriptor: Opaque) -> Option<(c_int, usize, usize)> {
    let (dtype, extents, strides) = tensor(descriptor)?;
    let channels = *extents.get(1)?;
    let is_channels_last = strides[1] == 1 && strides.last() == Some(&channels) || extents[2..].iter().all(|extent| *extent == 1);
    let pixels = extents[2..].iter().fold(extents[0], |all, extent| all.saturating_mul(*extent));
    (mode == PERSISTENT && is_channels_last).then_some((dtype, channels.div_ceil(64), pixels))
}

/// What is kept of sums of 64 channels (512 bytes, and so many for a flag) in each tile of so many pixels, and a head. From what cuDNN 9.19 said on
/// an H100 (2026-11-28) of 14 shapes in three types; of 3 and 5 channels it is less.
fn sums(groups: usize, pixels: usize, [tile, flag, head]: [usize; 3]) -> usize {
    (groups * (512 + flag)).saturating_mul(pixels.div_ceil(tile)).saturating_add(head + 4 * groups)
}

/// Bytes of a CTC loss: a copy of all probabilities in float32, and `each` for each sample.
unsafe fn of_ctc(probabilities: Opaque, each: impl Fn(usize) -> usize) -> Result<usize, Status> {
    let (_, extents, _) = tensor(probabilities).ok_or(BAD_PARAM)?;
    let [steps, batch, classes] = extents[..] else {
        return Err(BAD_PARAM);
    };
    Ok(batch.saturating_mul((4 * steps).saturating_mul(classes).saturating_add(each(steps))))
}

functions! {
    cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        handle: u64, mode: c_int, _operations: c_int, x: Opaque, _z: Opaque, _y: Opaque, _scale: Opaque, _activation: Opaque, bytes: *mut usize,
    ) {
        let size = persistent(mode, x).map_or(0, |(dtype, groups, pixels)| {
            let tile = if dtype == 0 { 64 } else { 160 };
            sums(groups, pixels, [tile, 4, 1072])
        });
        out_size(handle, bytes, size)
    }
    cudnnGetBatchNormalizationBackwardExWorkspaceSize(
        handle: u64, mode: c_int, _operations: c_int, x: Opaque, _y: Opaque, _dy: Opaque, _dz: Opaque, _dx: Opaque, _scale: Opaque, _activation: Opaque, bytes: *mut usize,
    ) {
        out_size(handle, bytes, persistent(mode, x).map_or(0, |(_, groups, pixels)| sums(groups, pixels, [96, 0, 1056])))
    }
    cudnnGetBatchNormalizationTrainingExReserveSpaceSize(handle: u64, mode: c_int, operations: c_int, _activation: Opaque, x: Opaque, bytes: *mut usize) {
        let size = persistent(mode, x).filter(|_| operations == WITH_SUM);
        out_size(handle, bytes, size.map_or(0, |(_, groups, pixels)| (8 * groups).saturating_mul(pixels.next_multiple_of(32)).saturating_add(1024)))
    }
    /// From what cuDNN 9.19 said on an H100 (2026-11-28), as the next.
    cudnnGetCTCLossWorkspaceSize_v8(handle: u64, _algorithm: c_int, _loss: Opaque, probabilities: Opaque, _gradients: Opaque, bytes: *mut usize) {
        out_size(handle, bytes, of_ctc(probabilities, |steps| 8 * steps + 12)?)
    }
    /// Which is told the labels, on the host: as if all samples had as many as the one with most.
    cudnnGetCTCLossWorkspaceSize(
        handle: u64, probabilities: Opaque, _gradients: Opaque, _labels: *const c_int, lengths: *const c_int, _input_lengths: *const c_int, _algorithm: c_int, _loss: Opaque,
        bytes: *mut usize,
    ) {
        let (_, extents, _) = tensor(probabilities).filter(|_| !lengths.is_null()).ok_or(BAD_PARAM)?;
        let batch = extents.get(1).copied().unwrap_or(0);
        let longest = (0..batch).map(|at| lengths.add(at).read_unaligned()).max();
        let labels = longest.and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
        out_size(handle, bytes, of_ctc(probabilities, |steps| labels * (16 * steps + 12) + 8 * steps + 20)?)
    }
    cudnnDropoutGetStatesSize(handle: u64, bytes: *mut usize) {
        /// Of each multiprocessor: 6,488,064 on the 132 of an H200, where PyTorch's recurrent networks with dropout were recorded.
        const STATES: usize = 49_152;
        out_size(handle, bytes, STATES * usize::try_from(config::card().multiprocessors).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::NULL_POINTER;
    use super::*;

    #[test]
    fn batch_norms_keep_what_an_h100_was_recorded_to() {
        // Groups of channels, pixels; float32, half precision, backward.
        for (groups, pixels, recorded) in [
            (1, 8 * 28 * 28, [51_644, 21_716, 34_852]),
            (4, 64 * 14 * 14, [405_632, 164_144, 269_360]),
            (32, 128 * 7 * 7, [1_619_376, 661_680, 1_082_528]),
            (1, 1024 * 32 * 32, [8_455_220, 3_382_940, 5_593_636]),
            (2, 64, [2_112, 2_112, 2_088]),
        ] {
            let found = [[64, 4, 1072], [160, 4, 1072], [96, 0, 1056]].map(|of| sums(groups, pixels, of));
            assert_eq!(found, recorded, "{groups} {pixels}");
        }
    }

    #[test]
    fn null_pointers_are_refused() {
        let nothing = std::ptr::null_mut();
        // SAFETY: nothing is written.
        unsafe {
            assert_eq!(cudnnDropoutGetStatesSize(1, std::ptr::null_mut()), NULL_POINTER);
            assert_eq!(cudnnGetBatchNormalizationTrainingExReserveSpaceSize(1, 2, 0, nothing, nothing, std::ptr::null_mut()), NULL_POINTER);
            assert_eq!(cudnnGetCTCLossWorkspaceSize_v8(1, 0, nothing, nothing, nothing, std::ptr::null_mut()), BAD_PARAM);
            assert_ne!(cudnnSoftmaxForward(1), 0);
        }
    }
}

//! What is asked of the older interface with a handle: sizes, and calls that would launch something. All else it has are descriptors, which the
//! real cuDNN keeps.

use std::ffi::c_int;

use super::handle::check;
use super::{NOT_SUPPORTED, NULL_POINTER, Opaque, SUCCESS, Status, unanswered};
use crate::config;

unsafe fn give(to: *mut usize, bytes: usize) -> Status {
    if to.is_null() {
        return NULL_POINTER;
    }
    to.write_unaligned(bytes);
    SUCCESS
}

/// Nothing is launched by a call: only its handle is looked at. What is asked for in the rest of its arguments is on the device.
macro_rules! launches {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`.")]
            #[unsafe(no_mangle)]
            pub extern "C" fn $name(handle: u64) -> Status {
                check(handle)
            }
        )*
    };
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

/// What there is no answer to is refused, so that a program takes another way, and said.
macro_rules! refuses {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`.")]
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> Status {
                unanswered(stringify!($name));
                NOT_SUPPORTED
            }
        )*
    };
}

refuses! {
    cudnnFindConvolutionBackwardDataAlgorithm cudnnFindConvolutionBackwardDataAlgorithmEx cudnnFindConvolutionBackwardFilterAlgorithm
    cudnnFindConvolutionBackwardFilterAlgorithmEx cudnnFindConvolutionForwardAlgorithm cudnnFindConvolutionForwardAlgorithmEx
    cudnnGetConvolutionBackwardDataAlgorithmMaxCount cudnnGetConvolutionBackwardDataAlgorithm_v7 cudnnGetConvolutionBackwardDataWorkspaceSize
    cudnnGetConvolutionBackwardFilterAlgorithmMaxCount cudnnGetConvolutionBackwardFilterAlgorithm_v7
    cudnnGetConvolutionBackwardFilterWorkspaceSize cudnnGetConvolutionForwardAlgorithmMaxCount cudnnGetConvolutionForwardAlgorithm_v7
    cudnnGetConvolutionForwardWorkspaceSize cudnnGetMultiHeadAttnBuffers cudnnGetMultiHeadAttnWeights
    cudnnGetNormalizationBackwardWorkspaceSize cudnnGetNormalizationForwardTrainingWorkspaceSize cudnnGetNormalizationTrainingReserveSpaceSize
    cudnnGetReductionIndicesSize cudnnGetReductionWorkspaceSize cudnnMakeFusedOpsPlan
}

/// `cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    handle: u64,
    _mode: c_int,
    _operations: c_int,
    _x: Opaque,
    _z: Opaque,
    _y: Opaque,
    _scale: Opaque,
    _activation: Opaque,
    bytes: *mut usize,
) -> Status {
    if give(bytes, 0) == SUCCESS { check(handle) } else { NULL_POINTER }
}

/// `cudnnGetBatchNormalizationBackwardExWorkspaceSize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    handle: u64,
    _mode: c_int,
    _operations: c_int,
    _x: Opaque,
    _y: Opaque,
    _dy: Opaque,
    _dz: Opaque,
    _dx: Opaque,
    _scale: Opaque,
    _activation: Opaque,
    bytes: *mut usize,
) -> Status {
    if give(bytes, 0) == SUCCESS { check(handle) } else { NULL_POINTER }
}

/// `cudnnGetBatchNormalizationTrainingExReserveSpaceSize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    handle: u64,
    _mode: c_int,
    _operations: c_int,
    _activation: Opaque,
    _x: Opaque,
    bytes: *mut usize,
) -> Status {
    if give(bytes, 0) == SUCCESS { check(handle) } else { NULL_POINTER }
}

/// `cudnnDropoutGetStatesSize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnDropoutGetStatesSize(handle: u64, bytes: *mut usize) -> Status {
    /// Of each multiprocessor: 6,488,064 on the 132 of an H200, where PyTorch's recurrent networks with dropout were recorded.
    const STATES: usize = 49_152;
    let multiprocessors = usize::try_from(config::card().multiprocessors).unwrap_or(0);
    if give(bytes, STATES * multiprocessors) == SUCCESS { check(handle) } else { NULL_POINTER }
}

//! The operation graph of a single convolution.

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendDescriptorType_t as Kind,
    cudnnConvolutionMode_t, cudnnDataType_t,
};

use crate::program::{Convolution, Operation};
use crate::shape::DType;

use super::descriptor::Descriptor;
use super::{CudnnError, Handle};

/// Unique ids of the three tensors, the letters that PyTorch uses.
const UIDS: [i64; 3] = [b'x' as i64, b'y' as i64, b'w' as i64];

/// Where a convolution's tensors are on the device, in the library's roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceAddresses {
    /// Input of the ordinary convolution.
    pub x: u64,
    /// Output of the ordinary convolution.
    pub y: u64,
    /// The weight.
    pub w: u64,
}

impl DeviceAddresses {
    /// By unique id, as a plan takes them.
    pub fn by_uid(self) -> [(i64, u64); 3] {
        [(UIDS[0], self.x), (UIDS[1], self.y), (UIDS[2], self.w)]
    }
}

/// The alignment that PyTorch states for a tensor at the start of a block.
///
/// It reports the largest power of two up to 32 that divides the address; its blocks start at
/// multiples of 512.
pub const ALIGNMENT: u64 = 32;

/// A finalized graph of one convolution.
pub(super) struct OperationGraph {
    graph: Descriptor,
    /// Kept alive with the graph, which refers to it.
    _operation: Descriptor,
}

impl OperationGraph {
    /// Describes a convolution on dense tensors, all in the order that it names; without a handle for a card that is not there.
    pub(super) fn build(
        handle: Option<&Handle>,
        convolution: &Convolution,
        alignment: u64,
    ) -> Result<Self, CudnnError> {
        let dtype = match convolution.dtype {
            DType::Float32 => cudnnDataType_t::CUDNN_DATA_FLOAT,
            DType::Float16 => cudnnDataType_t::CUDNN_DATA_HALF,
            DType::BFloat16 => cudnnDataType_t::CUDNN_DATA_BFLOAT16,
            DType::Float64 => cudnnDataType_t::CUDNN_DATA_DOUBLE,
            dtype => return Err(CudnnError::DType { dtype }),
        };
        let operands = convolution.operands();
        let tensor = |uid, dims| tensor(uid, dims, convolution, (dtype, alignment));
        let x = tensor(UIDS[0], operands.x)?;
        let y = tensor(UIDS[1], operands.y)?;
        let w = tensor(UIDS[2], operands.w)?;
        let geometry = geometry(convolution)?;

        let names = AttributeNames::of(operands.operation);
        let mut operation = Descriptor::create(names.kind)?;
        operation.set_descriptors(names.x, &[&x])?;
        operation.set_descriptors(names.y, &[&y])?;
        operation.set_descriptors(names.w, &[&w])?;
        operation.set_descriptors(names.geometry, &[&geometry])?;
        if convolution.dtype == DType::Float64 {
            operation.set(names.alpha, &[1.0_f64])?;
            operation.set(names.beta, &[0.0_f64])?;
        } else {
            operation.set(names.alpha, &[1.0_f32])?;
            operation.set(names.beta, &[0.0_f32])?;
        }
        let operation = operation.finalize()?;

        let mut graph = Descriptor::create(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        graph.set_descriptors(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &[&operation])?;
        if let Some(handle) = handle {
            graph.set(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, &[handle.raw()])?;
        }
        Ok(OperationGraph {
            graph: graph.finalize()?,
            _operation: operation,
        })
    }

    pub(super) fn descriptor(&self) -> &Descriptor {
        &self.graph
    }
}

/// A dense tensor. Strides of lengths of one follow the formula too, as PyTorch makes them (`resize_` in
/// its cuDNN wrapper).
fn tensor(
    uid: i64,
    dims: [u64; 5],
    convolution: &Convolution,
    (dtype, alignment): (cudnnDataType_t, u64),
) -> Result<Descriptor, CudnnError> {
    let dims = dims.map(signed);
    let [_, channels, depth, height, width] = dims;
    let (plane, volume) = (height * width, depth * height * width);
    let strides = if convolution.channels_last {
        [
            channels * volume,
            1,
            plane * channels,
            width * channels,
            channels,
        ]
    } else {
        [channels * volume, volume, plane, width, 1]
    };
    let (dims, strides) = (of_rank(dims, convolution), of_rank(strides, convolution));
    let mut tensor = Descriptor::create(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, &[dtype])?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &dims)?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_STRIDES, &strides)?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[uid])?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[signed(alignment)])?;
    tensor.finalize()
}

/// Batch, channels and the sides that tensors have: planes have no depth.
fn of_rank([batch, channels, depth, height, width]: [i64; 5], of: &Convolution) -> Vec<i64> {
    let mut kept = vec![batch, channels];
    kept.extend(of.volumes.then_some(depth));
    kept.extend([height, width]);
    kept
}

/// Kernel stride, padding and dilation; arithmetic in fp32 whatever the tensors hold, but for float64.
fn geometry(convolution: &Convolution) -> Result<Descriptor, CudnnError> {
    let first = usize::from(!convolution.volumes);
    let sides = |of: [u64; 3]| -> Vec<i64> { of.into_iter().skip(first).map(signed).collect() };
    let padding = sides(convolution.padding);
    let mut geometry = Descriptor::create(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
    let compute = if convolution.dtype == DType::Float64 {
        cudnnDataType_t::CUDNN_DATA_DOUBLE
    } else {
        cudnnDataType_t::CUDNN_DATA_FLOAT
    };
    geometry.set(Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, &[compute])?;
    geometry.set(
        Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE,
        &[cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION],
    )?;
    geometry.set(
        Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS,
        &[signed(3 - first as u64)],
    )?;
    geometry.set(Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &padding)?;
    geometry.set(Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &padding)?;
    geometry.set(
        Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES,
        &sides(convolution.stride),
    )?;
    geometry.set(
        Name::CUDNN_ATTR_CONVOLUTION_DILATIONS,
        &sides(convolution.dilation),
    )?;
    geometry.finalize()
}

fn signed(extent: u64) -> i64 {
    i64::try_from(extent).unwrap_or(i64::MAX)
}

/// What one operation calls its kind and its attributes.
struct AttributeNames {
    kind: Kind,
    x: Name,
    y: Name,
    w: Name,
    geometry: Name,
    alpha: Name,
    beta: Name,
}

impl AttributeNames {
    const fn of(operation: Operation) -> Self {
        match operation {
            Operation::Forward => AttributeNames {
                kind: Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                x: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                y: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                w: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                geometry: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                alpha: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                beta: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            },
            Operation::BackwardData => AttributeNames {
                kind: Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                x: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                y: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                w: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                geometry: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                alpha: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                beta: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            },
            Operation::BackwardFilter => AttributeNames {
                kind: Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                x: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                y: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                w: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                geometry: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                alpha: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                beta: Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
            },
        }
    }
}

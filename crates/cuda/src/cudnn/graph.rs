//! Operation graphs of several operations, built one operation after another.
//!
//! A tensor is [given](GraphBuilder::given) by the caller at run time, computed on the way and never stored
//! ([`between`](GraphBuilder::between) operations), or a [number](GraphBuilder::number) fixed when the graph is built.

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendDescriptorType_t as Kind, cudnnDataType_t,
    cudnnPointwiseMode_t, cudnnReduceTensorOp_t, cudnnRngDistribution_t,
};

use super::descriptor::Descriptor;
use super::{CudnnError, Handle};

/// What the frontend states for every tensor of such a graph.
const ALIGNMENT: i64 = 16;

/// Lengths and strides of four dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Lengths.
    pub dims: [i64; 4],
    /// Elements between neighbours.
    pub strides: [i64; 4],
}

impl Layout {
    /// Row-major, without gaps.
    pub(super) fn dense(dims: [i64; 4]) -> Layout {
        let [_, b, c, d] = dims;
        Layout {
            dims,
            strides: [b * c * d, c * d, d, 1],
        }
    }

    /// The last two dimensions exchanged.
    pub(super) fn transposed(self) -> Layout {
        let swap = |[a, b, c, d]: [i64; 4]| [a, b, d, c];
        Layout {
            dims: swap(self.dims),
            strides: swap(self.strides),
        }
    }
}

/// A tensor of a graph under construction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TensorRef(usize);

/// Collects tensors and operations.
pub(super) struct GraphBuilder {
    /// Tensors, and between them what operations refer to beside tensors.
    tensors: Vec<Descriptor>,
    operations: Vec<Descriptor>,
    /// The numbers among the tensors, by unique id.
    numbers: Vec<(i64, f32)>,
    /// Ids of tensors that are not the caller's start behind these.
    next_uid: i64,
}

/// A finished graph, with what its run needs beside addresses.
pub(super) struct Graph {
    pub(super) descriptor: Descriptor,
    /// Kept alive with the graph, which refers to them.
    _parts: Vec<Descriptor>,
    pub(super) numbers: Vec<(i64, f32)>,
}

impl GraphBuilder {
    /// An empty graph. The caller's tensors have ids below `first_own_uid`.
    pub(super) fn new(first_own_uid: i64) -> GraphBuilder {
        GraphBuilder {
            tensors: Vec::new(),
            operations: Vec::new(),
            numbers: Vec::new(),
            next_uid: first_own_uid,
        }
    }

    /// A tensor whose address is given at run time under `uid`.
    pub(super) fn input(
        &mut self,
        uid: i64,
        layout: Layout,
        dtype: cudnnDataType_t,
    ) -> Result<TensorRef, CudnnError> {
        let tensor = described(uid, layout, dtype)?;
        self.keep(tensor)
    }

    /// A tensor that exists between two operations.
    pub(super) fn between(
        &mut self,
        layout: Layout,
        dtype: cudnnDataType_t,
    ) -> Result<TensorRef, CudnnError> {
        let uid = self.own_uid();
        let mut tensor = described(uid, layout, dtype)?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[true])?;
        self.keep(tensor)
    }

    /// A float32 number that every element meets.
    pub(super) fn number(&mut self, value: f32) -> Result<TensorRef, CudnnError> {
        let uid = self.own_uid();
        let layout = Layout::dense([1; 4]);
        let mut tensor = described(uid, layout, cudnnDataType_t::CUDNN_DATA_FLOAT)?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, &[true])?;
        self.numbers.push((uid, value));
        self.keep(tensor)
    }

    /// `out = a · b`, summed in float32.
    pub(super) fn matmul(
        &mut self,
        a: TensorRef,
        b: TensorRef,
        out: TensorRef,
    ) -> Result<(), CudnnError> {
        let mut matmul = Descriptor::create(Kind::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?;
        matmul.set(
            Name::CUDNN_ATTR_MATMUL_COMP_TYPE,
            &[cudnnDataType_t::CUDNN_DATA_FLOAT],
        )?;
        let matmul = matmul.finalize()?;
        let mut operation = Descriptor::create(Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?;
        self.refer(&mut operation, Name::CUDNN_ATTR_OPERATION_MATMUL_ADESC, a)?;
        self.refer(&mut operation, Name::CUDNN_ATTR_OPERATION_MATMUL_BDESC, b)?;
        self.refer(&mut operation, Name::CUDNN_ATTR_OPERATION_MATMUL_CDESC, out)?;
        operation.set_descriptors(Name::CUDNN_ATTR_OPERATION_MATMUL_DESC, &[&matmul])?;
        self.add(operation, matmul)
    }

    /// `out = mode(x, b)`; `b` is absent for modes of one operand.
    pub(super) fn pointwise(
        &mut self,
        mode: cudnnPointwiseMode_t,
        [x, b]: [Option<TensorRef>; 2],
        out: TensorRef,
    ) -> Result<(), CudnnError> {
        let float = cudnnDataType_t::CUDNN_DATA_FLOAT;
        self.pointwise_in(float, mode, [x, b, None], None, out)
    }

    /// The index of each element along a dimension, as int32.
    pub(super) fn index(
        &mut self,
        like: TensorRef,
        axis: i64,
        out: TensorRef,
    ) -> Result<(), CudnnError> {
        let mode = cudnnPointwiseMode_t::CUDNN_POINTWISE_GEN_INDEX;
        let float = cudnnDataType_t::CUDNN_DATA_FLOAT;
        self.pointwise_in(float, mode, [Some(like), None, None], Some(axis), out)
    }

    /// Whether `x >= b`.
    pub(super) fn at_least(
        &mut self,
        x: TensorRef,
        b: TensorRef,
        out: TensorRef,
    ) -> Result<(), CudnnError> {
        let mode = cudnnPointwiseMode_t::CUDNN_POINTWISE_CMP_GE;
        let boolean = cudnnDataType_t::CUDNN_DATA_BOOLEAN;
        self.pointwise_in(boolean, mode, [Some(x), Some(b), None], None, out)
    }

    /// `out = choice ? x : b`.
    pub(super) fn select(
        &mut self,
        choice: TensorRef,
        x: TensorRef,
        b: TensorRef,
        out: TensorRef,
    ) -> Result<(), CudnnError> {
        let mode = cudnnPointwiseMode_t::CUDNN_POINTWISE_BINARY_SELECT;
        let float = cudnnDataType_t::CUDNN_DATA_FLOAT;
        self.pointwise_in(float, mode, [Some(x), Some(b), Some(choice)], None, out)
    }

    fn pointwise_in(
        &mut self,
        precision: cudnnDataType_t,
        mode: cudnnPointwiseMode_t,
        [x, b, t]: [Option<TensorRef>; 3],
        axis: Option<i64>,
        out: TensorRef,
    ) -> Result<(), CudnnError> {
        let mut pointwise = Descriptor::create(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
        pointwise.set(Name::CUDNN_ATTR_POINTWISE_MODE, &[mode])?;
        pointwise.set(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, &[precision])?;
        if let Some(axis) = axis {
            pointwise.set(Name::CUDNN_ATTR_POINTWISE_AXIS, &[axis])?;
        }
        let pointwise = pointwise.finalize()?;
        let mut operation = Descriptor::create(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
        operation.set_descriptors(
            Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
            &[&pointwise],
        )?;
        let operands = [
            (Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x),
            (Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b),
            (Name::CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t),
            (Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, Some(out)),
        ];
        for (name, operand) in operands {
            if let Some(operand) = operand {
                self.refer(&mut operation, name, operand)?;
            }
        }
        self.add(operation, pointwise)
    }

    /// `out`: `x` reduced over the dimensions that have length one in `out`.
    pub(super) fn reduce(
        &mut self,
        operator: cudnnReduceTensorOp_t,
        x: TensorRef,
        out: TensorRef,
    ) -> Result<(), CudnnError> {
        let mut reduction = Descriptor::create(Kind::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?;
        reduction.set(Name::CUDNN_ATTR_REDUCTION_OPERATOR, &[operator])?;
        reduction.set(
            Name::CUDNN_ATTR_REDUCTION_COMP_TYPE,
            &[cudnnDataType_t::CUDNN_DATA_FLOAT],
        )?;
        let reduction = reduction.finalize()?;
        let mut operation = Descriptor::create(Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?;
        self.refer(
            &mut operation,
            Name::CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
            x,
        )?;
        self.refer(
            &mut operation,
            Name::CUDNN_ATTR_OPERATION_REDUCTION_YDESC,
            out,
        )?;
        operation.set_descriptors(Name::CUDNN_ATTR_OPERATION_REDUCTION_DESC, &[&reduction])?;
        self.add(operation, reduction)
    }

    /// `out`: the elements of `x` under other lengths and strides.
    pub(super) fn reshape(&mut self, x: TensorRef, out: TensorRef) -> Result<(), CudnnError> {
        let mut operation = Descriptor::create(Kind::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)?;
        self.refer(&mut operation, Name::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x)?;
        self.refer(
            &mut operation,
            Name::CUDNN_ATTR_OPERATION_RESHAPE_YDESC,
            out,
        )?;
        self.operations.push(operation.finalize()?);
        Ok(())
    }

    /// `out`: one with this probability, else zero, by a Philox generator.
    pub(super) fn bernoulli(
        &mut self,
        probability: f64,
        [seed, offset]: [TensorRef; 2],
        out: TensorRef,
    ) -> Result<(), CudnnError> {
        let mut generator = Descriptor::create(Kind::CUDNN_BACKEND_RNG_DESCRIPTOR)?;
        generator.set(
            Name::CUDNN_ATTR_RNG_DISTRIBUTION,
            &[cudnnRngDistribution_t::CUDNN_RNG_DISTRIBUTION_BERNOULLI],
        )?;
        generator.set(
            Name::CUDNN_ATTR_RNG_BERNOULLI_DIST_PROBABILITY,
            &[probability],
        )?;
        let generator = generator.finalize()?;
        let mut operation = Descriptor::create(Kind::CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR)?;
        self.refer(&mut operation, Name::CUDNN_ATTR_OPERATION_RNG_YDESC, out)?;
        operation.set_descriptors(Name::CUDNN_ATTR_OPERATION_RNG_DESC, &[&generator])?;
        self.refer(&mut operation, Name::CUDNN_ATTR_OPERATION_RNG_SEED, seed)?;
        self.refer(
            &mut operation,
            Name::CUDNN_ATTR_OPERATION_RNG_OFFSET_DESC,
            offset,
        )?;
        self.add(operation, generator)
    }

    /// The graph of all operations so far, in order.
    pub(super) fn finish(self, handle: &Handle) -> Result<Graph, CudnnError> {
        let list: Vec<&Descriptor> = self.operations.iter().collect();
        let mut graph = Descriptor::create(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        graph.set_descriptors(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &list)?;
        graph.set(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, &[handle.raw()])?;
        let descriptor = graph.finalize()?;
        let mut parts = self.tensors;
        parts.extend(self.operations);
        Ok(Graph {
            descriptor,
            _parts: parts,
            numbers: self.numbers,
        })
    }

    fn own_uid(&mut self) -> i64 {
        self.next_uid += 1;
        self.next_uid - 1
    }

    fn keep(&mut self, tensor: Descriptor) -> Result<TensorRef, CudnnError> {
        self.tensors.push(tensor.finalize()?);
        Ok(TensorRef(self.tensors.len() - 1))
    }

    fn refer(
        &self,
        operation: &mut Descriptor,
        name: Name,
        tensor: TensorRef,
    ) -> Result<(), CudnnError> {
        operation.set_descriptors(name, &[&self.tensors[tensor.0]])
    }

    /// Takes an operation and the descriptor of what it does, which it refers to.
    fn add(&mut self, operation: Descriptor, detail: Descriptor) -> Result<(), CudnnError> {
        self.operations.push(operation.finalize()?);
        self.tensors.push(detail);
        Ok(())
    }
}

fn described(uid: i64, layout: Layout, dtype: cudnnDataType_t) -> Result<Descriptor, CudnnError> {
    let mut tensor = Descriptor::create(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, &[dtype])?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &layout.dims)?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_STRIDES, &layout.strides)?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[uid])?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[ALIGNMENT])?;
    Ok(tensor)
}

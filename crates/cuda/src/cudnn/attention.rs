//! Fused attention, forward and backward, as operation graphs.
//!
//! cuDNN recognises attention by its parts: the graphs below are those that cudnn-frontend builds for
//! `scaled_dot_product_attention` below version 9.21, operation for operation, and PyTorch calls it. The
//! engine found for such a graph keeps no score matrix. See Note [Attention].

use std::hash::{Hash, Hasher};

use cudarc::cudnn::sys::{
    cudnnBackendHeurMode_t as Mode, cudnnDataType_t, cudnnPointwiseMode_t as Pointwise,
    cudnnReduceTensorOp_t as Reduction,
};

use crate::shape::DType;
use crate::units::Bytes;

use super::candidates::first_plan;
use super::graph::{GraphBuilder, Layout, TensorRef};
use super::plan::ExecutionPlan;
use super::{CudnnError, Handle};

const FLOAT: cudnnDataType_t = cudnnDataType_t::CUDNN_DATA_FLOAT;

/// The tensors of an attention, by their unique ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i64)]
pub enum Role {
    /// Queries.
    Query = 1,
    /// Keys.
    Key = 2,
    /// Values.
    Value = 3,
    /// The result.
    Out = 4,
    /// The logarithm of each row's sum.
    RowSums = 5,
    /// The result's gradient.
    Grad = 6,
    /// The queries' gradient.
    GradQuery = 7,
    /// The keys' gradient.
    GradKey = 8,
    /// The values' gradient.
    GradValue = 9,
    /// The queries' gradient while it is summed up, in float32.
    QuerySums = 10,
    /// Each row's product of gradient and result.
    RowProducts = 11,
    /// Seed of the random generator: an int64.
    Seed = 12,
    /// Its offset: an int64.
    Offset = 13,
    /// What is added to scaled scores.
    Bias = 14,
}

/// Ids from here on are those of tensors in between.
const FIRST_OWN: i64 = 100;

/// An attention with everything that a plan depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Type of queries, keys, values and result.
    pub dtype: DType,
    /// `[samples, heads, positions, width]`.
    pub query: Layout,
    /// Likewise, with the heads and positions of keys.
    pub key: Layout,
    /// Likewise.
    pub value: Layout,
    /// Like the query.
    pub out: Layout,
    /// `[samples, heads, positions, 1]`.
    pub row_sums: Layout,
    /// What is added to scaled scores, in lengths of one where it broadcasts.
    pub bias: Option<Layout>,
    /// Whether later positions are hidden.
    pub causal: bool,
    /// Share of attention weights dropped.
    pub dropout: f64,
    /// What scores are multiplied by.
    pub scale: f32,
    /// Present for the backward pass.
    pub gradients: Option<GradientLayouts>,
}

/// Layouts of a backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GradientLayouts {
    /// The result's gradient.
    pub out: Layout,
    /// The queries' gradient.
    pub query: Layout,
    /// The keys' gradient.
    pub key: Layout,
    /// The values' gradient.
    pub value: Layout,
}

impl Eq for AttentionShape {}

impl Hash for AttentionShape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let layouts = [self.query, self.key, self.value, self.out, self.row_sums];
        (self.dtype, layouts, self.bias, self.causal, self.gradients).hash(state);
        (self.dropout.to_bits(), self.scale.to_bits()).hash(state);
    }
}

/// A plan for an attention.
pub struct AttentionPlan {
    plan: ExecutionPlan,
    /// For [`Role::QuerySums`].
    pub query_sums: Bytes,
    /// For [`Role::RowProducts`].
    pub row_products: Bytes,
}

impl AttentionPlan {
    /// The plan that cuDNN's heuristics put first; PyTorch takes that one too. Compiles kernels: some
    /// hundred milliseconds.
    pub fn make(handle: &Handle, shape: &AttentionShape) -> Result<AttentionPlan, CudnnError> {
        let io = match shape.dtype {
            DType::Float16 => cudnnDataType_t::CUDNN_DATA_HALF,
            DType::BFloat16 => cudnnDataType_t::CUDNN_DATA_BFLOAT16,
            dtype => return Err(CudnnError::DType { dtype }),
        };
        let mut draft = AttentionGraph {
            shape,
            io,
            graph: GraphBuilder::new(FIRST_OWN),
        };
        let [samples, heads, positions, width] = shape.query.dims;
        let rows = samples * heads * positions * 4;
        let (query_sums, row_products) = match &shape.gradients {
            None => {
                draft.forward()?;
                (0, 0)
            }
            Some(gradients) => {
                draft.backward(gradients)?;
                (rows * width, rows)
            }
        };
        let graph = draft.graph.finish(handle)?;
        let bytes = |count: i64| Bytes(count.unsigned_abs());
        Ok(AttentionPlan {
            plan: first_plan(handle, &graph, Mode::CUDNN_HEUR_MODE_A)?,
            query_sums: bytes(query_sums),
            row_products: bytes(row_products),
        })
    }

    /// The workspace that running the plan needs, beside its sums.
    pub fn workspace(&self) -> Bytes {
        self.plan.workspace()
    }

    /// Puts the attention on the handle's stream.
    ///
    /// # Safety
    ///
    /// As for [`ExecutionPlan::execute`]; there is an address for every role that the pass has.
    pub unsafe fn execute(
        &self,
        tensors: &[(Role, u64)],
        workspace: u64,
    ) -> Result<(), CudnnError> {
        let tensors: Vec<(i64, u64)> = tensors
            .iter()
            .map(|(role, address)| (*role as i64, *address))
            .collect();
        // SAFETY: the caller's.
        unsafe { self.plan.execute(&tensors, workspace) }
    }
}

/// A graph under construction. Names of steps are the frontend's.
struct AttentionGraph<'a> {
    shape: &'a AttentionShape,
    io: cudnnDataType_t,
    graph: GraphBuilder,
}

impl AttentionGraph<'_> {
    fn input(&mut self, role: Role, layout: Layout) -> Result<TensorRef, CudnnError> {
        self.graph.input(role as i64, layout, self.io)
    }

    /// A score for each pair of positions.
    fn scores(&self) -> Layout {
        let [samples, heads, positions, _] = self.shape.query.dims;
        Layout::dense([samples, heads, positions, self.shape.key.dims[2]])
    }

    /// A number for each row of scores.
    fn rows(&self) -> Layout {
        let [samples, heads, positions, _] = self.shape.query.dims;
        Layout::dense([samples, heads, positions, 1])
    }

    /// A pointwise operation in float32 whose result is a new tensor.
    fn then(
        &mut self,
        mode: Pointwise,
        x: TensorRef,
        b: Option<TensorRef>,
        layout: Layout,
    ) -> Result<TensorRef, CudnnError> {
        let out = self.graph.between(layout, FLOAT)?;
        self.graph.pointwise(mode, [Some(x), b], out)?;
        Ok(out)
    }

    /// `query · keyᵀ`, scaled, and what is added to it.
    fn scaled_scores(
        &mut self,
        query: TensorRef,
        key: TensorRef,
        scale: TensorRef,
    ) -> Result<TensorRef, CudnnError> {
        let scores = self.scores();
        let products = self.graph.between(scores, FLOAT)?;
        self.graph.matmul(query, key, products)?;
        let multiply = Pointwise::CUDNN_POINTWISE_MUL;
        let scaled = self.then(multiply, products, Some(scale), scores)?;
        let Some(bias) = self.shape.bias else {
            return Ok(scaled);
        };
        let bias = self.input(Role::Bias, bias)?;
        self.then(Pointwise::CUDNN_POINTWISE_ADD, scaled, Some(bias), scores)
    }

    /// Minus infinity where the key's position is behind the query's.
    fn masked(&mut self, x: TensorRef) -> Result<TensorRef, CudnnError> {
        if !self.shape.causal {
            return Ok(x);
        }
        let scores = self.scores();
        let int = cudnnDataType_t::CUDNN_DATA_INT32;
        let row = self.graph.between(scores, int)?;
        self.graph.index(x, 2, row)?;
        let column = self.graph.between(scores, int)?;
        self.graph.index(x, 3, column)?;
        let seen = self
            .graph
            .between(scores, cudnnDataType_t::CUDNN_DATA_BOOLEAN)?;
        self.graph.at_least(row, column, seen)?;
        let hidden = self.graph.number(f32::NEG_INFINITY)?;
        let masked = self.graph.between(scores, FLOAT)?;
        self.graph.select(seen, x, hidden, masked)?;
        Ok(masked)
    }

    /// Ones for weights that are kept, where any are dropped.
    fn kept(&mut self) -> Result<Option<TensorRef>, CudnnError> {
        if self.shape.dropout == 0.0 {
            return Ok(None);
        }
        let int = cudnnDataType_t::CUDNN_DATA_INT64;
        let one = Layout::dense([1; 4]);
        let seed = self.graph.input(Role::Seed as i64, one, int)?;
        let offset = self.graph.input(Role::Offset as i64, one, int)?;
        let kept = self.graph.between(self.scores(), FLOAT)?;
        let probability = 1.0 - self.shape.dropout;
        self.graph.bernoulli(probability, [seed, offset], kept)?;
        Ok(Some(kept))
    }

    #[expect(clippy::cast_possible_truncation, reason = "cuDNN takes float32")]
    fn kept_part(&self) -> f32 {
        (1.0 - self.shape.dropout) as f32
    }

    fn forward(&mut self) -> Result<(), CudnnError> {
        let shape = self.shape;
        let (scores, rows) = (self.scores(), self.rows());
        let query = self.input(Role::Query, shape.query)?;
        let key = self.input(Role::Key, shape.key.transposed())?;
        let value = self.input(Role::Value, shape.value)?;
        let out = self.input(Role::Out, shape.out)?;
        let row_sums = Role::RowSums as i64;
        let row_sums = self.graph.input(row_sums, shape.row_sums, FLOAT)?;

        let scale = self.graph.number(shape.scale)?;
        let x = self.scaled_scores(query, key, scale)?;
        let x = self.masked(x)?;

        let most = self.graph.between(rows, FLOAT)?;
        self.graph
            .reduce(Reduction::CUDNN_REDUCE_TENSOR_MAX, x, most)?;
        let less = self.then(Pointwise::CUDNN_POINTWISE_SUB, x, Some(most), scores)?;
        let powers = self.then(Pointwise::CUDNN_POINTWISE_EXP, less, None, scores)?;
        let sum = self.graph.between(rows, FLOAT)?;
        self.graph
            .reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, powers, sum)?;
        let logarithm = self.then(Pointwise::CUDNN_POINTWISE_LOG, sum, None, rows)?;
        self.graph.pointwise(
            Pointwise::CUDNN_POINTWISE_ADD,
            [Some(most), Some(logarithm)],
            row_sums,
        )?;
        // The last tensor before the second product has the type of the operands.
        let drops = shape.dropout > 0.0;
        let last = if drops { FLOAT } else { self.io };
        let mut weights = self.graph.between(scores, last)?;
        self.graph.pointwise(
            Pointwise::CUDNN_POINTWISE_DIV,
            [Some(powers), Some(sum)],
            weights,
        )?;
        if let Some(kept) = self.kept()? {
            weights = self.then(Pointwise::CUDNN_POINTWISE_MUL, weights, Some(kept), scores)?;
            let part = self.kept_part();
            let raise = self.graph.number(1.0 / part)?;
            let raised = self.graph.between(scores, self.io)?;
            self.graph.pointwise(
                Pointwise::CUDNN_POINTWISE_MUL,
                [Some(weights), Some(raise)],
                raised,
            )?;
            weights = raised;
        }
        self.graph.matmul(weights, value, out)
    }

    fn backward(&mut self, gradients: &GradientLayouts) -> Result<(), CudnnError> {
        let shape = self.shape;
        let (scores, rows) = (self.scores(), self.rows());
        let [samples, heads, positions, width] = shape.query.dims;
        let keys = shape.key.dims[2];
        let query = self.input(Role::Query, shape.query)?;
        let key = self.input(Role::Key, shape.key.transposed())?;
        let value = self.input(Role::Value, shape.value.transposed())?;
        let out = self.input(Role::Out, shape.out)?;
        let grad = self.input(Role::Grad, gradients.out)?;
        let row_sums = Role::RowSums as i64;
        let row_sums = self.graph.input(row_sums, shape.row_sums, FLOAT)?;
        let row_products = self.graph.input(Role::RowProducts as i64, rows, FLOAT)?;
        let dense = Layout::dense(shape.query.dims);
        let query_sums = self.graph.input(Role::QuerySums as i64, dense, FLOAT)?;
        let scale = self.graph.number(shape.scale)?;
        let drops = shape.dropout > 0.0;
        let part = self.kept_part();
        let lower = self.graph.number(part)?;
        let raise = if drops {
            Some(self.graph.number(1.0 / part)?)
        } else {
            None
        };
        let kept = self.kept()?;

        // Row products: sum of grad * out.
        let by_position = Layout {
            dims: [samples, heads, positions, shape.value.dims[3]],
            strides: [
                heads * positions * shape.value.dims[3],
                positions * shape.value.dims[3],
                heads * shape.value.dims[3],
                1,
            ],
        };
        let x = self.then(Pointwise::CUDNN_POINTWISE_MUL, grad, Some(out), by_position)?;
        let sum = self.graph.between(rows, FLOAT)?;
        self.graph
            .reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, x, sum)?;
        self.graph.pointwise(
            Pointwise::CUDNN_POINTWISE_MUL,
            [Some(sum), Some(lower)],
            row_products,
        )?;

        // The weights again, and with them the values' gradient.
        let x = self.scaled_scores(query, key, scale)?;
        let x = self.then(Pointwise::CUDNN_POINTWISE_SUB, x, Some(row_sums), scores)?;
        let x = self.masked(x)?;
        let weights = self.then(Pointwise::CUDNN_POINTWISE_EXP, x, None, scores)?;
        let mut x = weights;
        if kept.is_some() {
            x = self.then(Pointwise::CUDNN_POINTWISE_MUL, x, kept, scores)?;
        }
        if raise.is_some() {
            x = self.then(Pointwise::CUDNN_POINTWISE_MUL, x, raise, scores)?;
        }
        let across = Layout {
            dims: [samples, heads, keys, positions],
            strides: [heads * positions * keys, positions * keys, 1, keys],
        };
        let turned = self.graph.between(across, self.io)?;
        self.graph.reshape(x, turned)?;
        self.for_keys(turned, grad, (Role::GradValue, gradients.value))?;

        // The scores' gradient, and with it those of keys and queries.
        let x = self.graph.between(scores, FLOAT)?;
        self.graph.matmul(grad, value, x)?;
        let mut x = x;
        if kept.is_some() {
            x = self.then(Pointwise::CUDNN_POINTWISE_MUL, x, kept, scores)?;
        }
        let x = self.then(
            Pointwise::CUDNN_POINTWISE_SUB,
            x,
            Some(row_products),
            scores,
        )?;
        let mut x = self.then(Pointwise::CUDNN_POINTWISE_MUL, x, Some(weights), scores)?;
        if raise.is_some() {
            x = self.then(Pointwise::CUDNN_POINTWISE_MUL, x, raise, scores)?;
        }
        let x = self.then(Pointwise::CUDNN_POINTWISE_MUL, x, Some(scale), scores)?;
        let turned = self.graph.between(across, self.io)?;
        self.graph.reshape(x, turned)?;
        self.for_keys(turned, query, (Role::GradKey, gradients.key))?;

        let upright = self.graph.between(shape.key, self.io)?;
        self.graph.reshape(key, upright)?;
        self.graph.matmul(x, upright, query_sums)?;
        let grad_query = self.input(Role::GradQuery, gradients.query)?;
        debug_assert_eq!(width, gradients.query.dims[3]);
        self.graph.pointwise(
            Pointwise::CUDNN_POINTWISE_IDENTITY,
            [Some(query_sums), None],
            grad_query,
        )
    }

    /// A gradient of keys or values, summed over the query heads that share one of theirs.
    fn for_keys(
        &mut self,
        turned: TensorRef,
        by: TensorRef,
        (role, layout): (Role, Layout),
    ) -> Result<(), CudnnError> {
        let result = self.input(role, layout)?;
        let [samples, heads, _, _] = self.shape.query.dims;
        let [_, own_heads, keys, width] = layout.dims;
        if heads == own_heads {
            return self.graph.matmul(turned, by, result);
        }
        let each = Layout::dense([samples, heads, keys, width]);
        let each = self.graph.between(each, self.io)?;
        self.graph.matmul(turned, by, each)?;
        self.graph
            .reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, each, result)
    }
}

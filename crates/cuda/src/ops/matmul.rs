//! Matrix products through cuBLASLt, in the arithmetic that PyTorch uses by default: float32 without
//! TF32, half types accumulated in float32.

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use cudarc::cublaslt::sys::{
    self, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t,
    cublasLtMatmulDescAttributes_t as DescAttribute,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute, cudaDataType,
};

use super::cublas::{Description, Layout, Preference, check, device, operation};
use crate::driver::error::GpuError;
use crate::driver::libraries::Library;
use crate::layout::Loop;
use crate::nvrtc::kernels::Queue;
use crate::ops::prelude::*;
use crate::plan::Step;

/// The library, with the plans made so far.
pub(crate) struct MatMul {
    plans: HashMap<Shape, ProductPlan>,
    handle: cublasLtHandle_t,
}

/// A product to be queued.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    shape: Shape,
    /// Of `a`, `b` and the result.
    addresses: [u64; 3],
    bias: Option<u64>,
}

/// Plans `a[..,m,k], b[..,k,n] (, bias[n]) -> out[..,m,n]`.
pub(crate) fn product(plan: &mut Plan, operands: &Operands<'_>) -> Queued {
    let (a, b, out) = (operands.input(0)?, operands.input(1)?, operands.output(0)?);
    let bias = operands.optional_input(2);
    let Some((matrices, leading)) = matrices_of([a, b, out]) else {
        let detail = format!("{:?} times {:?} is not {:?}", a.shape, b.shape, out.shape);
        return Err(operands.failed(detail));
    };
    let [a, b, out] = matrices;
    // The innermost of the leading dimensions is the library's; it is called for each index of the others.
    let innermost = leading.shape.len() - 1;
    let mut shape = shape_of(operands, &a, &b, &out, bias)?;
    shape.products = leading.shape[innermost];
    shape.steps = leading.strides.each_ref().map(|steps| steps[innermost]);
    let alignments = [
        &mut shape.a.alignment,
        &mut shape.b.alignment,
        &mut shape.out_alignment,
    ];
    for (alignment, steps) in alignments.into_iter().zip(&leading.strides) {
        for step in steps {
            *alignment = alignment_of(step * a.dtype.size()).min(*alignment);
        }
    }
    if shape.m * shape.n * shape.k * shape.products == 0 {
        return Ok(());
    }
    for at in leading.outer_offsets() {
        let address =
            |operand: &Operand, elements: u64| operand.address + elements * operand.dtype.size();
        plan.steps.push(Step::Product(Product {
            shape,
            addresses: [address(&a, at[0]), address(&b, at[1]), address(&out, at[2])],
            bias: bias.map(|bias| bias.address),
        }));
    }
    Ok(())
}

/// What a plan depends on. The library is column-major, so it is asked for the transposed product:
/// `out^T[n,m] = b^T[n,k] a^T[k,m]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    dtype: DType,
    m: u64,
    n: u64,
    k: u64,
    a: Side,
    b: Side,
    out_pitch: u64,
    out_alignment: u32,
    has_bias: bool,
    /// How many products are made in one call, and the elements between their operands `a`, `b` and `out`.
    products: u64,
    steps: [u64; 3],
}

/// An operand's layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Side {
    /// Whether neighbours lie in the first dimension rather than the second.
    is_transposed: bool,
    /// Elements between the starts of rows (of columns, when transposed).
    pitch: u64,
    /// The largest power of two up to 256 that divides the address.
    alignment: u32,
}

impl MatMul {
    /// Opens the library on the current context.
    pub(crate) fn open() -> Result<MatMul, GpuError> {
        Library::CublasLt.expect_present()?;
        let mut handle: cublasLtHandle_t = ptr::null_mut();
        // SAFETY: the library is present, a context is current, and `handle` is a place.
        check("cublasLtCreate", unsafe {
            sys::cublasLtCreate(&raw mut handle)
        })?;
        Ok(MatMul {
            plans: HashMap::new(),
            handle,
        })
    }

    /// Queues a product.
    pub(crate) fn launch(&mut self, queue: &mut Queue, product: &Product) -> Queued {
        let Product {
            shape,
            addresses: [a, b, out],
            bias,
        } = *product;
        let (workspace, room) = queue.scratch();
        let plan = match self.plans.entry(shape) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(ProductPlan::make(self.handle, &shape, room.0)?)
            }
        };
        if let Some(bias) = bias {
            plan.description
                .set(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        let singles = [1.0_f32, 0.0];
        let doubles = [1.0_f64, 0.0];
        let [alpha, beta]: [*const c_void; 2] = if shape.dtype == DType::Float64 {
            [
                (&raw const doubles[0]).cast(),
                (&raw const doubles[1]).cast(),
            ]
        } else {
            [
                (&raw const singles[0]).cast(),
                (&raw const singles[1]).cast(),
            ]
        };
        // SAFETY: handle, descriptors and algorithm are live and made for one another; alpha and beta are
        // on the host, of the type that the description says. The addresses are operands, looked up
        // to be device memory of ours before the launch. The workspace is as large as the heuristics were told, and work on the one stream uses
        // it in turn.
        check("cublasLtMatmul", unsafe {
            sys::cublasLtMatmul(
                self.handle,
                plan.description.0,
                alpha,
                device(b),
                plan.b.0,
                device(a),
                plan.a.0,
                beta,
                device(out),
                plan.out.0,
                device(out).cast_mut(),
                plan.out.0,
                &raw const plan.algorithm,
                device(workspace).cast_mut(),
                plan.workspace,
                queue.gpu().stream().cast(),
            )
        })?;
        queue.count_library_launch();
        Ok(())
    }
}

impl Drop for MatMul {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: created in `open` and not used after this.
        unsafe { sys::cublasLtDestroy(self.handle) };
    }
}

/// The matrices in the last two dimensions, and a loop over the others.
fn matrices_of(operands: [&Operand; 3]) -> Option<([Operand; 3], Loop<3>)> {
    let rank = operands[2].shape.len().checked_sub(2)?;
    let leading = &operands[2].shape[..rank];
    let mut steps = [const { Vec::new() }; 3];
    for (operand, steps) in operands.iter().zip(&mut steps) {
        let (own, matrix) = operand.shape.split_at(operand.shape.len().checked_sub(2)?);
        let part = Operand {
            shape: own.to_vec(),
            strides: operand.strides[..own.len()].to_vec(),
            ..**operand
        };
        debug_assert_eq!(matrix.len(), 2);
        *steps = part.strides_under(leading)?;
    }
    let matrices = operands.map(|operand| {
        let first = operand.shape.len() - 2;
        Operand {
            shape: operand.shape[first..].to_vec(),
            strides: operand.strides[first..].to_vec(),
            ..*operand
        }
    });
    let [a, b, out] = &steps;
    Some((matrices, Loop::in_order(leading, [a, b, out])))
}

#[allow(clippy::many_single_char_names)] // m, n and k are what everybody calls them.
fn shape_of(
    operands: &Operands<'_>,
    a: &Operand,
    b: &Operand,
    out: &Operand,
    bias: Option<&Operand>,
) -> Result<Shape, LaunchError> {
    let ([m, k], [k2, n], [m2, n2]) = (&a.shape[..], &b.shape[..], &out.shape[..]) else {
        return Err(operands.unsupported("tensors that are no matrices"));
    };
    let is_consistent = m == m2 && k == k2 && n == n2 && bias.is_none_or(|bias| bias.count() == *n);
    if !is_consistent {
        let detail = format!("{:?} times {:?} is not {:?}", a.shape, b.shape, out.shape);
        return Err(operands.failed(detail));
    }
    // In float64 the library adds no bias.
    if !a.dtype.is_float() || a.dtype == DType::Float64 && bias.is_some() {
        return Err(operands.unsupported(&a.dtype.to_string()));
    }
    if a.dtype != b.dtype || a.dtype != out.dtype {
        return Err(operands.failed("the operands are of different types".to_owned()));
    }
    let side = |operand: &Operand| {
        side_of(operand)
            .ok_or_else(|| operands.unsupported("a matrix with gaps in both dimensions"))
    };
    let out_side = side(out)?;
    if out_side.is_transposed {
        return Err(operands.unsupported("a transposed result"));
    }
    Ok(Shape {
        dtype: a.dtype,
        m: *m,
        n: *n,
        k: *k,
        a: side(a)?,
        b: side(b)?,
        out_pitch: out_side.pitch,
        out_alignment: out_side.alignment,
        has_bias: bias.is_some(),
        products: 1,
        steps: [0; 3],
    })
}

/// The largest power of two up to 256 that divides an address or a distance.
fn alignment_of(bytes: u64) -> u32 {
    1 << bytes.trailing_zeros().min(8)
}

fn side_of(operand: &Operand) -> Option<Side> {
    let ([rows, columns], [down, right]) = (&operand.shape[..], &operand.strides[..]) else {
        return None;
    };
    let alignment = alignment_of(operand.address);
    // A dimension of length one has no neighbours, so its stride says nothing.
    let side = |is_transposed, [outer, inner]: [u64; 2], [pitch, step]: [u64; 2]| {
        let is_taken = (inner == 1 || step == 1) && (outer == 1 || pitch >= inner);
        is_taken.then_some(Side {
            is_transposed,
            pitch: if outer == 1 { inner } else { pitch },
            alignment,
        })
    };
    let plain = side(false, [*rows, *columns], [*down, *right]);
    plain.or_else(|| side(true, [*columns, *rows], [*right, *down]))
}

/// Everything about a product but its addresses.
struct ProductPlan {
    description: Description,
    a: Layout,
    b: Layout,
    out: Layout,
    algorithm: cublasLtMatmulAlgo_t,
    workspace: usize,
}

impl ProductPlan {
    fn make(
        handle: cublasLtHandle_t,
        shape: &Shape,
        room: u64,
    ) -> Result<ProductPlan, LaunchError> {
        let dtype = match shape.dtype {
            DType::Float32 => cudaDataType::CUDA_R_32F,
            DType::Float16 => cudaDataType::CUDA_R_16F,
            DType::BFloat16 => cudaDataType::CUDA_R_16BF,
            DType::Float64 => cudaDataType::CUDA_R_64F,
            other => {
                return Err(LaunchError::Unsupported {
                    operation: format!("MatMul of {other}"),
                });
            }
        };
        let mut description = Description::create(dtype)?;
        // In column-major terms a row-major matrix is its own transpose.
        description.set(
            DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA,
            &operation(shape.b.is_transposed),
        )?;
        description.set(
            DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB,
            &operation(shape.a.is_transposed),
        )?;
        if shape.has_bias {
            let epilogue = cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            description.set(DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        }
        let out = Side {
            is_transposed: false,
            pitch: shape.out_pitch,
            alignment: shape.out_alignment,
        };
        let layout = |rows, columns, side: Side, step| {
            let (height, width) = if side.is_transposed {
                (rows, columns)
            } else {
                (columns, rows)
            };
            Layout::create(dtype, height, width, side.pitch)?.repeated(shape.products, step)
        };
        let a = layout(shape.m, shape.k, shape.a, shape.steps[0])?;
        let b = layout(shape.k, shape.n, shape.b, shape.steps[1])?;
        let out = layout(shape.m, shape.n, out, shape.steps[2])?;
        let mut preference = Preference::create()?;
        preference.set(
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            &room,
        )?;
        for (attribute, alignment) in [
            (
                PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                shape.b.alignment,
            ),
            (
                PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                shape.a.alignment,
            ),
            (
                PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                shape.out_alignment,
            ),
            (
                PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                shape.out_alignment,
            ),
        ] {
            preference.set(attribute, &alignment)?;
        }
        let mut found = MaybeUninit::uninit();
        let mut count = 0;
        // SAFETY: handle and descriptors are live; `found` has room for the one result asked for.
        check("cublasLtMatmulAlgoGetHeuristic", unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                description.0,
                b.0,
                a.0,
                out.0,
                out.0,
                preference.0,
                1,
                found.as_mut_ptr(),
                &raw mut count,
            )
        })?;
        if count == 0 {
            return Err(LaunchError::Failed {
                call: "cublasLtMatmulAlgoGetHeuristic".to_owned(),
                detail: format!("no algorithm for {shape:?}"),
            });
        }
        // SAFETY: the library wrote one result.
        let found = unsafe { found.assume_init() };
        check("cublasLtMatmulAlgoGetHeuristic", found.state)?;
        Ok(ProductPlan {
            description,
            a,
            b,
            out,
            algorithm: found.algo,
            workspace: found.workspaceSize,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(shape: [u64; 2], strides: [u64; 2]) -> Operand {
        Operand {
            address: 512,
            dtype: DType::Float32,
            shape: shape.to_vec(),
            strides: strides.to_vec(),
        }
    }

    #[test]
    fn a_transposed_view_is_told_from_a_plain_one() {
        let plain = side_of(&matrix([3, 5], [5, 1])).unwrap();
        let transposed = side_of(&matrix([3, 5], [1, 3])).unwrap();

        assert!(!plain.is_transposed);
        assert_eq!(plain.pitch, 5);
        assert!(transposed.is_transposed);
        assert_eq!(transposed.pitch, 3);
    }

    #[test]
    fn a_single_column_has_the_pitch_of_its_rows() {
        let column = side_of(&matrix([4, 1], [10, 7])).unwrap();

        assert!(!column.is_transposed);
        assert_eq!(column.pitch, 10);
    }

    #[test]
    fn an_expanded_matrix_has_no_side() {
        assert_eq!(side_of(&matrix([3, 5], [0, 1])), None);
    }
}

//! cuBLASLt's descriptors, each destroyed with the value that holds it.

use std::ffi::c_void;
use std::mem::size_of;
use std::ptr;

use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t as DescAttribute, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute, cublasLtMatrixLayout_t,
    cublasLtMatrixLayoutAttribute_t as LayoutAttribute, cublasStatus_t, cudaDataType,
};

use crate::driver::error::GpuError;

/// `CUBLAS_OP_T` or `CUBLAS_OP_N`, which the bindings of this library lack.
pub(crate) fn operation(is_transposed: bool) -> i32 {
    i32::from(is_transposed)
}

/// Declares a descriptor, by the library's functions that set its attributes and destroy it.
macro_rules! descriptor {
    ($name:ident($raw:ty), $attribute:ty, $set:ident, $destroy:ident) => {
        pub(crate) struct $name(pub(crate) $raw);

        impl $name {
            pub(crate) fn set<T>(
                &mut self,
                attribute: $attribute,
                value: &T,
            ) -> Result<(), GpuError> {
                // SAFETY: the descriptor is live, and the value is copied from a live place of that size.
                check(stringify!($set), unsafe {
                    sys::$set(
                        self.0,
                        attribute,
                        ptr::from_ref(value).cast(),
                        size_of::<T>(),
                    )
                })
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: created by this type and not used after this.
                unsafe { sys::$destroy(self.0) };
            }
        }
    };
}

descriptor!(
    Description(cublasLtMatmulDesc_t),
    DescAttribute,
    cublasLtMatmulDescSetAttribute,
    cublasLtMatmulDescDestroy
);
descriptor!(
    Layout(cublasLtMatrixLayout_t),
    LayoutAttribute,
    cublasLtMatrixLayoutSetAttribute,
    cublasLtMatrixLayoutDestroy
);
descriptor!(
    Preference(cublasLtMatmulPreference_t),
    PreferenceAttribute,
    cublasLtMatmulPreferenceSetAttribute,
    cublasLtMatmulPreferenceDestroy
);

impl Description {
    /// A product in float32, or in float64 of float64.
    pub(crate) fn create(dtype: cudaDataType) -> Result<Description, GpuError> {
        let (compute, scale) = match dtype {
            cudaDataType::CUDA_R_64F => (
                cublasComputeType_t::CUBLAS_COMPUTE_64F,
                cudaDataType::CUDA_R_64F,
            ),
            _ => (
                cublasComputeType_t::CUBLAS_COMPUTE_32F,
                cudaDataType::CUDA_R_32F,
            ),
        };
        let mut raw: cublasLtMatmulDesc_t = ptr::null_mut();
        // SAFETY: `raw` is a place for the handle.
        check("cublasLtMatmulDescCreate", unsafe {
            sys::cublasLtMatmulDescCreate(&raw mut raw, compute, scale)
        })?;
        Ok(Description(raw))
    }
}

impl Layout {
    /// A column-major matrix of this height and width, `pitch` elements between its columns.
    pub(crate) fn create(
        dtype: cudaDataType,
        height: u64,
        width: u64,
        pitch: u64,
    ) -> Result<Layout, GpuError> {
        let mut raw: cublasLtMatrixLayout_t = ptr::null_mut();
        // SAFETY: `raw` is a place for the handle.
        check("cublasLtMatrixLayoutCreate", unsafe {
            sys::cublasLtMatrixLayoutCreate(&raw mut raw, dtype, height, width, pitch.cast_signed())
        })?;
        Ok(Layout(raw))
    }

    /// So many matrices, `stride` elements between their starts.
    pub(crate) fn repeated(mut self, count: u64, stride: u64) -> Result<Layout, GpuError> {
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        self.set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count)?;
        self.set(
            LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
            &stride.cast_signed(),
        )?;
        Ok(self)
    }
}

impl Preference {
    pub(crate) fn create() -> Result<Preference, GpuError> {
        let mut raw: cublasLtMatmulPreference_t = ptr::null_mut();
        // SAFETY: `raw` is a place for the handle.
        check("cublasLtMatmulPreferenceCreate", unsafe {
            sys::cublasLtMatmulPreferenceCreate(&raw mut raw)
        })?;
        Ok(Preference(raw))
    }
}

/// A device address as the library takes it.
pub(crate) fn device(address: u64) -> *const c_void {
    ptr::without_provenance(usize::try_from(address).expect("CUDA runs on 64-bit machines alone"))
}

pub(crate) fn check(call: &'static str, status: cublasStatus_t) -> Result<(), GpuError> {
    match status {
        cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(GpuError::Call {
            call,
            detail: format!("{status:?}"),
        }),
    }
}

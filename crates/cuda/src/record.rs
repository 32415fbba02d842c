//! Asking a card's convolution library for what a simulated card should know.

use std::fmt::Display;
use std::io::Write;
use std::rc::Rc;

use super::cudnn::{self, AbsentCard, CardProperties, Handle, QueryTarget, WorkspaceRecording};
use super::driver::error::GpuError;
use super::driver::gpu::Gpu;

/// What a failure of one of these calls is.
fn failed<E: Display>(call: &'static str) -> impl FnOnce(E) -> GpuError {
    move |error| GpuError::Call {
        call,
        detail: error.to_string(),
    }
}

/// Writes the plans of many convolutions, for [`crate::device::sim::workspaces::condense`] to read;
/// the number of convolutions asked about.
pub fn record_workspaces(
    gpu: &Rc<Gpu>,
    recording: &WorkspaceRecording<'_>,
    out: &mut impl Write,
) -> Result<usize, GpuError> {
    // SAFETY: `gpu` keeps its context current on this thread and its stream alive for longer than the
    // handle, which does not leave this function.
    let handle = unsafe { Handle::create(gpu.stream()) }.map_err(failed("cudnnCreate"))?;
    cudnn::record(&QueryTarget::Card(&handle), recording, out).map_err(failed("recording plans"))
}

/// The same of a card that is not there, asked of cuDNN's heuristics alone. The process has to have [`cudnn::environment`].
pub fn record_workspaces_of_absent(
    card: &CardProperties,
    recording: &WorkspaceRecording<'_>,
    out: &mut impl Write,
) -> Result<usize, GpuError> {
    let card = AbsentCard::new(card).map_err(failed("describing a card to cuDNN"))?;
    cudnn::record(&QueryTarget::Absent(&card), recording, out).map_err(failed("recording plans"))
}

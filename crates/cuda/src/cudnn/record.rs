//! Records which plans cuDNN offers on this card, for the tables that simulated cards use.
//!
//! The output is text. A line `J` opens a job (one pass of one layer in one element type); each
//! following line is a batch with the job's plans in order, up to the first that needs no
//! workspace. A plan is written as its number in the list of `T` lines (tags), followed by
//! `:workspace` unless the workspace continues the straight line through the plan's last two
//! batches in this job. `tests` below read it back.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Instant;

use crate::device::sim::workspaces::layer_text;
use crate::program::{Convolution, ConvolutionLayer, ConvolutionPass};
use crate::shape::DType;
use crate::units::Bytes;

use super::candidates::first_offer;
use super::{ALIGNMENT, AbsentCard, CudnnError, ExecutionPlan, Handle, Offer, Tf32, list_plans};

/// Which batches to record: all from `first` to `dense_to`, then in relative steps up to `largest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchGrid {
    /// The first batch, at least 1.
    pub first: u64,
    /// Every batch from the first up to this one is recorded.
    pub dense_to: u64,
    /// Relative step after that, in thousandths.
    pub step_permille: u64,
    /// The last batch is at most this.
    pub largest: u64,
}

impl BatchGrid {
    /// The batches, ascending.
    pub fn batches(self) -> impl Iterator<Item = u64> {
        let next = move |batch: &u64| {
            let step = if *batch < self.dense_to {
                1
            } else {
                batch * self.step_permille / 1000
            };
            Some(batch + step.max(1)).filter(|next| *next <= self.largest)
        };
        std::iter::successors(
            Some(self.first).filter(|first| *first <= self.largest),
            next,
        )
    }
}

/// What to record.
#[derive(Debug, Clone, Copy)]
pub struct WorkspaceRecording<'a> {
    /// The layers.
    pub layers: &'a [ConvolutionLayer],
    /// In which element types.
    pub dtypes: &'a [DType],
    /// At which batches, ascending.
    pub batches: &'a [u64],
    /// Only the plan that is tried first, which takes a fiftieth of the time, and after it one that needs nothing.
    pub only_first: bool,
    /// A tensor larger than this ends a job: no card could hold it.
    pub most_bytes: Bytes,
    /// When to stop: layers that are not begun by then are left out.
    pub until: Option<Instant>,
}

/// Who is asked about a convolution's plans.
pub enum QueryTarget<'a> {
    /// The card that is there.
    Card(&'a Handle),
    /// One that is not.
    Absent(&'a AbsentCard),
}

impl QueryTarget<'_> {
    fn offers(&self, call: &Convolution, only_first: bool) -> Result<Vec<Offer>, CudnnError> {
        if only_first {
            return self.first(call);
        }
        match self {
            QueryTarget::Card(handle) => {
                let plans = list_plans(handle, call, ALIGNMENT, Tf32::Allowed)?;
                let offer = |plan: &ExecutionPlan| {
                    Ok(Offer {
                        tag: plan.tag()?,
                        workspace: plan.workspace(),
                    })
                };
                plans.iter().map(offer).collect()
            }
            QueryTarget::Absent(card) => card.offers(call, Tf32::Allowed),
        }
    }

    /// The plan that is tried first, and one that needs nothing, unless the first does.
    fn first(&self, call: &Convolution) -> Result<Vec<Offer>, CudnnError> {
        let first = match self {
            QueryTarget::Card(handle) => first_offer(handle, call, ALIGNMENT, Tf32::Allowed)?,
            QueryTarget::Absent(card) => card.first_offer(call, Tf32::Allowed)?,
        };
        let last = Offer {
            tag: "last".to_owned(),
            workspace: Bytes::ZERO,
        };
        Ok(if first.workspace == Bytes::ZERO {
            vec![first]
        } else {
            vec![first, last]
        })
    }
}

/// Writes a recording; the number of convolutions asked about. Jobs of which an absent card has no answer are left out.
pub fn record(
    asked_of: &QueryTarget<'_>,
    recording: &WorkspaceRecording<'_>,
    out: &mut impl Write,
) -> io::Result<usize> {
    let mut tags = Tags::default();
    let mut asked = 0;
    for layer in recording.layers {
        if recording.until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        for dtype in recording.dtypes {
            for pass in ConvolutionPass::ALL {
                let batches = recording.batches.iter();
                let calls = batches
                    .map(|batch| layer.call(pass, *dtype, *batch))
                    .take_while(|call| !is_larger(call, recording.most_bytes));
                asked += record_job((asked_of, recording.only_first), calls, &mut tags, out)?;
            }
        }
    }
    tags.write(out)?;
    Ok(asked)
}

/// Writes one job: the same pass of a layer at ascending batches.
fn record_job(
    (asked_of, only_first): (&QueryTarget<'_>, bool),
    calls: impl Iterator<Item = Convolution>,
    tags: &mut Tags,
    out: &mut impl Write,
) -> io::Result<usize> {
    let mut lines = Lines::default();
    let mut asked = 0;
    for call in calls {
        let plans = match asked_of.offers(&call, only_first) {
            // What is not supported there is not recorded.
            Err(refusal) if matches!(asked_of, QueryTarget::Absent(_)) && refusal.is_refusal() => {
                break;
            }
            plans => plans.map_err(io::Error::other)?,
        };
        if asked == 0 {
            let (dtype, pass) = (dtype_text(call.dtype), pass_text(call.pass));
            writeln!(out, "J {} {dtype} {pass}", layer_text(&call.layer))?;
        }
        asked += 1;
        write!(out, "{}", call.batch)?;
        for plan in &plans {
            let tag = tags.number(plan.tag.clone());
            if lines.continues(tag, call.batch, plan.workspace) {
                write!(out, " {tag}")?;
            } else {
                write!(out, " {tag}:{}", plan.workspace.0)?;
            }
        }
        writeln!(out)?;
    }
    Ok(asked)
}

/// Numbers for plan tags, in order of appearance.
#[derive(Debug, Default)]
struct Tags(HashMap<String, usize>);

impl Tags {
    fn number(&mut self, tag: String) -> usize {
        let next = self.0.len();
        *self.0.entry(tag).or_insert(next)
    }

    /// Writes the `T` lines.
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut tags: Vec<_> = self.0.iter().collect();
        tags.sort_by_key(|(_, number)| **number);
        tags.iter()
            .try_for_each(|(tag, number)| writeln!(out, "T {number} {tag}"))
    }
}

/// The straight line that each plan's workspace follows as the batch grows.
#[derive(Debug, Default)]
struct Lines(HashMap<usize, [(u64, u64); 2]>);

impl Lines {
    /// Whether the workspace is the one that the plan's last two batches foretell; takes it in.
    fn continues(&mut self, tag: usize, batch: u64, workspace: Bytes) -> bool {
        let here = (batch, workspace.0);
        let Some([first, last]) = self.0.get_mut(&tag) else {
            self.0.insert(tag, [here, here]);
            return false;
        };
        if last.0 == batch {
            return last.1 == workspace.0;
        }
        let wide = |(batch, bytes): (u64, u64)| (i128::from(batch), i128::from(bytes));
        let ((b0, w0), (b1, w1), (b2, w2)) = (wide(*first), wide(*last), wide(here));
        let continues = b0 < b1 && (w1 - w0) * (b2 - b1) == (w2 - w1) * (b1 - b0);
        (*first, *last) = (*last, here);
        continues
    }
}

/// Whether one of the two tensors that grow with the batch is larger than this.
fn is_larger(call: &Convolution, most: Bytes) -> bool {
    let [x, _, y] = call.operands().elements();
    x.max(y).saturating_mul(call.dtype.size()) > most.0
}

fn dtype_text(dtype: DType) -> &'static str {
    match dtype {
        DType::Float32 => "f32",
        DType::Float16 => "f16",
        DType::BFloat16 => "bf16",
        _ => "other",
    }
}

fn pass_text(pass: ConvolutionPass) -> &'static str {
    match pass {
        ConvolutionPass::Forward => "forward",
        ConvolutionPass::GradInput => "grad_input",
        ConvolutionPass::GradWeight => "grad_weight",
    }
}

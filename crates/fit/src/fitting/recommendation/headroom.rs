//! How far an answer may be wrong, by what is not known about it, and so what it leaves free; what outcomes of earlier answers have taught
//! and what the request says count, too.
//!
//! Shares of the limit by which peak reserved memory was predicted too low; see Note [Measured errors].
#![doc = include_str!("../NOTES.md")]

use std::sync::Arc;

use crate::graph::{Graph, Lifetimes};
use crate::model::{CalibrationSource, HeadroomCalibration, Request, Variant, strategy};
use crate::ops::{Matmul, Op};
use crate::search::headroom::{Doubt, Doubts};
use crate::shape::{Extent, numel};
use crate::units::{Bytes, Share};
use crate::{Headroom, HeadroomFrom, MARGIN};

/// Something that was assumed instead of known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Uncertainty {
    /// Where the driver places segments decides which of two equal blocks is reused.
    Driver,
    /// When Python lets go of values in an attention model whose graph does not say.
    Lifetimes,
    /// The scratch memory of convolutions that were never recorded: so much more may the largest take than its estimate. One that
    /// is refused takes another plan, so no more than [`WORKSPACES`] of the limit is left free for it.
    Workspaces(Bytes),
    /// The same where some are of groups over volumes, of which few were recorded. See Note [Measured errors].
    GroupedVolumes,
    /// Custom autograd functions whose backward passes were not traced.
    Functions,
    /// Rules that were measured on another card.
    Card,
    /// Memory of a recording whose size, or existence, does not follow from the recorded batches.
    Extrapolated(Bytes),
    /// Kernels may take other scratch memory at batches so many times as large as the largest recorded one; in doublings.
    Far(u32),
    /// Where segments lie, and kernels that choose other algorithms, a little beyond a batch that ran and reserved what was
    /// predicted, or so much more: a share of the limit, in millionths.
    Beyond(u32),
    /// A run reserved so much more than was predicted.
    Short(Bytes),
    /// Operators that are not known and were taken to be elementwise: this passes through them in a forward
    /// pass of the probed batch.
    Assumed(Bytes),
}

/// What of the limit is left free for each doubling of the batch, from the second above the largest recorded one on. See
/// Note [Extrapolated sizes].
const FAR: f64 = 0.0025;

/// What part of memory of unsolved size is left free for it. See Note [Extrapolated sizes].
const EXTRAPOLATED: u64 = 8;

/// The part of the limit that is left free at most for scratch memory that was not recorded: a tenth. A convolution that is refused its
/// workspace takes another plan and keeps it, which simulation of a lower limit shows; see Note [Steady batches] in `search`.
const WORKSPACES: u64 = 10;

impl Uncertainty {
    /// What it adds to the headroom, as a share of the limit.
    pub(crate) fn share(self) -> f64 {
        match self {
            Uncertainty::Driver => 0.005,
            Uncertainty::Lifetimes | Uncertainty::Card => 0.01,
            Uncertainty::Functions => 0.16,
            Uncertainty::GroupedVolumes => 0.12,
            Uncertainty::Far(doublings) => FAR * f64::from(doublings),
            Uncertainty::Beyond(millionths) => f64::from(millionths) / 1e6,
            Uncertainty::Workspaces(_)
            | Uncertainty::Extrapolated(_)
            | Uncertainty::Short(_)
            | Uncertainty::Assumed(_) => 0.0,
        }
    }

    /// What it adds to the headroom below `limit` beside that share, at the batch that was probed.
    pub(crate) fn bytes(self, limit: Bytes) -> Bytes {
        match self {
            Uncertainty::Driver
            | Uncertainty::Lifetimes
            | Uncertainty::Card
            | Uncertainty::Far(_)
            | Uncertainty::Beyond(_)
            | Uncertainty::GroupedVolumes
            | Uncertainty::Functions => Bytes::ZERO,
            Uncertainty::Workspaces(bytes) => bytes.min(Bytes(limit.0 / WORKSPACES)),
            Uncertainty::Short(bytes) | Uncertainty::Assumed(bytes) => bytes,
            Uncertainty::Extrapolated(bytes) => Bytes(bytes.0 / EXTRAPOLATED),
        }
    }

    /// What it is about, for what outcomes teach of such doubts.
    fn doubt(self) -> Doubt {
        match self {
            Uncertainty::Driver | Uncertainty::Beyond(_) => Doubt::Driver,
            Uncertainty::Lifetimes => Doubt::Lifetimes,
            Uncertainty::Workspaces(_) | Uncertainty::GroupedVolumes => Doubt::Workspaces,
            Uncertainty::Functions => Doubt::Functions,
            Uncertainty::Card => Doubt::Card,
            Uncertainty::Extrapolated(_) => Doubt::Extrapolated,
            Uncertainty::Far(_) => Doubt::Far,
            Uncertainty::Short(_) => Doubt::Short,
            Uncertainty::Assumed(_) => Doubt::Assumed,
        }
    }

    /// What the reader is told.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Uncertainty::Driver => "where the GPU driver places memory",
            Uncertainty::Lifetimes => {
                "how long Python keeps its variables, which is not in the graph"
            }
            Uncertainty::Workspaces(_) | Uncertainty::GroupedVolumes => {
                "the scratch memory of convolutions, where it is estimated"
            }
            Uncertainty::Functions => {
                "the backward passes of custom autograd functions, which could not be traced"
            }
            Uncertainty::Card => "this card, on which batchfit was not measured",
            Uncertainty::Far(_) => {
                "kernels that choose other algorithms at batches much larger than the recorded ones"
            }
            Uncertainty::Beyond(_) => {
                "what may be other at a batch a little larger than one that ran"
            }
            Uncertainty::Short(_) => "what a run reserved beyond what was predicted",
            Uncertainty::Extrapolated(_) => {
                "memory whose size does not follow from the recorded batches; record a larger one"
            }
            Uncertainty::Assumed(_) => "the operators that batchfit does not know",
        }
    }
}

/// What is left free at the least where a batch near by ran, in millionths of the limit, and what there is where none did:
/// that of [`Uncertainty::Driver`]. See Note [Near a batch that ran].
const NEAR: [u32; 2] = [500, 5000];

impl Uncertainty {
    /// How near a batch is to a smaller one that ran: 0 at that one, 1 at half as much again and beyond.
    pub(crate) fn distance(batch: u64, ran: u64) -> f64 {
        let beyond = batch.saturating_sub(ran) as f64;
        (2.0 * beyond / ran.max(1) as f64).min(1.0)
    }

    /// What is left free at so far from a batch that ran.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a few thousand"
    )]
    pub(crate) fn beyond(distance: f64) -> Uncertainty {
        let [least, most] = NEAR.map(f64::from);
        Uncertainty::Beyond((least + (most - least) * distance) as u32)
    }
}

/// What of `limit` is left free for all of these.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the share is clamped to 0..=1, and a byte more or less of headroom does not matter"
)]
pub(crate) fn headroom(uncertainties: &[Uncertainty], limit: Bytes) -> Bytes {
    let share: f64 = uncertainties
        .iter()
        .map(|uncertainty| uncertainty.share())
        .sum();
    let bytes: Bytes = uncertainties
        .iter()
        .map(|uncertainty| uncertainty.bytes(limit))
        .sum();
    Bytes((limit.0 as f64 * share.clamp(0.0, 1.0)) as u64) + bytes
}

/// How much of `limit` is left free for each.
pub(crate) fn doubts(uncertainties: &[Uncertainty], limit: Bytes) -> Doubts {
    let share = |it: &Uncertainty| Share::of(headroom(&[*it], limit), limit);
    let doubts = uncertainties.iter().map(|it| (it.doubt(), share(it)));
    doubts.collect()
}

/// What is not known about the model itself. A real probe does not find it out: it runs the program that was
/// compiled, where the driver happens to put its segments.
pub(crate) fn of_graph(graph: &Graph) -> Vec<Uncertainty> {
    let attends = graph
        .nodes
        .iter()
        .any(|node| matches!(node.op, Op::Attention(_) | Op::Matmul(Matmul::Matmul)));
    let mut uncertainties = match graph.lifetimes() {
        Lifetimes::Assumed if attends => vec![Uncertainty::Driver, Uncertainty::Lifetimes],
        Lifetimes::Assumed | Lifetimes::Recorded => vec![Uncertainty::Driver],
    };
    if !graph.untraced_functions.is_empty() {
        uncertainties.push(Uncertainty::Functions);
    }
    uncertainties
}

/// Who says what is left free of one variant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum VariantHeadroom {
    /// What its probes had to assume.
    #[default]
    ByDoubts,
    /// Outcomes, where they ask for more, or have shown that less is enough for such doubts: one for each limit of which something is known,
    /// and one for all others.
    Learnt(Arc<[HeadroomCalibration]>),
    /// The request.
    Asked(Share),
}

impl VariantHeadroom {
    /// Of a request's variant.
    pub(crate) fn of(request: &Request, variant: &Variant) -> VariantHeadroom {
        if let Some(asked) = request.headroom {
            return VariantHeadroom::Asked(asked);
        }
        let named = strategy(&variant.parallel);
        let training = request.training_digest(variant);
        let is_of = |it: &&HeadroomCalibration| {
            it.strategy == named && (it.training.is_empty() || it.training == training)
        };
        let all: Arc<[_]> = request
            .calibration()
            .iter()
            .filter(is_of)
            .cloned()
            .collect();
        if all.is_empty() {
            VariantHeadroom::ByDoubts
        } else {
            VariantHeadroom::Learnt(all)
        }
    }

    /// What was learnt below this limit.
    fn learnt(&self, limit: Bytes) -> Option<&HeadroomCalibration> {
        let VariantHeadroom::Learnt(all) = self else {
            return None;
        };
        let near = all
            .iter()
            .find(|it| it.limit.is_some() && it.limit == limit.0.checked_ilog2());
        near.or_else(|| all.iter().find(|it| it.limit.is_none()))
    }

    /// The same of an answer below `limit` that leaves so much for what one other key alone asks for, up to all of that; `None` where none
    /// asks for more.
    pub(crate) fn with_unconfirmed(&self, left: Share, limit: Bytes) -> Option<VariantHeadroom> {
        let learnt = self.learnt(limit)?;
        let share = left.clamp(learnt.share, learnt.unconfirmed.max(learnt.share));
        (learnt.unconfirmed > learnt.share).then(|| {
            let limit = None;
            let asked = HeadroomCalibration {
                limit,
                share,
                ..learnt.clone()
            };
            VariantHeadroom::Learnt([asked].into())
        })
    }

    /// The same of an answer that reserves so much, and leaves the rest for that.
    pub(crate) fn beside(self, reserved: Bytes, limit: Bytes) -> VariantHeadroom {
        let left = limit.saturating_sub(reserved);
        // Rounded down.
        let left = Share(Share::of(left, limit).0.saturating_sub(1));
        self.with_unconfirmed(left, limit).unwrap_or(self)
    }

    /// The headroom below `limit`.
    pub(crate) fn bytes(&self, uncertainties: &[Uncertainty], limit: Bytes) -> Bytes {
        let doubted = headroom(uncertainties, limit);
        match self {
            VariantHeadroom::ByDoubts => doubted,
            VariantHeadroom::Asked(share) => share.bytes(limit),
            VariantHeadroom::Learnt(_) => self.learnt(limit).map_or(doubted, |learnt| {
                let times = learnt.halved.times(&doubts(uncertainties, limit));
                let kept = doubted.0.checked_shr(times).unwrap_or(0);
                learnt.share.bytes(limit).max(Bytes(kept))
            }),
        }
    }

    /// The same for the answer's document.
    pub(crate) fn document(&self, uncertainties: &[Uncertainty], limit: Bytes) -> Headroom {
        let doubts = doubts(uncertainties, limit);
        let (share, from, outcomes) = match (self, self.learnt(limit)) {
            (VariantHeadroom::Asked(share), _) => (*share, HeadroomFrom::Asked, 0),
            (_, None) => (doubts.total(), HeadroomFrom::Default, 0),
            (_, Some(learnt)) => {
                let kept = learnt.halved.kept(&doubts);
                let from = match learnt.of {
                    _ if kept == doubts.total() && kept > learnt.share => HeadroomFrom::Default,
                    CalibrationSource::Itself => HeadroomFrom::Learnt,
                    CalibrationSource::Others => HeadroomFrom::Others,
                };
                let is_taught = from != HeadroomFrom::Default;
                let outcomes = if is_taught { learnt.outcomes } else { 0 };
                (learnt.share.max(kept), from, outcomes)
            }
        };
        Headroom {
            fraction: share.fraction(),
            from,
            outcomes,
            doubts: doubts
                .each()
                .map(|(doubt, share)| (doubt, share.fraction()))
                .collect(),
        }
    }

    /// What a reader is told of it.
    pub(crate) fn why(&self, uncertainties: &[Uncertainty], limit: Bytes) -> String {
        let left = self.bytes(uncertainties, limit);
        let document = self.document(uncertainties, limit);
        match document.from {
            HeadroomFrom::Default => kept_free(left, uncertainties, limit),
            HeadroomFrom::Asked => {
                format!("headroom is {left} of the limit, because the request sets it")
            }
            HeadroomFrom::Learnt => {
                let outcomes = match document.outcomes {
                    1 => "one outcome".to_owned(),
                    outcomes => format!("{outcomes} outcomes"),
                };
                format!(
                    "headroom is {left} of the limit, learnt from {outcomes} of earlier answers for this model and card"
                )
            }
            HeadroomFrom::Others => format!(
                "headroom is {left} of the limit, learnt from outcomes of other models on this card"
            ),
        }
    }
}

/// What a reader is told of the headroom.
fn kept_free(headroom: Bytes, uncertainties: &[Uncertainty], limit: Bytes) -> String {
    let figure = |uncertainty: &Uncertainty| match uncertainty.bytes(limit) {
        Bytes::ZERO => format!("{:.1}%", uncertainty.share() * 100.0),
        bytes => bytes.to_string(),
    };
    let reasons: Vec<String> = uncertainties
        .iter()
        .map(|uncertainty| format!("{} for {}", figure(uncertainty), uncertainty.reason()))
        .collect();
    format!(
        "{headroom} of the limit are kept{MARGIN} {}",
        reasons.join(", ")
    )
}

/// Elements that pass through operators taken to be elementwise, each operand and result with its size in bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Assumed(Vec<(Extent, u64)>);

impl Assumed {
    /// Those of a graph, in the types that it was exported in: float32, where autocast may have half of it.
    pub(crate) fn of(graph: &Graph) -> Assumed {
        let opaque = graph
            .nodes
            .iter()
            .filter(|node| matches!(node.op, Op::Opaque(_)));
        let values = opaque.flat_map(|node| node.inputs.iter().chain(&node.outputs));
        let sized = |id: &crate::graph::ValueId| {
            let value = graph.value(*id);
            (numel(&value.shape), value.dtype.size())
        };
        Assumed(values.map(sized).collect())
    }

    /// The uncertainty about a batch, if there is one.
    pub(crate) fn at(&self, batch: u64) -> Option<Uncertainty> {
        let bytes = |(elements, size): &(Extent, u64)| elements.at(batch).saturating_mul(*size);
        let all = self.0.iter().map(bytes).fold(0, u64::saturating_add);
        (!self.0.is_empty()).then_some(Uncertainty::Assumed(Bytes(all)))
    }
}

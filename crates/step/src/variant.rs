//! How the model is trained: everything besides the model that decides what a step allocates.

use std::fmt;

use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Parallel;
use crate::shape::DType;

listed! {
    /// Which precision the forward and backward pass run in.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Precision {
        /// No autocast: everything in float32, or in the types that a graph of several types was exported in.
        #[default]
        Fp32 = "fp32",
        /// `torch.autocast(dtype=float16)` and a `GradScaler`; parameters in float32, or in the half precision
        /// that a graph was exported in.
        AmpFp16 = "amp_fp16",
        /// `torch.autocast(dtype=bfloat16)`; parameters in float32, or in the half precision that a graph was
        /// exported in.
        AmpBf16 = "amp_bf16",
        /// Parameters and everything else in bfloat16.
        Bf16 = "bf16",
        /// Parameters and everything else in float16.
        Fp16 = "fp16",
    }
}

impl Precision {
    /// What something that is `exported` in a graph is stored in: half precision converts the whole model, and every other
    /// precision leaves each type as it is.
    pub fn stored(self, exported: DType) -> DType {
        let wanted = self.parameters();
        if wanted == DType::Float32 || !exported.is_float() {
            exported
        } else {
            wanted
        }
    }

    /// What parameters of a float32 graph are stored in.
    pub const fn parameters(self) -> DType {
        match self {
            Precision::Fp32 | Precision::AmpFp16 | Precision::AmpBf16 => DType::Float32,
            Precision::Bf16 => DType::BFloat16,
            Precision::Fp16 => DType::Float16,
        }
    }

    /// What autocast casts to, where there is autocast.
    pub const fn autocast(self) -> Option<DType> {
        match self {
            Precision::AmpFp16 => Some(DType::Float16),
            Precision::AmpBf16 => Some(DType::BFloat16),
            Precision::Fp32 | Precision::Bf16 | Precision::Fp16 => None,
        }
    }
}

listed! {
    /// Which optimizer updates the parameters.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
    pub enum Optimizer {
        /// `torch.optim.SGD` without momentum.
        #[serde(rename = "sgd")]
        Sgd = "sgd",
        /// `torch.optim.SGD` with momentum.
        #[serde(rename = "sgd_momentum")]
        SgdMomentum = "sgd_momentum",
        /// `torch.optim.Adam`.
        #[serde(rename = "adam")]
        Adam = "adam",
        /// `torch.optim.AdamW`.
        #[default]
        #[serde(rename = "adamw")]
        Adamw = "adamw",
        /// `bitsandbytes.optim.AdamW8bit`: moments in eight bits.
        #[serde(rename = "adamw_8bit")]
        Adamw8bit = "adamw_8bit",
        /// The same as transformers' Trainer makes it for `adamw_bnb_8bit`: embeddings keep float32 moments.
        #[serde(rename = "adamw_bnb_8bit")]
        AdamwBnb8bit = "adamw_bnb_8bit",
        /// `bitsandbytes.optim.PagedAdamW8bit`: the moments of large parameters in memory that the driver moves to the
        /// host and back.
        #[serde(rename = "paged_adamw_8bit")]
        PagedAdamw8bit = "paged_adamw_8bit",
        /// `torchao.optim.AdamW8bit`.
        #[serde(rename = "adamw_8bit_torchao")]
        Adamw8bitTorchao = "adamw_8bit_torchao",
        /// `torch.optim.Adafactor`: of a matrix's second moments, sums over rows and columns.
        #[serde(rename = "adafactor")]
        Adafactor = "adafactor",
        /// `transformers.optimization.Adafactor`, as the Trainer makes it: with a learning rate, which no parameter scales.
        #[serde(rename = "adafactor_transformers")]
        AdafactorTransformers = "adafactor_transformers",
    }
}

impl Optimizer {
    /// How it can be implemented; the first is what its library does unless it is told otherwise.
    pub const fn implementations(self) -> &'static [OptimizerImpl] {
        match self {
            Optimizer::Sgd | Optimizer::SgdMomentum | Optimizer::Adam | Optimizer::Adamw => &[
                OptimizerImpl::Foreach,
                OptimizerImpl::Fused,
                OptimizerImpl::ForLoop,
            ],
            Optimizer::Adafactor => &[OptimizerImpl::ForLoop, OptimizerImpl::Foreach],
            Optimizer::Adamw8bit
            | Optimizer::AdamwBnb8bit
            | Optimizer::PagedAdamw8bit
            | Optimizer::Adamw8bitTorchao
            | Optimizer::AdafactorTransformers => &[OptimizerImpl::ForLoop],
        }
    }

    /// Whether it is PyTorch's own and updates shards of parameters as it updates parameters.
    pub const fn takes_shards(self) -> bool {
        matches!(
            self,
            Optimizer::Sgd | Optimizer::SgdMomentum | Optimizer::Adam | Optimizer::Adamw
        )
    }

    /// Whether it is known how long its updates take: those that were measured, or are made of kernels that were.
    pub const fn is_timed(self) -> bool {
        matches!(
            self,
            Optimizer::Sgd | Optimizer::SgdMomentum | Optimizer::Adam | Optimizer::Adamw
        )
    }
}

listed! {
    /// How the optimizer goes through the parameters.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum OptimizerImpl {
        /// All parameters in a few launches, with temporaries as large as the parameters. PyTorch's default, but for Adafactor.
        #[default]
        Foreach = "foreach",
        /// `fused=True`: no temporaries.
        Fused = "fused",
        /// `foreach=False`: one parameter after the other.
        ForLoop = "for_loop",
    }
}

/// Which modules drop their activations and compute them again in the backward pass.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checkpointing {
    /// None.
    #[default]
    None,
    /// Every repeated block: see Note [Which blocks are checkpointed] in the compiler.
    PerBlock,
    /// Modules whose path matches one of these globs.
    Modules(Vec<String>),
}

impl Checkpointing {
    /// Its word in tables.
    pub const fn name(&self) -> &'static str {
        match self {
            Checkpointing::None => "none",
            Checkpointing::PerBlock => "per_block",
            Checkpointing::Modules(_) => "modules",
        }
    }
}

listed! {
    /// Training or inference.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Mode {
        /// Forward, backward, optimizer.
        #[default]
        Train = "train",
        /// Forward alone, under `no_grad`, in eval mode.
        Inference = "inference",
    }
}

listed! {
    /// Which variants are ranked against each other.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Compare {
        /// Those with the same optimizer; the optimizer that was named first comes first.
        #[default]
        WithinOptimizer = "within_optimizer",
        /// All.
        AcrossOptimizers = "across_optimizers",
    }
}

listed! {
    /// What a fit looks for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Objective {
        /// The largest micro-batch that is safe, or the fewest accumulation steps.
        #[default]
        LargestBatch = "largest_batch",
        /// The smallest micro-batch with nearly the best speed.
        Throughput = "throughput",
    }
}

impl Variant {
    /// Most micro-steps for each optimizer step, asked for or advised: a hundred times what trainings accumulate.
    pub const MOST_ACCUMULATION: u64 = 65_536;
}

/// One way of running the model: a step program is compiled for each. A field that is no list in a request is read by its name, as the row of
/// that member says.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, remote = "Self")]
pub struct Variant {
    /// Whether recordings decide all of this but the number of micro-steps; the other fields then say nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recorded: bool,
    /// Precision of forward and backward.
    pub precision: Precision,
    /// Optimizer; not used in inference.
    pub optimizer: Optimizer,
    /// How it is implemented.
    pub optimizer_impl: OptimizerImpl,
    /// Which activations are recomputed.
    pub checkpointing: Checkpointing,
    /// Forward and backward passes for each optimizer step: at most [`Variant::MOST_ACCUMULATION`].
    pub accumulation: u32,
    /// Training or inference.
    pub mode: Mode,
    /// The norm to which gradients are clipped before the optimizer's step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_grad_norm: Option<Norm>,
    /// The optimizer's `weight_decay`; its own default if absent. See Note [Weight decay] of the compiler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<Norm>,
    /// The `label_smoothing` of each cross entropy; what the graph says if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_smoothing: Option<Norm>,
    /// How several GPUs train together.
    #[serde(skip_serializing_if = "Parallel::is_none")]
    pub parallel: Parallel,
}

/// A finite number, such as a norm: equal and hashed by its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "f64", into = "f64")]
pub struct Norm(u64);

impl From<f64> for Norm {
    fn from(norm: f64) -> Norm {
        Norm(norm.to_bits())
    }
}

impl From<Norm> for f64 {
    fn from(norm: Norm) -> f64 {
        f64::from_bits(norm.0)
    }
}

impl Variant {
    /// Whether weight decay adds the parameters to copies of the gradients (torch/optim/{sgd,adam}.py): all others scale the
    /// parameters in place, and fused kernels do it as they go.
    pub fn decay_copies_gradients(&self) -> bool {
        let copies = matches!(
            self.optimizer,
            Optimizer::Sgd | Optimizer::SgdMomentum | Optimizer::Adam
        );
        let decays = self
            .weight_decay
            .is_some_and(|decay| f64::from(decay) != 0.0);
        copies && decays && self.optimizer_impl != OptimizerImpl::Fused
    }
}

impl Default for Variant {
    /// What a request without a `training` asks for.
    fn default() -> Variant {
        Variant {
            recorded: false,
            precision: Precision::default(),
            optimizer: Optimizer::default(),
            optimizer_impl: OptimizerImpl::default(),
            checkpointing: Checkpointing::default(),
            accumulation: 1,
            mode: Mode::default(),
            clip_grad_norm: None,
            weight_decay: None,
            label_smoothing: None,
            parallel: Parallel::None,
        }
    }
}

impl Serialize for Variant {
    /// What recordings decide is left out.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !self.recorded {
            return Variant::serialize(self, serializer);
        }
        let mut told = serializer.serialize_struct("Variant", 2)?;
        told.serialize_field("recorded", &true)?;
        told.serialize_field("accumulation", &self.accumulation)?;
        told.end()
    }
}

impl<'de> Deserialize<'de> for Variant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Variant, D::Error> {
        Variant::deserialize(deserializer)
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.recorded {
            f.write_str("as recorded")?;
            return match self.accumulation {
                1 => Ok(()),
                steps => write!(f, " accumulating {steps}"),
            };
        }
        f.write_str(self.precision.name())?;
        if self.mode == Mode::Inference {
            return f.write_str(" inference");
        }
        write!(f, " {}", self.optimizer.name())?;
        if self.optimizer.implementations().len() > 1 {
            write!(f, " {}", self.optimizer_impl.name())?;
        }
        match &self.checkpointing {
            Checkpointing::None => {}
            Checkpointing::PerBlock => f.write_str(" checkpointed per block")?,
            Checkpointing::Modules(globs) => write!(f, " checkpointed at {}", globs.join(", "))?,
        }
        if self.accumulation > 1 {
            write!(f, " accumulating {}", self.accumulation)?;
        }
        if self.clip_grad_norm.is_some() {
            f.write_str(" clipped")?;
        }
        if self.decay_copies_gradients() {
            f.write_str(" with weight decay")?;
        }
        if self.label_smoothing.is_some() {
            f.write_str(" with smoothed labels")?;
        }
        if let Some(strategy) = self.parallel.name() {
            write!(f, " {strategy} on {} GPUs", self.parallel.world_size())?;
        }
        Ok(())
    }
}

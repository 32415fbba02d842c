//! From a call to its steps.

use crate::device::{Launch, LaunchError};
use crate::program::{Convolution, Kernel, TensorId, View};
use crate::shape::DType;
use crate::units::Bytes;

use super::{Plan, Queued, Step, Target};
use crate::generate::Resources;
use crate::layout::Operands;
use crate::nccl::CollectiveCall;
use crate::ops::attention::{self, Attention};
use crate::ops::convolution::ConvolutionCall;
use crate::ops::elementwise::{self, Map};
use crate::ops::fused_attention::{AttentionPass, FusedCall};
use crate::ops::random::{self, Random};
use crate::ops::{formulas, loss, matmul, norm, optimizer, pool, reduce};

/// The increment of `SplitMix64`: multiples of neighbouring numbers differ in about half of their bits.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a launch depends on besides its call: where in a training run it stands.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Context {
    /// Random draws so far; each has its own key.
    pub(crate) draws: u64,
    /// Which of several ranks draws: each has a batch of its own.
    pub(crate) rank: u32,
    /// Steps finished.
    pub(crate) steps: u64,
    /// For an optimizer, which of its parameter's steps this is, from 1.
    pub(crate) optimizer_step: u32,
    /// The learning rate, in the place of the optimizer's own.
    pub(crate) rate: Option<f32>,
}

impl Context {
    pub(crate) fn seed(&self) -> u64 {
        self.of_rank(self.draws).wrapping_mul(SEED_STEP)
    }

    /// What all ranks draw alike: parameters.
    fn shared_seed(&self) -> u64 {
        self.draws.wrapping_mul(SEED_STEP)
    }

    /// There are fewer than 2^48 draws, and of steps times tensors.
    fn of_rank(&self, number: u64) -> u64 {
        number ^ u64::from(self.rank) << 48
    }

    /// The forward and the backward pass share their tensor of row sums, and nothing else does before the
    /// step ends: it names their random draws.
    fn attention(
        &self,
        rows: Option<&View>,
        causal: bool,
        [dropout, scale]: [f64; 2],
    ) -> Attention {
        let tensor = rows.map_or(0, |rows| u64::from(rows.tensor.0));
        Attention {
            causal,
            dropout,
            scale,
            seed: self
                .of_rank(self.steps << 32 | tensor)
                .wrapping_mul(SEED_STEP),
        }
    }
}

/// Whether a launch gives a tensor its first values, which a script may replace.
pub(crate) fn is_source(kernel: &Kernel) -> bool {
    matches!(
        kernel,
        Kernel::Initialize(_) | Kernel::RandomNormal | Kernel::RandomBelow(_)
    )
}

/// What a launch does: kernels that are tuned for its operands, or else generated ones.
pub(crate) fn steps(
    launch: &Launch<'_>,
    operands: &Operands<'_>,
    target: Target,
    context: Context,
) -> Result<Vec<Step>, LaunchError> {
    let mut plan = Plan::new(target);
    let refused = match by_tuned_kernels(&mut plan, launch, operands, context) {
        Ok(()) => return Ok(plan.steps),
        Err(refused @ LaunchError::Unsupported { .. }) => refused,
        Err(error @ LaunchError::Failed { .. }) => return Err(error),
    };
    by_formulas(operands, target, context, launch.batch, refused)
}

/// Generated kernels, in the place of tuned ones that were `refused`.
fn by_formulas(
    operands: &Operands<'_>,
    target: Target,
    context: Context,
    batch: u64,
    refused: LaunchError,
) -> Result<Vec<Step>, LaunchError> {
    let mut plan = Plan::new(target);
    let resources = Resources {
        multiprocessors: target.multiprocessors,
        scratch: (target.scratch.0, target.scratch.1.0),
        seed: context.seed(),
        batch,
    };
    match formulas::launches(operands, resources) {
        Ok(launches) => {
            for launch in launches {
                plan.launch_generated(launch);
            }
            Ok(plan.steps)
        }
        // What the tuned kernels lack says more than that there is no formula either.
        Err(LaunchError::Unsupported { .. }) => Err(refused),
        Err(error @ LaunchError::Failed { .. }) => Err(error),
    }
}

/// Tuned kernels compute in float32, and read integers as indices alone.
fn expect_types(operands: &Operands<'_>, is_elementwise: bool) -> Queued {
    for operand in operands.inputs().iter().chain(operands.outputs()) {
        let is_taken = match operand.dtype {
            DType::Float32 | DType::Float16 | DType::BFloat16 => true,
            DType::Int64 | DType::Int32 | DType::UInt8 | DType::Bool => !is_elementwise,
            DType::Float64 | DType::Complex64 | DType::Complex128 => false,
        };
        if !is_taken {
            return Err(operands.unsupported(&operand.dtype.to_string()));
        }
    }
    Ok(())
}

fn by_tuned_kernels(
    plan: &mut Plan,
    launch: &Launch<'_>,
    operands: &Operands<'_>,
    context: Context,
) -> Queued {
    match &launch.call.kernel {
        Kernel::MatMul => matmul::product(plan, operands),
        Kernel::Convolution(shape) if is_depthwise(&shape.at(launch.batch)) => {
            Err(operands.no_kernel())
        }
        Kernel::Convolution(shape) => {
            let workspace = launch.call.workspace.map_or(0, |id| address(launch, id));
            let call =
                ConvolutionCall::of(operands, &shape.at(launch.batch), launch.plan, workspace)?;
            plan.steps.push(Step::Convolution(call));
            Ok(())
        }
        Kernel::ObserveLoss => {
            plan.steps
                .push(Step::ObserveLoss(operands.input(0)?.clone()));
            Ok(())
        }
        Kernel::Collective(collective) => {
            let call = CollectiveCall::of(*collective, operands)?;
            plan.steps.push(Step::Collective(call));
            Ok(())
        }
        Kernel::Generated(_) | Kernel::MemoryOnly(_) => Err(operands.no_kernel()),
        kernel => {
            let map = map_of(kernel);
            expect_types(
                operands,
                map.is_some() || matches!(kernel, Kernel::Sum { .. }),
            )?;
            match map {
                Some(map) => elementwise::map(plan, operands, map),
                None => by_kind(plan, launch, operands, context),
            }
        }
    }
}

/// Whether a formula computes a convolution, as a kernel of PyTorch's own does there. In float32 the first of cuDNN's plans
/// that wants no workspace keeps up with that.
fn is_depthwise(convolution: &Convolution) -> bool {
    convolution.dtype != DType::Float32
        && !convolution.uses_cudnn()
        && formulas::depthwise::takes(convolution)
}

/// Kernels for one kind of operation each.
fn by_kind(
    plan: &mut Plan,
    launch: &Launch<'_>,
    operands: &Operands<'_>,
    context: Context,
) -> Queued {
    match &launch.call.kernel {
        Kernel::Initialize(initial) => {
            random::initialize(plan, operands, *initial, context.shared_seed())
        }
        Kernel::RandomNormal => random::random(plan, operands, Random::Normal, context.seed()),
        Kernel::RandomBelow(limit) => {
            random::random(plan, operands, Random::Below(*limit), context.seed())
        }
        Kernel::Sum { scale } => reduce::sum(plan, operands, *scale),
        Kernel::Dropout { p } => random::dropout(plan, operands, *p, context.seed()),
        Kernel::DropoutGrad { p } => random::dropout_grad(plan, operands, *p),
        Kernel::SgdMomentum { first } => {
            optimizer::sgd_momentum(plan, operands, *first, context.rate)
        }
        Kernel::Sgd => optimizer::sgd(plan, operands, context.rate),
        Kernel::Adam { decoupled } => optimizer::adam(
            plan,
            operands,
            context.optimizer_step,
            *decoupled,
            context.rate,
        ),
        Kernel::Attention {
            causal,
            dropout,
            scale,
        } => {
            let rows = launch.call.outputs.get(1);
            let settings = context.attention(rows, *causal, [*dropout, *scale]);
            let pass = AttentionPass::forward(operands, settings)?;
            let own = attention::attention;
            attend(plan, launch, operands, context, (settings, pass, own))
        }
        Kernel::AttentionGrad {
            causal,
            dropout,
            scale,
        } => {
            let rows = launch.call.inputs.get(5);
            let settings = context.attention(rows, *causal, [*dropout, *scale]);
            let pass = AttentionPass::backward(operands, settings)?;
            let own = attention::attention_grad;
            attend(plan, launch, operands, context, (settings, pass, own))
        }
        Kernel::BatchNorm { momentum, eps } => norm::batch_norm(plan, operands, *momentum, *eps),
        Kernel::BatchNormInference { eps } => norm::batch_norm_inference(plan, operands, *eps),
        Kernel::BatchNormGrad => norm::batch_norm_grad(plan, operands),
        Kernel::LayerNorm { eps } => norm::layer_norm(plan, operands, *eps),
        Kernel::LayerNormGrad => norm::layer_norm_grad(plan, operands),
        Kernel::MaxPool(window) => pool::max_pool(plan, operands, window),
        Kernel::MaxPoolGrad(window) => pool::max_pool_grad(plan, operands, window),
        Kernel::AdaptiveAvgPool => pool::adaptive_avg_pool(plan, operands),
        Kernel::AdaptiveAvgPoolGrad => pool::adaptive_avg_pool_grad(plan, operands),
        Kernel::Softmax { dim, log } => loss::softmax(plan, operands, *dim, *log),
        Kernel::SoftmaxGrad { dim, log } => loss::softmax_grad(plan, operands, *dim, *log),
        Kernel::NllLoss => loss::nll_loss(plan, operands),
        Kernel::NllLossGrad => loss::nll_loss_grad(plan, operands),
        Kernel::Unscale => optimizer::unscale(plan, operands),
        Kernel::ScalerUpdate => optimizer::update_scale(plan, operands),
        _ => Err(operands.no_kernel()),
    }
}

/// The elementwise function that a kernel is.
fn map_of(kernel: &Kernel) -> Option<Map> {
    Some(match kernel {
        Kernel::Fill(value) => Map::Fill(*value),
        Kernel::Arange => Map::Arange,
        Kernel::Copy => Map::Copy,
        Kernel::Scale(factor) => Map::Scale(*factor),
        Kernel::Shift(summand) => Map::Shift(*summand),
        Kernel::Power(exponent) => Map::Power(*exponent),
        Kernel::PowerGrad(exponent) => Map::PowerGrad(*exponent),
        Kernel::Binary(function) => Map::Binary(*function),
        Kernel::Unary(function) => Map::Unary(*function),
        Kernel::UnaryGrad(function) => Map::UnaryGrad(*function),
        _ => return None,
    })
}

/// Puts attention by kernels of our own into a plan.
type Own = fn(&mut Plan, &Operands<'_>, Attention) -> Queued;

/// Attention by the library where it may take it, else by kernels of our own.
fn attend(
    plan: &mut Plan,
    launch: &Launch<'_>,
    operands: &Operands<'_>,
    context: Context,
    (settings, pass, own): (Attention, Option<AttentionPass>, Own),
) -> Queued {
    let Some(pass) = pass else {
        return own(plan, operands, settings);
    };
    let mut otherwise = Plan::new(plan.target);
    let otherwise = match own(&mut otherwise, operands, settings) {
        Ok(()) => Ok(otherwise.steps),
        Err(refused @ LaunchError::Unsupported { .. }) => {
            by_formulas(operands, plan.target, context, launch.batch, refused)
        }
        Err(error @ LaunchError::Failed { .. }) => Err(error),
    };
    let workspace = launch.call.workspace.map(|id| {
        let size = launch.sizes.get(id.0 as usize).copied();
        (address(launch, id), size.unwrap_or(Bytes::ZERO))
    });
    plan.steps.push(Step::FusedAttention(Box::new(FusedCall {
        pass,
        settings,
        workspace: workspace.unwrap_or((0, Bytes::ZERO)),
        otherwise,
    })));
    Ok(())
}

fn address(launch: &Launch<'_>, id: TensorId) -> u64 {
    launch.addresses.get(id.0 as usize).copied().unwrap_or(0)
}

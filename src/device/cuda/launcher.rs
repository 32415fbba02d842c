//! Runs the launches of a program on a GPU.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use crate::device::{Launch, LaunchError, Launcher, StepReport};
use crate::program::{Convolution, Kernel, TensorId, View};
use crate::units::Bytes;

use super::cudnn::Tf32;
use super::driver::error::GpuError;
use super::driver::gpu::{Event, Gpu};
use super::driver::memory::{download, upload};
use super::layout::{Operand, Operands, name_of};
use super::nvrtc::kernels::Queue;
use super::ops::attention::{self, Attention};
use super::ops::convolution::Convolutions;
use super::ops::elementwise::{self, Map};
use super::ops::fused_attention::{FusedAttention, Pass};
use super::ops::matmul::MatMul;
use super::ops::optimizer::StepCounts;
use super::ops::random::{self, Random};
use super::ops::{gather, loss, masks, norm, optimizer, pool, reduce};
use super::poison;
use super::script::{Gradients, HostTensor, Outputs, Script};
use super::step_losses::Losses;

/// The increment of `SplitMix64`: multiples of neighbouring numbers differ in about half of their bits.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// How a launcher computes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LauncherOptions {
    /// Whether float32 convolutions may run on tensor cores; PyTorch's default is that they may.
    /// Matrix products may not, which is its default as well.
    pub tf32: Tf32,
    /// A folder to keep compiled kernels in; without one, each launcher compiles its own.
    pub kernel_cache: Option<PathBuf>,
}

/// Launches a program's calls on one stream of a card.
///
/// The operands of a launch must lie in memory that a [`super::CudaMemory`] of the same card holds, and stay there until the
/// stream has passed the launch; giving memory back waits for that. A launch with another address is refused before
/// anything is queued: where a card also reaches the host's memory, nothing else would stop it.
pub struct CudaLauncher {
    convolutions: Convolutions,
    fused_attention: FusedAttention,
    matmul: MatMul,
    losses: Losses,
    clock: Option<Clock>,
    optimizer_steps: StepCounts,
    /// Random draws so far; each has its own key.
    draws: u64,
    /// Steps finished.
    steps: u64,
    script: Script,
    gradients: BTreeMap<String, HostTensor>,
    /// Near the end: it waits for the stream when it is dropped and holds the card.
    queue: Queue,
    gpu: Rc<Gpu>,
}

/// When the step's first launch was queued.
struct Clock {
    begin: Event,
    begun_at: Instant,
}

impl CudaLauncher {
    /// Loads the kernels, compiling those that are not kept, and opens the libraries: a quarter of a second to two.
    pub fn open(gpu: &Rc<Gpu>, options: LauncherOptions) -> Result<CudaLauncher, LaunchError> {
        let convolutions = Convolutions::open(gpu, options.tf32)?;
        Ok(CudaLauncher {
            fused_attention: FusedAttention::new(convolutions.handle()),
            convolutions,
            matmul: MatMul::open()?,
            losses: Losses::create()?,
            clock: None,
            optimizer_steps: StepCounts::new(),
            draws: 0,
            steps: 0,
            script: Script::default(),
            gradients: BTreeMap::new(),
            queue: Queue::open(gpu, options.kernel_cache)?,
            gpu: Rc::clone(gpu),
        })
    }

    /// Follows a script from here on.
    pub fn follow(&mut self, script: Script) {
        self.script = script;
    }

    /// The gradients recorded so far, by the parameter's path.
    pub fn take_gradients(&mut self) -> BTreeMap<String, HostTensor> {
        std::mem::take(&mut self.gradients)
    }

    /// Makes the launcher as good as new for another probe: optimizers start at their first step, random
    /// values at their first draw, and what a step that stopped midway left behind is forgotten.
    pub fn reset(&mut self) {
        // An error that stays is met again, and reported, by the next call.
        let _ = self.finish_step();
        self.optimizer_steps.clear();
        self.draws = 0;
        self.steps = 0;
        self.gradients.clear();
        self.script = Script::default();
    }

    /// Copies a tensor to memory of the card that is held, outside of any program.
    pub fn upload(&self, address: u64, bytes: &[u8]) -> Result<(), GpuError> {
        upload(&self.gpu, address, bytes)
    }

    /// Copies a tensor from memory of the card that is held, after everything queued.
    pub fn download(&self, address: u64, size: Bytes) -> Result<Vec<u8>, GpuError> {
        download(
            &self.gpu,
            address,
            usize::try_from(size.0).unwrap_or(usize::MAX),
        )
    }

    fn start_clock(&mut self) -> Result<(), LaunchError> {
        if self.clock.is_none() {
            let begin = Event::create()?;
            self.gpu.record(&begin)?;
            self.clock = Some(Clock {
                begin,
                begun_at: Instant::now(),
            });
        }
        Ok(())
    }

    fn stop_clock(&mut self) -> Result<f64, LaunchError> {
        let Some(clock) = self.clock.take() else {
            return Ok(0.0);
        };
        if !self.gpu.has_event_times() {
            return Ok(clock.begun_at.elapsed().as_secs_f64() * 1e3);
        }
        let end = Event::create()?;
        self.gpu.record(&end)?;
        self.gpu.synchronize()?;
        Ok(clock.begin.elapsed_ms(&end)?)
    }

    /// A key for the next random draw.
    fn next_seed(&mut self) -> u64 {
        self.draws += 1;
        self.draws.wrapping_mul(SEED_STEP)
    }

    /// Given values for the tensor that a launch would fill, copied to it.
    fn feed(&mut self, launch: &Launch<'_>, out: &Operand) -> Result<bool, LaunchError> {
        let Some(given) = self
            .label(launch)
            .and_then(|label| self.script.feed.get(label))
        else {
            return Ok(false);
        };
        let wanted = out.count() * out.dtype.size();
        if given.bytes.len() as u64 != wanted || given.dtype != out.dtype || !out.is_contiguous() {
            return Err(LaunchError::Failed {
                call: name_of(launch),
                detail: format!(
                    "the given tensor is {} {:?}, not {} {:?}",
                    given.dtype, given.shape, out.dtype, out.shape
                ),
            });
        }
        upload(&self.gpu, out.address, &given.bytes)?;
        self.queue.count_library_launch();
        Ok(true)
    }

    /// Keeps the gradient that an optimizer is about to use.
    fn record_gradient(
        &mut self,
        launch: &Launch<'_>,
        operands: &Operands<'_>,
    ) -> Result<(), LaunchError> {
        if self.script.gradients == Gradients::Ignore {
            return Ok(());
        }
        let Some(label) = self.label(launch).map(str::to_owned) else {
            return Ok(());
        };
        if self.gradients.contains_key(&label) {
            return Ok(());
        }
        operands.dense_input(0)?;
        let gradient = operands.input(0)?;
        let size = usize::try_from(gradient.count() * gradient.dtype.size()).unwrap_or(usize::MAX);
        let tensor = HostTensor {
            dtype: gradient.dtype,
            shape: gradient.shape.clone(),
            bytes: download(&self.gpu, gradient.address, size)?,
        };
        self.gradients.insert(label, tensor);
        Ok(())
    }

    /// The name of the tensor that a launch writes first.
    fn label(&self, launch: &Launch<'_>) -> Option<&str> {
        let tensor = launch.call.outputs.first()?.tensor;
        self.script
            .labels
            .get(tensor.0 as usize)
            .map(|label| &**label)
    }

    fn run(&mut self, launch: &Launch<'_>) -> Result<(), LaunchError> {
        let operands = &Operands::of(launch)?;
        operands.expect_held(&self.gpu)?;
        let is_source = matches!(
            launch.call.kernel,
            Kernel::Initialize(_) | Kernel::RandomNormal | Kernel::RandomBelow(_)
        );
        if is_source && self.feed(launch, operands.output(0)?)? {
            return Ok(());
        }
        match &launch.call.kernel {
            Kernel::Initialize(initial) => {
                let seed = self.next_seed();
                random::initialize(&mut self.queue, operands, *initial, seed)
            }
            Kernel::RandomNormal => self.random(operands, Random::Normal),
            Kernel::RandomBelow(limit) => self.random(operands, Random::Below(*limit)),
            Kernel::Fill(value) => self.map(operands, Map::Fill(*value)),
            Kernel::Arange => self.map(operands, Map::Arange),
            Kernel::Copy => self.map(operands, Map::Copy),
            Kernel::MaskBias => self.map(operands, Map::MaskBias),
            Kernel::Scale(factor) => self.map(operands, Map::Scale(*factor)),
            Kernel::Shift(summand) => self.map(operands, Map::Shift(*summand)),
            Kernel::Power(exponent) => self.map(operands, Map::Power(*exponent)),
            Kernel::PowerGrad(exponent) => self.map(operands, Map::PowerGrad(*exponent)),
            Kernel::Binary(function) => self.map(operands, Map::Binary(*function)),
            Kernel::Unary(function) => self.map(operands, Map::Unary(*function)),
            Kernel::UnaryGrad(function) => self.map(operands, Map::UnaryGrad(*function)),
            Kernel::Sum { scale } => reduce::sum(&mut self.queue, operands, *scale),
            Kernel::MatMul => self.matmul.launch(&mut self.queue, operands),
            Kernel::Convolution(shape) => {
                let workspace = launch.call.workspace;
                let at = |id: TensorId| launch.addresses.get(id.0 as usize).copied().unwrap_or(0);
                self.convolutions.launch(
                    &mut self.queue,
                    operands,
                    &shape.at(launch.batch),
                    launch.plan,
                    workspace.map_or(0, at),
                )
            }
            Kernel::Dropout { p } => {
                let seed = self.next_seed();
                random::dropout(&mut self.queue, operands, *p, seed)
            }
            Kernel::DropoutGrad { p } => random::dropout_grad(&mut self.queue, operands, *p),
            Kernel::ObserveLoss => {
                self.losses.observe(&self.gpu, operands.input(0)?)?;
                self.queue.count_library_launch();
                Ok(())
            }
            Kernel::SgdMomentum { .. } | Kernel::Sgd | Kernel::Adam { .. } => {
                self.record_gradient(launch, operands)?;
                self.optimize(launch, operands)
            }
            Kernel::Attention {
                causal,
                dropout,
                scale,
            } => {
                let rows = launch.call.outputs.get(1);
                let settings = self.attention(rows, *causal, [*dropout, *scale]);
                let pass = Pass::forward(operands, settings)?;
                if self.runs_fused(launch, pass, settings)? {
                    return Ok(());
                }
                attention::attention(&mut self.queue, operands, settings)
            }
            Kernel::AttentionGrad {
                causal,
                dropout,
                scale,
            } => {
                let rows = launch.call.inputs.get(5);
                let settings = self.attention(rows, *causal, [*dropout, *scale]);
                let pass = Pass::backward(operands, settings)?;
                if self.runs_fused(launch, pass, settings)? {
                    return Ok(());
                }
                if self.fused_attention.has_drawn(settings) {
                    let detail = "cuDNN dropped weights in the forward pass and does not take the backward one";
                    return Err(operands.failed(detail.to_owned()));
                }
                attention::attention_grad(&mut self.queue, operands, settings)
            }
            other => library_free(&mut self.queue, operands, other),
        }
    }

    /// Queues attention through the library, if that takes it.
    fn runs_fused(
        &mut self,
        launch: &Launch<'_>,
        pass: Option<Pass<'_>>,
        settings: Attention,
    ) -> Result<bool, LaunchError> {
        let Some(pass) = pass else {
            return Ok(false);
        };
        let at = |id: TensorId| {
            let address = launch.addresses.get(id.0 as usize).copied();
            let size = launch.sizes.get(id.0 as usize).copied();
            address.zip(size)
        };
        let workspace = launch.call.workspace.and_then(at);
        let workspace = workspace.unwrap_or((0, Bytes::ZERO));
        self.fused_attention
            .launch(&mut self.queue, &pass, settings, workspace)
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
            seed: (self.steps << 32 | tensor).wrapping_mul(SEED_STEP),
        }
    }

    fn map(&mut self, operands: &Operands<'_>, function: Map) -> Result<(), LaunchError> {
        elementwise::map(&mut self.queue, operands, function)
    }

    fn random(&mut self, operands: &Operands<'_>, of: Random) -> Result<(), LaunchError> {
        let seed = self.next_seed();
        random::random(&mut self.queue, operands, of, seed)
    }

    fn optimize(
        &mut self,
        launch: &Launch<'_>,
        operands: &Operands<'_>,
    ) -> Result<(), LaunchError> {
        let rate = self.script.rate;
        match &launch.call.kernel {
            Kernel::SgdMomentum { first } => {
                optimizer::sgd_momentum(&mut self.queue, operands, *first, rate)
            }
            Kernel::Adam { decoupled } => {
                let Some(parameter) = launch.call.outputs.first() else {
                    return Err(operands.failed("output 0 is missing".to_owned()));
                };
                let step = self.optimizer_steps.entry(parameter.tensor).or_insert(0);
                *step += 1;
                optimizer::adam(&mut self.queue, operands, *step, *decoupled, rate)
            }
            _ => optimizer::sgd(&mut self.queue, operands, rate),
        }
    }
}

/// Launches that need nothing but a queue.
fn library_free(
    queue: &mut Queue,
    operands: &Operands<'_>,
    kernel: &Kernel,
) -> Result<(), LaunchError> {
    match kernel {
        Kernel::BatchNorm { momentum, eps } => norm::batch_norm(queue, operands, *momentum, *eps),
        Kernel::BatchNormInference { eps } => norm::batch_norm_inference(queue, operands, *eps),
        Kernel::BatchNormGrad => norm::batch_norm_grad(queue, operands),
        Kernel::LayerNorm { eps } => norm::layer_norm(queue, operands, *eps),
        Kernel::LayerNormGrad => norm::layer_norm_grad(queue, operands),
        Kernel::MaxPool(window) => pool::max_pool(queue, operands, window),
        Kernel::MaxPoolGrad(window) => pool::max_pool_grad(queue, operands, window),
        Kernel::AdaptiveAvgPool => pool::adaptive_avg_pool(queue, operands),
        Kernel::AdaptiveAvgPoolGrad => pool::adaptive_avg_pool_grad(queue, operands),
        Kernel::Embedding => loss::embedding(queue, operands),
        Kernel::EmbeddingGrad { padding } => loss::embedding_grad(queue, operands, *padding),
        Kernel::Gather { dim } => gather::gather(queue, operands, *dim),
        Kernel::GatherGrad { dim } => gather::gather_grad(queue, operands, *dim),
        Kernel::Softmax { dim, log } => loss::softmax(queue, operands, *dim, *log),
        Kernel::SoftmaxGrad { dim, log } => loss::softmax_grad(queue, operands, *dim, *log),
        Kernel::Tril => masks::tril(queue, operands),
        Kernel::HiddenRows => masks::hidden_rows(queue, operands),
        Kernel::NllLoss => loss::nll_loss(queue, operands),
        Kernel::NllLossGrad => loss::nll_loss_grad(queue, operands),
        Kernel::Unscale => optimizer::unscale(queue, operands),
        Kernel::ScalerUpdate => optimizer::update_scale(queue, operands),
        _ => Err(operands.no_kernel()),
    }
}

impl Launcher for CudaLauncher {
    fn convolution_plans(&mut self, convolution: &Convolution) -> Result<Vec<Bytes>, LaunchError> {
        self.convolutions.workspaces(convolution)
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), LaunchError> {
        self.start_clock()?;
        if self.script.outputs == Outputs::Trusted {
            return self.run(launch);
        }
        let operands = Operands::of(launch)?;
        operands.expect_held(&self.gpu)?;
        poison::fill(&mut self.queue, launch.call, &operands)?;
        self.run(launch)?;
        let label = self.label(launch).unwrap_or_default().to_owned();
        poison::check(&mut self.queue, launch.call, &operands, &label)
    }

    fn finish_step(&mut self) -> Result<StepReport, LaunchError> {
        let elapsed_ms = self.stop_clock()?;
        self.gpu.synchronize()?;
        self.fused_attention.forget_draws();
        self.steps += 1;
        Ok(StepReport {
            launches: self.queue.take_launches(),
            losses: self.losses.take(),
            elapsed_ms,
        })
    }
}

//! Runs the launches of a program on a GPU.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use crate::device::{Launch, LaunchError, Launcher, StepReport};
use crate::program::{Convolution, Kernel, Program};
use crate::units::Bytes;

use super::cudnn::Tf32;
use super::driver::error::GpuError;
use super::driver::gpu::{Event, Gpu};
use super::driver::memory::{download, upload};
use super::layout::{Operand, Operands, name_of};
use super::nccl::{CollectiveCall, Communicator};
use super::nvrtc::kernels::Queue;
use super::ops::convolution::Convolutions;
use super::ops::fused_attention::FusedAttention;
use super::ops::matmul::MatMul;
use super::ops::optimizer::StepCounts;
use super::plan::{self, Code, Context, Step, is_source, listed};
use super::poison;
use super::script::{Gradients, HostTensor, Outputs, Script};
use super::step_losses::Losses;

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
    /// The other ranks, if it is one of several.
    communicator: Option<Communicator>,
    clock: Option<Clock>,
    optimizer_steps: StepCounts,
    /// Random draws so far; each has its own key.
    draws: u64,
    /// Steps finished.
    steps: u64,
    /// The steps of launches that are generated, by where the call lies and the batch: what is queued again for the next
    /// step. Only of the program that was got ready, whose calls stay where they are.
    kept: Option<HashMap<(usize, u64), Vec<Step>>>,
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
            communicator: None,
            clock: None,
            optimizer_steps: StepCounts::new(),
            draws: 0,
            steps: 0,
            kept: None,
            script: Script::default(),
            gradients: BTreeMap::new(),
            queue: Queue::open(gpu, options.kernel_cache)?,
            gpu: Rc::clone(gpu),
        })
    }

    /// Runs collectives with these other ranks from here on. Has each kind run once, for which they all have to be there.
    pub fn join(&mut self, mut communicator: Communicator) -> Result<(), LaunchError> {
        let (address, size) = self.queue.scratch();
        communicator.warm_up(address, size.0)?;
        self.communicator = Some(communicator);
        Ok(())
    }

    /// Queues what all ranks do together.
    fn communicate(
        &mut self,
        call: &CollectiveCall,
        launch: &Launch<'_>,
    ) -> Result<(), LaunchError> {
        let Some(communicator) = &mut self.communicator else {
            return Err(LaunchError::Failed {
                call: name_of(launch),
                detail: "there are no other ranks".to_owned(),
            });
        };
        communicator.queue(call, launch)?;
        self.queue.count_library_launch();
        Ok(())
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
        self.kept = None;
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
            begin.record(self.gpu.stream())?;
            self.clock = Some(Clock {
                begin,
                begun_at: Instant::now(),
            });
        }
        Ok(())
    }

    /// Has what is queued from here on wait for all collectives.
    fn await_others(&mut self) -> Result<(), GpuError> {
        match &mut self.communicator {
            Some(communicator) => communicator.let_all_pass(),
            None => Ok(()),
        }
    }

    fn stop_clock(&mut self) -> Result<f64, LaunchError> {
        self.await_others()?;
        let Some(clock) = self.clock.take() else {
            return Ok(0.0);
        };
        if !self.gpu.has_event_times() {
            return Ok(clock.begun_at.elapsed().as_secs_f64() * 1e3);
        }
        let end = Event::create()?;
        end.record(self.gpu.stream())?;
        self.gpu.synchronize()?;
        Ok(clock.begin.elapsed_ms(&end)?)
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
        let view = launch.call.outputs.first()?;
        let part = self.script.parts.get(&(view.tensor, view.offset));
        let label = || self.script.labels.get(view.tensor.0 as usize);
        part.or_else(label).map(|label| &**label)
    }

    fn run(&mut self, launch: &Launch<'_>, operands: &Operands<'_>) -> Result<(), LaunchError> {
        operands.expect_held(&self.gpu)?;
        if let Some(communicator) = &mut self.communicator
            && !matches!(launch.call.kernel, Kernel::Collective(_))
        {
            communicator.let_pass(launch, operands)?;
        }
        if is_source(&launch.call.kernel) && self.feed(launch, operands.output(0)?)? {
            return Ok(());
        }
        self.draws += 1;
        let context = self.context(launch, operands)?;
        let key = (std::ptr::from_ref(launch.call) as usize, launch.batch);
        // Other kernels' formulas may have their operands in another order.
        let is_kept = matches!(
            launch.call.kernel,
            Kernel::Generated(_) | Kernel::Convolution(_)
        );
        let kept = self.kept.as_mut().filter(|_| is_kept);
        let known = kept.and_then(|kept| kept.remove(&key));
        let steps = match known {
            Some(mut steps) => {
                for step in &mut steps {
                    if let Step::Kernel(kernel) = step {
                        kernel.parameter.update(operands, context.seed());
                    }
                }
                steps
            }
            None => plan::steps(launch, operands, self.queue.target(), context)?,
        };
        self.queue_all(&steps, launch)?;
        let is_generated = |step: &Step| matches!(step, Step::Kernel(kernel) if matches!(kernel.code, Code::Generated(..)));
        if let (true, Some(kept)) = (is_kept && steps.iter().all(is_generated), &mut self.kept) {
            kept.insert(key, steps);
        }
        Ok(())
    }

    /// Where in the run a launch stands.
    fn context(
        &mut self,
        launch: &Launch<'_>,
        operands: &Operands<'_>,
    ) -> Result<Context, LaunchError> {
        let mut context = Context {
            draws: self.draws,
            rank: self.communicator.as_ref().map_or(0, Communicator::rank),
            steps: self.steps,
            optimizer_step: 0,
            rate: self.script.rate,
        };
        match launch.call.kernel {
            Kernel::SgdMomentum { .. } | Kernel::Sgd => self.record_gradient(launch, operands)?,
            Kernel::Adam { .. } => {
                self.record_gradient(launch, operands)?;
                let Some(parameter) = launch.call.outputs.first() else {
                    return Err(operands.failed("output 0 is missing".to_owned()));
                };
                let step = self
                    .optimizer_steps
                    .entry((parameter.tensor, parameter.offset))
                    .or_insert(0);
                *step += 1;
                context.optimizer_step = *step;
            }
            _ => {}
        }
        Ok(context)
    }

    fn queue_all(&mut self, steps: &[Step], launch: &Launch<'_>) -> Result<(), LaunchError> {
        for step in steps {
            match step {
                Step::Kernel(kernel) => self.queue.launch(kernel)?,
                Step::Product(product) => self.matmul.launch(&mut self.queue, product)?,
                Step::Convolution(call) => self.convolutions.launch(&mut self.queue, call)?,
                Step::ObserveLoss(loss) => {
                    self.losses.observe(&self.gpu, loss)?;
                    self.queue.count_library_launch();
                }
                Step::Collective(call) => self.communicate(call, launch)?,
                Step::FusedAttention(call) => {
                    if self.fused_attention.launch(&mut self.queue, call)? {
                        continue;
                    }
                    if call.pass.is_backward() && self.fused_attention.has_drawn(call.settings) {
                        return Err(LaunchError::Failed {
                            call: "attention".to_owned(),
                            detail: "cuDNN dropped weights in the forward pass and does not take the backward one"
                                .to_owned(),
                        });
                    }
                    match &call.otherwise {
                        Ok(steps) => self.queue_all(steps, launch)?,
                        Err(error) => return Err(error.clone()),
                    }
                }
            }
        }
        Ok(())
    }
}

impl Launcher for CudaLauncher {
    fn convolution_plans(&mut self, convolution: &Convolution) -> Result<Vec<Bytes>, LaunchError> {
        self.convolutions.workspaces(convolution)
    }

    fn prepare(&mut self, program: &Program, batch: u64) -> Result<(), LaunchError> {
        self.kept = None;
        let found = plan::survey(program, batch, self.queue.target());
        if !found.gaps.is_empty() {
            return Err(LaunchError::Unsupported {
                operation: listed(&found.gaps),
            });
        }
        self.queue.prepare(&found.sources)?;
        self.kept = Some(HashMap::new());
        Ok(())
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), LaunchError> {
        self.start_clock()?;
        let operands = Operands::of(launch)?;
        if self.script.outputs == Outputs::Trusted {
            return self.run(launch, &operands);
        }
        operands.expect_held(&self.gpu)?;
        self.await_others()?;
        poison::fill(&mut self.queue, launch.call, &operands)?;
        self.run(launch, &operands)?;
        self.await_others()?;
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

//! Which parameters are trained: all, those that no pattern freezes, or low-rank adapters of PEFT alone.

use super::functional;
use super::modules::Dropout;
use super::pointwise::Pointwise as _;
use super::tracer::{Place, Tensor, Tensors, Tracer};
use crate::graph::ParameterKind;
use crate::model::Glob;

/// Low-rank adapters, by the names of PEFT's `LoraConfig`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lora {
    pub(crate) r: u64,
    pub(crate) lora_alpha: f64,
    pub(crate) lora_dropout: f64,
    pub(crate) use_rslora: bool,
    pub(crate) target_modules: Targets,
}

/// The layers that get an adapter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Targets {
    /// Linear layers whose path is one of these, or ends in one after a dot.
    Names(Vec<String>),
    /// All linear layers but the output's.
    AllLinear,
}

/// What is trained of a model.
#[derive(Debug, Default)]
pub(crate) struct Trained {
    pub(crate) lora: Option<Lora>,
    /// Parameters, or modules with all that is in them, that are not.
    pub(crate) frozen: Vec<Glob>,
}

/// Where PEFT puts the model that it adapts.
pub(super) const ADAPTED_MODEL: &str = "base_model.model";

impl Trained {
    /// What a parameter of the model is; `path` is the model's own.
    pub(super) fn kind(&self, path: &str) -> ParameterKind {
        let ends = path.match_indices('.').map(|(end, _)| end);
        let prefixes = ends.map(|end| &path[..end]).chain([path]);
        let is_frozen = |path: &str| self.frozen.iter().any(|glob| glob.matches(path));
        if self.lora.is_some() || prefixes.into_iter().any(is_frozen) {
            ParameterKind::Frozen
        } else {
            ParameterKind::Trained
        }
    }

    /// The adapters that a linear layer at this path of the model gets.
    fn adapters(&self, path: &str, is_output: bool) -> Option<&Lora> {
        let lora = self.lora.as_ref()?;
        let is_target = match &lora.target_modules {
            Targets::AllLinear => !is_output,
            Targets::Names(names) => names.iter().any(|name| {
                let before = path.strip_suffix(name.as_str());
                before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
            }),
        };
        is_target.then_some(lora)
    }
}

/// The adapter of a linear layer: `peft.tuners.lora.layer.Linear`.
#[derive(Debug, Clone)]
pub(super) struct Adapter {
    place: Place,
    dropout: Option<Dropout>,
    down: (Place, Tensor),
    up: (Place, Tensor),
    scaling: f64,
}

impl Adapter {
    /// Whether the linear layer at this path of the model gets one.
    pub(super) fn is_for(tracer: &Tracer, path: &str, is_output: bool) -> bool {
        tracer.trained(|trained| trained.adapters(path, is_output).is_some())
    }

    /// Registers the adapter of the layer at `path`, after the layer's own parameters.
    pub(super) fn new(tracer: &Tracer, path: &str, [inputs, outputs]: [u64; 2]) -> Option<Adapter> {
        let lora = tracer.trained(|trained| trained.lora.clone())?;
        let linear = |name: &str, shape: &[u64]| {
            let path = format!("{path}.{name}.default");
            let weight = tracer.adapter_parameter(&format!("{path}.weight"), shape);
            (Place::new(path, "torch.nn.modules.linear.Linear"), weight)
        };
        let dropout = (lora.lora_dropout > 0.0)
            .then(|| Dropout::new(format!("{path}.lora_dropout.default"), lora.lora_dropout));
        #[expect(clippy::cast_precision_loss, reason = "ranks are small")]
        let rank = lora.r as f64;
        let divisor = if lora.use_rslora { rank.sqrt() } else { rank };
        Some(Adapter {
            place: Place::new(path, "peft.tuners.lora.layer.Linear"),
            dropout,
            down: linear("lora_A", &[lora.r, inputs]),
            up: linear("lora_B", &[outputs, lora.r]),
            scaling: lora.lora_alpha / divisor,
        })
    }

    /// Runs the layer and adds what its adapter makes of `x`.
    pub(super) fn forward(&self, x: &Tensor, base: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
        let tracer = x.tracer();
        tracer.within(&self.place, || {
            let mut result = base(x);
            let result_dtype = result.dtype();
            let x = x.to_dtype_of(self.down.1.dtype());
            let low = match &self.dropout {
                Some(dropout) => self.linear(&self.down, dropout.forward(&x)),
                None => self.linear(&self.down, &x),
            };
            let update = self.linear(&self.up, low).mul_number(self.scaling);
            result = (&result).add(update);
            result = (&result).to_dtype_of(result_dtype);
            result.and_drop(x)
        })
    }

    fn linear(&self, (place, weight): &(Place, Tensor), x: impl Tensors) -> Tensor {
        let tracer = x.tensor().tracer();
        let made = tracer.within(place, || functional::linear(x.tensor(), weight, None));
        made.and_drop(x)
    }
}

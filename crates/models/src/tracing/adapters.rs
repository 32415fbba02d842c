//! Which parameters are trained: all, those that no pattern freezes, or low-rank adapters of PEFT alone.

use super::functional;
use super::module_path::ModulePath;
use super::modules::Dropout;
use super::operands::Tensors;
use super::pointwise::Pointwise as _;
use super::reductions::Reductions as _;
use super::tracer::{Tensor, Tracer};
use super::views::Views as _;
use crate::Globs;
use crate::graph::ParameterKind;
use crate::shape::DType;

/// Low-rank adapters, as PEFT's `LoraConfig` describes them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lora {
    /// What they are stored in.
    pub(crate) dtype: DType,
    pub(crate) r: u64,
    pub(crate) alpha: f64,
    pub(crate) dropout: f64,
    pub(crate) use_rslora: bool,
    pub(crate) target_modules: Targets,
}

impl Lora {
    fn scaling(&self) -> f64 {
        let rank = self.r as f64;
        self.alpha / if self.use_rslora { rank.sqrt() } else { rank }
    }
}

/// The layers that get an adapter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Targets {
    /// Layers whose path is one of these, or ends in one after a dot.
    Names(Vec<String>),
    /// All linear layers but the output's.
    AllLinear,
}

/// What is trained of a model.
#[derive(Debug, Default)]
pub(crate) struct Trained {
    pub(crate) lora: Option<Lora>,
    /// Parameters, or modules with all that is in them, that are not.
    pub(crate) frozen: Globs,
}

impl Targets {
    /// Whether `name` names the module at this path.
    pub(crate) fn names(name: &str, path: &str) -> bool {
        let before = path.strip_suffix(name);
        before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
    }
}

/// The path of the output layer of all language models here, `model.get_output_embeddings()`.
const OUTPUT: &str = "lm_head";

/// Where PEFT puts the model that it adapts.
pub(super) const ADAPTED_MODEL: &str = "base_model.model";

impl Trained {
    /// What a parameter of the model is; `path` is the model's own.
    pub(super) fn kind(&self, path: &str) -> ParameterKind {
        if self.lora.is_some() || prefixes(path).any(|path| self.frozen.matches(path)) {
            ParameterKind::Frozen
        } else {
            ParameterKind::Trained
        }
    }

    /// The adapter that an embedding at this path of the model gets.
    fn of_embedding(&self, path: &str) -> Option<&Lora> {
        let named = |lora: &&Lora| lora.target_modules != Targets::AllLinear;
        self.adapters(path).filter(named)
    }

    /// The adapter that a linear layer at this path of the model gets.
    fn adapters(&self, path: &str) -> Option<&Lora> {
        let lora = self.lora.as_ref()?;
        let is_target = match &lora.target_modules {
            Targets::AllLinear => path != OUTPUT,
            Targets::Names(names) => names.iter().any(|name| Targets::names(name, path)),
        };
        is_target.then_some(lora)
    }
}

/// What a parameter is, and all modules that it is in.
pub(crate) fn prefixes(path: &str) -> impl Iterator<Item = &str> + Clone {
    let ends = path.match_indices('.').map(|(end, _)| end);
    ends.map(|end| &path[..end]).chain([path])
}

/// The adapter of a linear layer or an embedding: `Linear` or `Embedding` of `peft.tuners.lora.layer`.
#[derive(Debug, Clone)]
pub(crate) struct Adapter {
    place: ModulePath,
    dropout: Option<Dropout>,
    down: (ModulePath, Tensor),
    up: (ModulePath, Tensor),
    scaling: f64,
}

impl Adapter {
    /// Where the linear layer at this path of the model lies: inside of its adapter, if it gets one.
    pub(crate) fn path_of_layer(tracer: &Tracer, path: &str) -> String {
        if tracer.trained(|trained| trained.adapters(path).is_some()) {
            format!("{path}.base_layer")
        } else {
            path.to_owned()
        }
    }

    /// Registers the adapter of the linear layer at this path, after the layer's own parameters, if it gets one.
    pub(crate) fn of_layer(
        tracer: &Tracer,
        path: &str,
        [inputs, outputs]: [u64; 2],
    ) -> Option<Box<Adapter>> {
        let lora = tracer.trained(|trained| trained.adapters(path).cloned())?;
        let scaling = lora.scaling();
        let linear = |name: &str, shape: &[u64]| {
            let path = format!("{path}.{name}.default");
            let weight = tracer.adapter_parameter(&format!("{path}.weight"), shape, lora.dtype);
            (
                ModulePath::new(path, "torch.nn.modules.linear.Linear"),
                weight,
            )
        };
        let dropout = (lora.dropout > 0.0)
            .then(|| Dropout::new(format!("{path}.lora_dropout.default"), lora.dropout));
        Some(Box::new(Adapter {
            place: ModulePath::new(path.to_owned(), "peft.tuners.lora.layer.Linear"),
            dropout,
            down: linear("lora_A", &[lora.r, inputs]),
            up: linear("lora_B", &[outputs, lora.r]),
            scaling,
        }))
    }

    /// Where the embedding at this path of the model lies.
    pub(crate) fn path_of_embedding(tracer: &Tracer, path: &str) -> String {
        if tracer.trained(|trained| trained.of_embedding(path).is_some()) {
            format!("{path}.base_layer")
        } else {
            path.to_owned()
        }
    }

    /// Registers the adapter of the embedding at this path, after its weight, if it gets one.
    pub(crate) fn of_embedding(
        tracer: &Tracer,
        path: &str,
        [rows, width]: [u64; 2],
    ) -> Option<Box<Adapter>> {
        let lora = tracer.trained(|trained| trained.of_embedding(path).cloned())?;
        let place = ModulePath::new(path.to_owned(), "peft.tuners.lora.layer.Embedding");
        let matrix = |name: &str, shape: &[u64]| {
            let weight =
                tracer.adapter_parameter(&format!("{path}.{name}.default"), shape, lora.dtype);
            (place.clone(), weight)
        };
        Some(Box::new(Adapter {
            dropout: None,
            down: matrix("lora_embedding_A", &[lora.r, rows]),
            up: matrix("lora_embedding_B", &[width, lora.r]),
            scaling: lora.scaling(),
            place: place.clone(),
        }))
    }

    /// Looks words up by a layer, and adds what its adapter makes of them, if it has one; `scale` is the layer's `embed_scale`.
    pub(crate) fn embed(
        adapter: Option<&Adapter>,
        indices: &Tensor,
        (padding, scale): (Option<u64>, Option<&Tensor>),
        layer: impl FnOnce(&Tensor) -> Tensor,
    ) -> Tensor {
        let Some(adapter) = adapter else {
            return layer(indices);
        };
        indices.tracer().in_module(&adapter.place, || {
            let mut result = layer(indices);
            let result_dtype = result.dtype();
            let embedding_a = (&adapter.down.1).transposed();
            let embedding_b = (&adapter.up.1).transposed();
            let after_a = functional::embedding(indices, &embedding_a, padding);
            let mut output = (&after_a).matmul(&embedding_b).mul_number(adapter.scaling);
            if let Some(scale) = scale {
                output = (&output).mul(scale.to_dtype_of(output.dtype()));
            }
            result = (&result).add(&output);
            result = (&result).to_dtype_of(result_dtype);
            result.and_drop((embedding_a, embedding_b, after_a, output))
        })
    }

    /// Runs a layer on `x`, and adds what its adapter makes of it, if it has one.
    pub(crate) fn forward(
        adapter: Option<&Adapter>,
        x: impl Tensors,
        layer: impl FnOnce(&Tensor) -> Tensor,
    ) -> Tensor {
        let made = match adapter {
            Some(adapter) => adapter.add_to(layer, x.tensor()),
            None => layer(x.tensor()),
        };
        made.and_drop(x)
    }

    fn add_to(&self, layer: impl FnOnce(&Tensor) -> Tensor, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut result = layer(x);
            let result_dtype = result.dtype();
            let x = x.to_dtype_of(self.down.1.dtype());
            let low = match &self.dropout {
                Some(dropout) => linear(&self.down, dropout.forward(&x)),
                None => linear(&self.down, &x),
            };
            let update = linear(&self.up, low).mul_number(self.scaling);
            result = (&result).add(update);
            result = (&result).to_dtype_of(result_dtype);
            result.and_drop(x)
        })
    }
}

fn linear((place, weight): &(ModulePath, Tensor), x: impl Tensors) -> Tensor {
    let tracer = x.tensor().tracer();
    let made = tracer.in_module(place, || functional::linear(x.tensor(), weight, None));
    made.and_drop(x)
}

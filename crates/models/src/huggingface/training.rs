//! What of a model is trained, and in which dtype its parameters are.

use std::collections::BTreeSet;

use super::is_language_model;
use crate::Globs;
use crate::compile::in_short;
use crate::fields::{Fields, wrong};
use crate::huggingface::prelude::*;
use crate::tracing::{Lora, Targets, Trained, prefixes};

/// Most patterns and names of modules read, and the longest of them.
const MOST_NAMES: usize = 64;
const LONGEST_NAME: usize = 127;

/// Largest rank of an adapter read; those in use have up to a few hundred.
const LARGEST_RANK: u64 = 1 << 16;

/// The members of PEFT's `LoraConfig` that are read.
const LORA: [&str; 5] = [
    "r",
    "lora_alpha",
    "lora_dropout",
    "use_rslora",
    "target_modules",
];

/// Others of them, which change what is computed or trained.
const NOT_BUILT: [&str; 5] = [
    "use_dora",
    "bias",
    "modules_to_save",
    "layers_to_transform",
    "rank_pattern",
];

/// The layers that PEFT adapts by default, by `model_type`
/// (`TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING` in PEFT 0.21's `utils/constants.py`).
const DEFAULT_TARGETS: &[(&[&str], &[&str])] = &[
    (&["gpt2"], &["c_attn"]),
    (&["bloom", "gpt_neox", "falcon"], &["query_key_value"]),
    (&["phi"], &["q_proj", "v_proj", "fc1", "fc2"]),
    (
        &[
            "opt",
            "llama",
            "mistral",
            "mixtral",
            "gemma",
            "gemma2",
            "gemma3_text",
            "qwen2",
            "qwen3",
        ],
        &["q_proj", "v_proj"],
    ),
];

/// What of a model is trained.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Training {
    /// What parameters are loaded in; `None` for what the precision stores them in.
    pub(super) dtype: Option<DType>,
    lora: Option<Adapters>,
    frozen: Vec<String>,
}

/// `lora`, as it is given.
#[derive(Debug, Clone, PartialEq)]
struct Adapters {
    r: u64,
    alpha: f64,
    dropout: f64,
    use_rslora: bool,
    /// The model's own by default.
    targets: Option<Targets>,
}

impl Training {
    /// Reads `param_dtype`, `lora` and `frozen`.
    pub(super) fn parse(fields: &Fields<'_>) -> Result<Training, RequestError> {
        let dtypes = [
            ("fp32", DType::Float32),
            ("bf16", DType::BFloat16),
            ("fp16", DType::Float16),
        ];
        let frozen = fields.texts("frozen")?.unwrap_or_default();
        check_names(&frozen, &fields.at("frozen"))?;
        Ok(Training {
            dtype: fields.choice("param_dtype", "dtype", &dtypes)?,
            lora: adapters(fields)?,
            frozen: frozen.into_iter().map(str::to_owned).collect(),
        })
    }

    pub(super) fn is_adapted(&self) -> bool {
        self.lora.is_some()
    }

    /// Refuses adapters for a class for which they are not built.
    pub(super) fn check(&self, class: &str, at: &str) -> Result<(), RequestError> {
        if self.lora.is_none() || is_language_model(class) {
            return Ok(());
        }
        Err(RequestError::at(
            at,
            format!(
                "adapters are built for causal language models, not for {class}; `batchfit fit my.py:build` asks about any \
                 model that PEFT has adapted in a function of yours, and `batchfit run --on CARD -- python train.py` runs your script"
            ),
        ))
    }

    /// The same for the model of a config, with adapters stored in this type.
    pub(super) fn trained(&self, config: &Config<'_>, adapters: DType) -> Trained {
        let lora = self.lora.as_ref().map(|lora| Lora {
            dtype: adapters,
            r: lora.r,
            alpha: lora.alpha,
            dropout: lora.dropout,
            use_rslora: lora.use_rslora,
            target_modules: match &lora.targets {
                Some(targets) => targets.clone(),
                None => default_targets(config.text("model_type", "").unwrap_or("")),
            },
        });
        Trained {
            lora,
            frozen: Globs::new(&self.frozen),
        }
    }

    /// Names that adapt nothing, which PEFT passes over, as sentences; what they name and cannot be adapted is an error, as it is
    /// of PEFT.
    pub(super) fn unadapted(
        &self,
        graph: &Graph,
        pointer: &str,
    ) -> Result<Vec<String>, RequestError> {
        let targets = self.lora.as_ref().and_then(|lora| lora.targets.as_ref());
        let Some(Targets::Names(names)) = targets else {
            return Ok(Vec::new());
        };
        let mut modules = BTreeSet::new();
        let parameters = graph
            .parameters
            .iter()
            .map(|parameter| parameter.path.as_str());
        for path in parameters {
            modules.extend(path.match_indices('.').map(|(end, _)| own(&path[..end])));
        }
        modules.extend(graph.modules.iter().map(|module| own(&module.path)));
        let mut notes = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let mut called = modules
                .iter()
                .filter(|path| Targets::names(name, path))
                .peekable();
            if called.peek().is_none() {
                notes.push(format!(
                    "no module is called {name}, which PEFT passes over"
                ));
            }
            if let Some(path) =
                called.find(|path| !modules.contains(&*format!("{path}.base_layer")))
            {
                let at = format!("{pointer}/lora/target_modules/{index}");
                let problem = format!(
                    "{name} names {path}, which is neither a linear layer nor an embedding, and PEFT adapts no other"
                );
                return Err(RequestError::at(at, problem));
            }
        }
        Ok(notes)
    }

    /// Refuses a pattern of what is frozen that nothing of the model matches.
    pub(super) fn check_frozen(&self, graph: &Graph, pointer: &str) -> Result<(), RequestError> {
        let globs = Globs::new(&self.frozen);
        let paths = graph.parameters.iter().map(|one| one.path.as_str());
        let Some(idle) = globs.unmatched(paths.clone().flat_map(prefixes)) else {
            return Ok(());
        };
        let there = in_short(paths.flat_map(prefixes));
        let problem = format!("no module or parameter matches {idle:?}; there are {there}");
        Err(RequestError::at(format!("{pointer}/frozen"), problem))
    }

    /// A problem with a model of which nothing is trained.
    pub(super) fn nothing_trained(&self, graph: &Graph, pointer: &str) -> RequestError {
        let paths = graph
            .parameters
            .iter()
            .map(|parameter| parameter.path.as_str());
        let example = paths.filter(|path| path.contains(".0.")).take(4);
        let example = example.collect::<Vec<_>>().join(", ");
        if let Some(lora) = &self.lora {
            let problem = if lora.targets.is_none() {
                format!(
                    "PEFT knows no layers of this type of model, and asks for their names: `--with 'lora={{\"r\":{},\"target_modules\":\"all-linear\"}}'` \
                     has all linear layers; parameters are {example}, and so on",
                    lora.r
                )
            } else {
                format!(
                    "no linear layer and no embedding of the model has one of these names; its parameters are {example}, and so on"
                )
            };
            return RequestError::at(format!("{pointer}/lora/target_modules"), problem);
        }
        RequestError::at(
            format!("{pointer}/frozen"),
            "all parameters are frozen, so that nothing is trained; \"mode\": \"inference\" in `training` asks about \
             inference",
        )
    }
}

/// A module's path in the model that PEFT adapts.
fn own(path: &str) -> &str {
    path.strip_prefix("base_model.model.").unwrap_or(path)
}

fn adapters(fields: &Fields<'_>) -> Result<Option<Adapters>, RequestError> {
    let rank;
    let value = match fields.get("lora") {
        None => return Ok(None),
        Some(value) if value.is_u64() => {
            rank = serde_json::json!({ "r": value });
            &rank
        }
        Some(value) => value,
    };
    let any = Fields::any(value, &fields.at("lora"), "lora")?;
    let is_set = |value: &serde_json::Value| {
        !["null", "false", "\"none\"", "[]", "{}"].contains(&&*value.to_string())
    };
    if let Some(member) = NOT_BUILT
        .iter()
        .find(|member| any.get(member).is_some_and(is_set))
    {
        let problem = format!(
            "adapters are not built with {member}; `batchfit export`, of batchfit's Python client, writes the graph of a model that PEFT \
             has adapted, and --model takes it"
        );
        return Err(any.wrong(member, problem));
    }
    let lora = Fields::of(
        value,
        &fields.at("lora"),
        "lora",
        &[&LORA[..], &NOT_BUILT].concat(),
    )?;
    let targets = match lora.get("target_modules") {
        None => None,
        Some(value) if value.as_str() == Some("all-linear") => Some(Targets::AllLinear),
        Some(value) if value.is_string() => {
            let problem = "target_modules must be \"all-linear\" or a list of names";
            return Err(wrong(&lora.at("target_modules"), value, problem));
        }
        Some(_) => {
            let names = lora.texts("target_modules")?.unwrap_or_default();
            check_names(&names, &lora.at("target_modules"))?;
            Some(Targets::Names(
                names.into_iter().map(str::to_owned).collect(),
            ))
        }
    };
    Ok(Some(Adapters {
        r: lora.whole("r", 1, LARGEST_RANK)?.unwrap_or(8),
        alpha: lora.number("lora_alpha", 0.0, 1e9)?.unwrap_or(8.0),
        dropout: lora.number("lora_dropout", 0.0, 1.0)?.unwrap_or(0.0),
        use_rslora: lora.flag("use_rslora")?.unwrap_or(false),
        targets,
    }))
}

fn check_names(names: &[&str], at: &str) -> Result<(), RequestError> {
    if names.len() > MOST_NAMES {
        let problem = format!(
            "{} names are more than the {MOST_NAMES} that are read",
            names.len()
        );
        return Err(RequestError::at(at, problem));
    }
    match names
        .iter()
        .position(|name| name.is_empty() || name.len() > LONGEST_NAME)
    {
        Some(index) => Err(RequestError::at(
            format!("{at}/{index}"),
            format!(
                "a name has 1 to {LONGEST_NAME} bytes, not {}",
                names[index].len()
            ),
        )),
        None => Ok(()),
    }
}

fn default_targets(model_type: &str) -> Targets {
    let known = DEFAULT_TARGETS
        .iter()
        .find(|(types, _)| types.contains(&model_type));
    match known {
        Some((_, names)) => Targets::Names(names.iter().map(|name| (*name).to_owned()).collect()),
        // PEFT asks for names then; that none is found is told with the names that there are.
        None => Targets::Names(Vec::new()),
    }
}

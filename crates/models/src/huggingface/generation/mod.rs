//! Generating text as transformers' `generate()` does: a pass over prompts and one for each further token, with keys and values that
//! are kept.
//!
//! A class generates if its `forward` is written with [`GenerationInputs`], and a recording of it is in `tests/golden/steps/generation`.

mod cache;
mod masks;
mod run;
mod sampling;

pub(super) use masks::{GenerationInputs, masked, positions};
pub(super) use run::{GenerationTraits, generated};

use super::{RequestError, shorten};

/// What is kept of earlier tokens, where a model generates.
pub(super) type Past<'a> = Option<&'a GenerationInputs<'a>>;

/// The classes that generate. Those of another one would need its code to hand the cache on.
const CLASSES: &[&str] = &[
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "OPTForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "PhiForCausalLM",
    "Phi3ForCausalLM",
    "OlmoForCausalLM",
    "Olmo2ForCausalLM",
    "MixtralForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "GraniteForCausalLM",
    "SmolLM3ForCausalLM",
];

/// Says why a class does not generate.
pub(super) fn check(class: &str, pointer: &str) -> Result<(), RequestError> {
    if CLASSES.contains(&class) {
        return Ok(());
    }
    let problem = format!(
        "generation with a cache of keys and values is simulated for {}, not for {} yet; leave it out, or generate in a \
         process of its own",
        CLASSES.join(", "),
        shorten(class)
    );
    Err(RequestError::at(pointer, problem))
}

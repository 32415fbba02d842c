//! GPT-2: `modeling_gpt2.py`.

use crate::huggingface::attention::{joined, sdpa};
use crate::huggingface::generation::{
    GenerationInputs, GenerationTraits, generated, masked, positions,
};
use crate::huggingface::prelude::*;
use crate::huggingface::text;
use crate::tracing::Adapter;
use crate::tracing::functional::Attention as Settings;

const CODE: Code = Code::new("gpt2.modeling_gpt2", "GPT2");

/// What a config says of such a model.
struct Decoder {
    vocabulary: u64,
    positions: u64,
    width: u64,
    layers: u64,
    head_dim: u64,
    intermediate: u64,
    activation: String,
    eps: f64,
    residual_dropout: f64,
    embedding_dropout: f64,
    attention_dropout: f64,
    scales_attention: bool,
    scales_by_layer: bool,
}

impl Decoder {
    fn read(config: &Config<'_>) -> Result<Decoder, RequestError> {
        if config.flag("add_cross_attention", false)? {
            return Err(config.not_built("add_cross_attention"));
        }
        let width = config.size("n_embd", 768)?;
        let heads = config.size("n_head", 12)?;
        Ok(Decoder {
            vocabulary: config.size("vocab_size", 50257)?,
            positions: config.size("n_positions", 1024)?,
            width,
            layers: config.layers("n_layer", 12)?,
            head_dim: config.quotient([("n_embd", width), ("n_head", heads)])?,
            intermediate: config.size("n_inner", width.saturating_mul(4))?,
            activation: config.text("activation_function", "gelu_new")?.to_owned(),
            eps: config.number("layer_norm_epsilon", 1e-5)?,
            residual_dropout: config.number("resid_pdrop", 0.1)?,
            embedding_dropout: config.number("embd_pdrop", 0.1)?,
            attention_dropout: config.number("attn_pdrop", 0.1)?,
            scales_attention: config.flag("scale_attn_weights", true)?,
            scales_by_layer: config.flag("scale_attn_by_inverse_layer_idx", false)?,
        })
    }

    /// What attention multiplies its scores by in a layer.
    fn scale(&self, layer: u64) -> f64 {
        let mut scale = 1.0;
        if self.scales_attention {
            scale = (self.head_dim as f64).powf(-0.5);
        }
        if self.scales_by_layer {
            scale /= (layer + 1) as f64;
        }
        scale
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Decoder::read(&task.config)?;
    let positions = task.config.spelled("n_positions");
    let seq_len = task.tokens_of(positions, config.positions)?;
    let tracer = task.tracer(CODE.module);
    let (model, words) = new_model(&tracer, &config);
    let forward = |ids: &Tensor| model(ids, None);
    let linear = |name: &str, outputs: u64, bias: bool| {
        Linear::new(&tracer, name, [config.width, outputs], bias)
    };
    match task.class {
        "GPT2ForSequenceClassification" => {
            let labels = Labels::of(&task.config, 2)?;
            let padding = task.config.token("pad_token_id", None)?;
            let score = linear("score", labels.count, false);
            text::classes_of_last_token((task, seq_len, padding), tracer, forward, (&score, labels))
        }
        "GPT2ForTokenClassification" => {
            let labels = Labels::of(&task.config, 2)?.count;
            let p = task.config.number("hidden_dropout", 0.1)?;
            let p = task.config.number("classifier_dropout", p)?;
            let dropout = Dropout::new("dropout".into(), p);
            let classifier = linear("classifier", labels, true);
            let head = (Some(&dropout), &classifier, labels);
            text::token_classes(task, tracer, seq_len, forward, head)
        }
        "GPT2ForQuestionAnswering" => {
            let qa_outputs = linear("qa_outputs", 2, true);
            let forward = |ids: &Tensor| model(ids, None).into();
            text::answer(task, tracer, seq_len, forward, &qa_outputs)
        }
        _ => {
            let lm_head = text::lm_head(task, &words, true)?;
            if let Some(generation) = &task.sizes.generation {
                let forward = |ids: &Tensor, past: &GenerationInputs<'_>| model(ids, Some(past));
                let how = (generation, &GenerationTraits::plain(config.layers));
                return generated(task, tracer, how, forward, |x| lm_head.forward(x));
            }
            let head = (&lm_head, config.vocabulary);
            text::next_token(task, tracer, seq_len, forward, head)
        }
    }
}

/// `Conv1D`: a linear layer whose weight is transposed.
struct Conv1D {
    place: ModulePath,
    weight: Tensor,
    bias: Tensor,
    adapter: Option<Box<Adapter>>,
    outputs: u64,
}

impl Conv1D {
    fn new(tracer: &Tracer, path: impl AsRef<str>, [inputs, outputs]: [u64; 2]) -> Conv1D {
        let path = path.as_ref();
        let own = Adapter::path_of_layer(tracer, path);
        Conv1D {
            weight: tracer.parameter(&format!("{own}.weight"), &[inputs, outputs]),
            bias: tracer.parameter(&format!("{own}.bias"), &[outputs]),
            adapter: Adapter::of_layer(tracer, path, [inputs, outputs]),
            place: ModulePath::new(own, "transformers.pytorch_utils.Conv1D"),
            outputs,
        }
    }

    fn forward(&self, x: impl Tensors) -> Tensor {
        Adapter::forward(self.adapter.as_deref(), x, |x| {
            x.tracer().in_module(&self.place, || {
                let rows = x.view(&[Size::REST, x.size(-1).into()]);
                let y = functional::addmm(&self.bias, rows, &self.weight);
                y.view(&[x.size(0).into(), x.size(1).into(), self.outputs.into()])
            })
        })
    }
}

/// `GPT2Attention`.
fn new_attention(
    tracer: &Tracer,
    path: String,
    config: &Decoder,
    layer: u64,
) -> impl Fn(&Tensor, Option<&GenerationInputs<'_>>, Option<&Tensor>) -> Tensor + use<> {
    let place = CODE.place(path, "Attention");
    let width = config.width;
    let c_attn = Conv1D::new(
        tracer,
        place.path("c_attn"),
        [width, width.saturating_mul(3)],
    );
    let c_proj = Conv1D::new(tracer, place.path("c_proj"), [width, width]);
    let resid_dropout = Dropout::new(place.path("resid_dropout"), config.residual_dropout);
    let dropout = config.attention_dropout;
    let head_dim = config.head_dim;
    let scale = config.scale(layer);
    let layer = usize::try_from(layer).unwrap_or(usize::MAX);
    move |x: &Tensor, past: Option<&GenerationInputs<'_>>, mask: Option<&Tensor>| {
        x.tracer().in_module(&place, || {
            let (batch, seq_len) = (x.size(0), x.size(1));
            let heads = [batch.into(), seq_len.into(), Size::REST, head_dim.into()];
            let mut states = c_attn.forward(x).split(width, 2).into_iter();
            let mut next = || states.next().unwrap_or_else(|| x.clone());
            let (mut query, mut key, mut value) = (next(), next(), next());
            key = (&key).view(&heads).transpose(1, 2);
            value = (&value).view(&heads).transpose(1, 2);
            query = (&query).view(&heads).transpose(1, 2);
            if let Some(past) = past {
                [key, value] = past.cache.update(layer, [&key, &value]);
            }
            let settings = Settings::of_decoder(x, mask, [dropout, scale]);
            let mut output = joined(sdpa(&query, &key, &value, settings));
            output = c_proj.forward(&output);
            output = resid_dropout.forward(&output);
            output.and_drop((query, key, value))
        })
    }
}

/// `GPT2MLP`.
fn new_mlp(tracer: &Tracer, path: String, config: &Decoder) -> FnModule {
    let place = CODE.place(path, "MLP");
    let (outer, inner) = (config.width, config.intermediate);
    let c_fc = Conv1D::new(tracer, place.path("c_fc"), [outer, inner]);
    let c_proj = Conv1D::new(tracer, place.path("c_proj"), [inner, outer]);
    let act = Activation::named(tracer, place.path("act"), &config.activation);
    let dropout = Dropout::new(place.path("dropout"), config.residual_dropout);
    FnModule::new(place, move |x| {
        let mut hidden_states = c_fc.forward(x);
        hidden_states = act.forward(&hidden_states);
        hidden_states = c_proj.forward(&hidden_states);
        hidden_states = dropout.forward(&hidden_states);
        hidden_states
    })
}

/// `GPT2Block`.
fn new_block(
    tracer: &Tracer,
    path: String,
    config: &Decoder,
    layer: u64,
) -> impl Fn(&Tensor, Option<&GenerationInputs<'_>>, Option<&Tensor>) -> Tensor + use<> {
    let place = CODE.place(path, "Block");
    let norm = |name| LayerNorm::new(tracer, place.path(name), config.width, config.eps);
    let ln_1 = norm("ln_1");
    let attn = new_attention(tracer, place.path("attn"), config, layer);
    let ln_2 = norm("ln_2");
    let mlp = new_mlp(tracer, place.path("mlp"), config);
    move |x: &Tensor, past: Option<&GenerationInputs<'_>>, mask: Option<&Tensor>| {
        x.tracer().in_module(&place, || {
            let mut hidden_states = ln_1.forward(x);
            let attn_output = attn(&hidden_states, past, mask);
            hidden_states = (&attn_output).add(x);
            let residual = hidden_states.clone();
            hidden_states = ln_2.forward(&hidden_states);
            let feed_forward = mlp.forward(&hidden_states);
            hidden_states = (&residual).add(&feed_forward);
            hidden_states.and_drop((residual, attn_output, feed_forward))
        })
    }
}

/// `GPT2Model`.
fn new_model(
    tracer: &Tracer,
    config: &Decoder,
) -> (
    impl Fn(&Tensor, Option<&GenerationInputs<'_>>) -> Tensor + use<>,
    Tensor,
) {
    let place = CODE.place("transformer", "Model");
    let embedding = |name, rows| Embedding::new(tracer, place.path(name), [rows, config.width]);
    let wte = embedding("wte", config.vocabulary);
    let wpe = embedding("wpe", config.positions);
    let drop = Dropout::new(place.path("drop"), config.embedding_dropout);
    let h: Vec<_> = (0..config.layers)
        .map(|layer| new_block(tracer, place.path(&format!("h.{layer}")), config, layer))
        .collect();
    let ln_f = LayerNorm::new(tracer, place.path("ln_f"), config.width, config.eps);

    let weight = wte.weight.clone();
    let module = move |ids: &Tensor, past: Option<&GenerationInputs<'_>>| {
        let tracer = ids.tracer();
        tracer.in_module(&place, || {
            let seq_len = ids.length(1);
            let input_ids = ids.view(&[Size::REST, seq_len.into()]);
            let inputs_embeds = wte.forward(&input_ids);
            let position_ids = positions(past, &tracer, seq_len);
            let position_embeds = wpe.forward(&position_ids);
            let mut hidden_states = (&inputs_embeds).add((&position_embeds).to_device());
            let mask = masked(past, &position_ids, ids);
            hidden_states = drop.forward(&hidden_states);
            for block in &h {
                hidden_states = block(&hidden_states, past, mask.as_ref());
            }
            hidden_states = ln_f.forward(&hidden_states);
            let width = hidden_states.size(-1).into();
            hidden_states = (&hidden_states).view(&[Size::REST, seq_len.into(), width]);
            hidden_states.and_drop((
                input_ids,
                position_ids,
                inputs_embeds,
                position_embeds,
                mask,
            ))
        })
    };
    (module, weight)
}

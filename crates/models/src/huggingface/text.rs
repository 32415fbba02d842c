//! What models of text are trained on: each function here is a `forward` of a class with a head, around the model's own.
//!
//! Python's `.to(device)` of a tensor that is there already returns the same tensor, and is left out.

use super::attention::padded;
use super::generation::{GenerationTraits, Past, generated};
use super::heads::{causal_language_loss, chunked_loss};
use crate::huggingface::prelude::*;
use crate::tracing::functional::{cross_entropy, cross_entropy_ignoring};

/// A batch of token ids.
pub(super) fn ids(tracer: &Tracer, name: &str, seq_len: u64) -> Tensor {
    let shape = [Extent::BATCH, Extent::fixed(seq_len)];
    tracer.input(name, &shape, DType::Int64)
}

/// One whole number for each sample.
fn positions(tracer: &Tracer, name: &str) -> Tensor {
    tracer.input(name, &[Extent::BATCH], DType::Int64)
}

/// What tells tokens: what makes logits of states, of how many words, and whether they live on beside the loss.
pub(super) struct WordHead<F> {
    pub(super) logits: F,
    pub(super) vocabulary: u64,
    pub(super) keeps_logits: bool,
}

/// `...ForCausalLM`: each token is told from those before it, or text is generated.
pub(super) fn language_model<F: Fn(Tensor) -> Tensor>(
    task: &Task<'_>,
    tracer: Tracer,
    (seq_len, traits): (u64, GenerationTraits),
    forward: impl Fn(&Tensor, Past<'_>) -> Tensor,
    head: WordHead<F>,
) -> Result<Graph, RequestError> {
    if let Some(generation) = &task.sizes.generation {
        return generated(task, tracer, (generation, &traits), forward, head.logits);
    }
    // One tensor, as training scripts do it: the model shifts its labels itself.
    let ids = ids(&tracer, "labels", seq_len);
    let outputs = padded(task, &ids, || forward(&ids, None));
    let mut kept = None;
    let loss = if let Some(chunks) = task.sizes.loss_chunks {
        let logits = |hidden: &Tensor| (head.logits)(hidden.clone());
        let loss = chunked_loss(logits, &outputs, &ids, chunks);
        loss.and_drop(outputs)
    } else {
        let logits = (head.logits)((&outputs).alias());
        let loss = causal_language_loss(&logits, &ids, head.vocabulary);
        kept = head.keeps_logits.then(|| logits.clone());
        loss.and_drop((outputs, logits))
    };
    let graph = task.finish(tracer, &loss);
    drop(kept);
    graph
}

/// The same of a model whose head is a linear layer, with the weight of its words where they are tied.
pub(super) fn tied_language_model(
    task: &Task<'_>,
    (words, is_tied_by_default): (&Embedding, bool),
    (seq_len, traits): (u64, GenerationTraits),
    forward: impl Fn(&Tensor, Past<'_>) -> Tensor,
) -> Result<Graph, RequestError> {
    let weight = &words.weight;
    let (tracer, vocabulary) = (weight.tracer(), weight.length(0));
    let is_tied = task
        .config
        .flag("tie_word_embeddings", is_tied_by_default)?;
    let lm_head = if is_tied {
        Linear::tied("lm_head".into(), weight, None)
    } else {
        let sizes = [weight.length(1), vocabulary];
        Linear::new(&tracer, "lm_head", sizes, false)
    };
    let head = WordHead {
        logits: |x: Tensor| lm_head.forward(x),
        vocabulary,
        keeps_logits: false,
    };
    language_model(task, tracer, (seq_len, traits), forward, head)
}

/// `...ForMaskedLM`: some tokens are told from all others.
pub(super) fn masked_token(
    task: &Task<'_>,
    tracer: Tracer,
    seq_len: u64,
    forward: impl FnOnce(&Tensor) -> Tensor,
    head: impl FnOnce(&Tensor) -> Tensor,
    vocabulary: u64,
) -> Result<Graph, RequestError> {
    let given = ids(&tracer, "input_ids", seq_len);
    let labels = ids(&tracer, "labels", seq_len);
    let (outputs, prediction_scores) = padded(task, &given, || {
        let outputs = forward(&given);
        let scores = head(&outputs);
        (outputs, scores)
    });
    let loss = cross_entropy(
        (&prediction_scores).view(&[Size::REST, vocabulary.into()]),
        labels.view(&[Size::REST]),
    );
    drop((outputs, prediction_scores));
    task.finish(tracer, &loss)
}

/// `...ForSequenceClassification` of encoders: a label for each text, of logits; other names hold something, too, when the loss is computed.
pub(super) fn classes<T>(
    task: &Task<'_>,
    tracer: Tracer,
    seq_len: u64,
    labels: Labels,
    logits: impl FnOnce(&Tensor) -> (Tensor, T),
) -> Result<Graph, RequestError> {
    let ids = ids(&tracer, "input_ids", seq_len);
    let given = labels.input(&tracer);
    let (logits, held) = padded(task, &ids, || logits(&ids));
    let loss = labels.loss(&logits, &given);
    drop((held, logits));
    task.finish(tracer, &loss)
}

/// `...ForSequenceClassification` of encoders that pool: a label for each text, after `dropout`. The model gives the states of all
/// tokens, and what stands for the whole text.
pub(super) fn classes_of_pooled(
    task: &Task<'_>,
    tracer: Tracer,
    seq_len: u64,
    model: impl FnOnce(&Tensor) -> (Tensor, Option<Tensor>),
    (labels, width, dropout): (Labels, u64, f64),
) -> Result<Graph, RequestError> {
    let classifier = Linear::new(&tracer, "classifier", [width, labels.count], true);
    let dropout = Dropout::new("dropout".into(), dropout);
    classes(task, tracer, seq_len, labels, |ids| {
        let (sequence, pooled) = model(ids);
        let mut pooled_output = pooled.clone().unwrap_or_else(|| ids.clone());
        pooled_output = dropout.forward(&pooled_output);
        let logits = classifier.forward(&pooled_output);
        (logits, (sequence, pooled, pooled_output))
    })
}

/// `...ForSequenceClassification` of decoders: a label for each text, from its last token that is not `padding`. Logits may live on beside
/// the loss.
pub(super) fn classes_of_last_token(
    (task, seq_len, padding): (&Task<'_>, u64, i64),
    tracer: Tracer,
    forward: impl FnOnce(&Tensor) -> Tensor,
    (width, labels, keeps_logits): (u64, Labels, bool),
) -> Result<Graph, RequestError> {
    let score = Linear::new(&tracer, "score", [width, labels.count], false);
    let ids = ids(&tracer, "input_ids", seq_len);
    let given = labels.input(&tracer);
    let outputs = padded(task, &ids, || forward(&ids));
    let logits = score.forward(&outputs);
    let non_pad_mask = (&ids).not_equal_to_number(padding).to(DType::Int32);
    let token_indices = tracer.arange_of(seq_len, DType::Int32);
    let last_non_pad_token = (&token_indices).mul(&non_pad_mask).argmax(-1);
    let pooled_logits = {
        let rows = tracer.arange_of(ids.size(0), DType::Int64);
        (&logits).index(&[Some(&rows), Some(&last_non_pad_token)])
    };
    let loss = labels.loss(&pooled_logits, &given);
    let kept = keeps_logits.then(|| pooled_logits.clone());
    drop((outputs, logits, last_non_pad_token));
    drop((non_pad_mask, token_indices, pooled_logits));
    let graph = task.finish(tracer, &loss);
    drop(kept);
    graph
}

/// The same of a model of this width, whose class has this token that fills the ends of texts where the config says none. Without one no
/// batch can be classified.
pub(super) fn classes_of_decoder(
    task: &Task<'_>,
    tracer: Tracer,
    (seq_len, width, padding): (u64, u64, Option<u64>),
    forward: impl FnOnce(&Tensor) -> Tensor,
) -> Result<Graph, RequestError> {
    let labels = Labels::of(&task.config, 2)?;
    let padding = task.config.token("pad_token_id", padding)?;
    let padding = padding.and_then(|token| i64::try_from(token).ok());
    let padding = padding.ok_or_else(|| {
        task.config.wrong("pad_token_id", "to classify texts of several lengths, the model needs pad_token_id, the token that fills their ends",
        )
    })?;
    let head = (width, labels, false);
    classes_of_last_token((task, seq_len, padding), tracer, forward, head)
}

/// `...ForTokenClassification`: a label for each token.
fn token_classes(
    task: &Task<'_>,
    tracer: Tracer,
    seq_len: u64,
    forward: impl FnOnce(&Tensor) -> Tensor,
    (dropout, classifier, count): (&Dropout, &Linear, u64),
) -> Result<Graph, RequestError> {
    let given = ids(&tracer, "input_ids", seq_len);
    let labels = ids(&tracer, "labels", seq_len);
    let outputs = padded(task, &given, || forward(&given));
    let sequence_output = dropout.forward(&outputs);
    let logits = classifier.forward(&sequence_output);
    let loss = cross_entropy(
        (&logits).view(&[Size::REST, count.into()]),
        labels.view(&[Size::REST]),
    );
    drop((outputs, sequence_output, logits));
    task.finish(tracer, &loss)
}

/// `...ForQuestionAnswering`: where the answer begins and ends.
pub(super) fn answer(
    task: &Task<'_>,
    tracer: Tracer,
    seq_len: u64,
    forward: impl FnOnce(&Tensor) -> Tensor,
    (dropout, qa_outputs): (Option<&Dropout>, &Linear),
) -> Result<Graph, RequestError> {
    let given = ids(&tracer, "input_ids", seq_len);
    let start_positions = positions(&tracer, "start_positions");
    let end_positions = positions(&tracer, "end_positions");
    let (held, output) = padded(task, &given, || {
        let held = forward(&given);
        let output = dropout.map_or_else(|| held.clone(), |dropout| dropout.forward(&held));
        (held, output)
    });
    let logits = qa_outputs.forward(&output);
    let mut split = (&logits).split(1, -1);
    let mut end_logits = split.swap_remove(1);
    let mut start_logits = split.swap_remove(0);
    start_logits = (&start_logits).squeeze(-1).contiguous();
    end_logits = (&end_logits).squeeze(-1).contiguous();

    let last = i64::try_from(seq_len).unwrap_or(i64::MAX);
    let clamp = |positions: &Tensor| positions.clamp(Some(0.into()), Some(last.into()));
    let start_positions = clamp(&start_positions);
    let end_positions = clamp(&end_positions);
    let start_loss = cross_entropy_ignoring(&start_logits, &start_positions, seq_len);
    let end_loss = cross_entropy_ignoring(&end_logits, &end_positions, seq_len);
    let loss = (&start_loss).add(&end_loss).div_number(2);
    drop((start_positions, end_positions, held, output, logits));
    drop((start_loss, end_loss, start_logits, end_logits));
    task.finish(tracer, &loss)
}

/// The heads of encoders that look at each token: a label for it, after `dropout`, or where an answer begins and ends.
pub(super) fn of_tokens(
    task: &Task<'_>,
    tracer: Tracer,
    seq_len: u64,
    forward: impl FnOnce(&Tensor) -> Tensor,
    (labels, width, dropout): (Labels, u64, f64),
) -> Result<Graph, RequestError> {
    if task.class.ends_with("ForQuestionAnswering") {
        labels.must_be_two(&task.config)?;
        let qa_outputs = Linear::new(&tracer, "qa_outputs", [width, 2], true);
        return answer(task, tracer, seq_len, forward, (None, &qa_outputs));
    }
    let classifier = Linear::new(&tracer, "classifier", [width, labels.count], true);
    let dropout = Dropout::new("dropout".into(), dropout);
    let head = (&dropout, &classifier, labels.count);
    token_classes(task, tracer, seq_len, forward, head)
}

//! Embeddings of words, positions and kinds of text, as BERT and those that copy it add them.

use super::encoder::Shape;
use crate::huggingface::prelude::*;

/// How tokens are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbering {
    /// From zero.
    Plain,
    /// From the one after this token, which fills the ends of texts and keeps its own number.
    After(u64),
}

/// `BertEmbeddings`.
/// The module, and the weight of its words. `words` is that weight if another module has made it already.
pub(super) fn new_embeddings(
    tracer: &Tracer,
    path: String,
    shape: &Shape,
    numbering: Numbering,
    words: Option<&Tensor>,
) -> (FnModule, Tensor) {
    let place = shape.code.place(path, "Embeddings");
    if shape.types == 0 {
        tracer.fail(
            "embedding",
            "type_vocab_size is 0, but texts are of one kind at least",
        );
    }
    let width = shape.embedding_width;
    let embedding = |name, rows| Embedding::new(tracer, place.path(name), [rows, width]);
    let words = match words {
        Some(weight) => Embedding::tied(place.path("word_embeddings"), weight),
        None => embedding("word_embeddings", shape.vocabulary),
    };
    // BERT makes the embedding of positions second, RoBERTa last.
    let positions = || embedding("position_embeddings", shape.positions);
    let (padding, first) = match numbering {
        Numbering::Plain => (None, Some(positions())),
        Numbering::After(padding) => (Some(padding), None),
    };
    let types = embedding("token_type_embeddings", shape.types);
    let layer_norm = LayerNorm::new(tracer, place.path("LayerNorm"), width, shape.eps);
    let ids = |name| tracer.buffer(&place.path(name), &[1, shape.positions], DType::Int64);
    let words = words.padding(shape.padding);
    let positions = first.unwrap_or_else(positions).padding(padding);
    let dropout = Dropout::new(place.path("dropout"), shape.dropout);
    let position_ids = ids("position_ids");
    let token_type_ids = ids("token_type_ids");

    let weight = words.weight.clone();
    let module = FnModule::new(place, move |ids| {
        let (batch, seq_len): (Size, u64) = (ids.size(0).into(), ids.length(1));
        let position_ids = match numbering {
            Numbering::Plain => (&position_ids).slice(1, 0, seq_len.cast_signed()),
            Numbering::After(padding) => position_ids_after(ids, padding, true),
        };
        let mut buffered = (&token_type_ids).expand(&[position_ids.size(0).into(), Size::REST]);
        buffered = (&buffered).gather(1, &position_ids);
        let token_type_ids = (&buffered).expand(&[batch, seq_len.into()]);
        let inputs_embeds = words.forward(ids);
        let token_type_embeddings = types.forward(&token_type_ids);
        let mut embeddings = (&inputs_embeds).add(&token_type_embeddings);
        let position_embeddings = positions.forward(&position_ids);
        embeddings = (&embeddings).add(&position_embeddings);
        embeddings = chain(&[&layer_norm, &dropout], embeddings);
        drop((token_type_ids, position_ids, inputs_embeds, buffered));
        embeddings.and_drop((token_type_embeddings, position_embeddings))
    });
    (module, weight)
}

/// `create_position_ids_from_input_ids`.
pub(super) fn position_ids_after(ids: &Tensor, padding: u64, adds_past: bool) -> Tensor {
    let padding = i64::try_from(padding).unwrap_or(i64::MAX);
    let mask = ids.not_equal_to_number(padding).to(DType::Int32);
    let mut counted = (&mask).cumsum(1).type_as(&mask);
    if adds_past {
        counted = counted.add_number(0); // `past_key_values_length`.
    }
    let incremental_indices = counted.mul(&mask);
    let position_ids = (&incremental_indices).to(DType::Int64).add_number(padding);
    position_ids.and_drop((mask, incremental_indices))
}

//! Embeddings of words, positions and kinds of text, as BERT and those that copy it add them.

use crate::huggingface::prelude::*;

/// How tokens are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbering {
    /// From zero.
    Plain,
    /// From the one after this token, which fills the ends of texts and keeps its own number.
    After(u64),
}

/// The embedding of words of a model, as its embeddings call it.
pub(super) fn words(model: &Frame, shape: &Shape) -> Embedding {
    let sizes = [shape.vocabulary, shape.embedding_width];
    let words = model.embedding("embeddings.word_embeddings", sizes);
    words.padding(shape.padding)
}

/// `BertEmbeddings`, with the embedding of words.
pub(super) fn embeddings(
    at: &Frame,
    shape: &Shape,
    numbering: Numbering,
    words: &Embedding,
    ids: &Tensor,
) -> Tensor {
    if shape.types == 0 {
        at.tracer().fail_to_make(
            &at.path(""),
            "embedding",
            "type_vocab_size is 0, but texts are of one kind at least",
        );
    }
    let width = shape.embedding_width;
    let (batch, seq_len): (Size, u64) = (ids.size(0).into(), ids.length(1));
    if let Numbering::After(_) = numbering {
        // BERT makes the embedding of positions second, RoBERTa last.
        at.made(&["token_type_embeddings", "LayerNorm"]);
    }
    let positions = at.embedding("position_embeddings", [shape.positions, width]);
    let own_ids = |name| at.buffer(name, &[1, shape.positions], DType::Int64);
    let (positions, position_ids) = match numbering {
        Numbering::Plain => {
            let all = own_ids("position_ids");
            (positions, (&all).slice(1, 0, seq_len.cast_signed()))
        }
        Numbering::After(padding) => {
            own_ids("position_ids");
            let positions = positions.padding(Some(padding));
            (positions, position_ids_after(ids, padding, true))
        }
    };
    let token_type_ids = own_ids("token_type_ids");
    let mut buffered = (&token_type_ids).expand(&[position_ids.size(0).into(), Size::REST]);
    buffered = (&buffered).gather(1, &position_ids);
    let token_type_ids = (&buffered).expand(&[batch, seq_len.into()]);
    let inputs_embeds = words.forward(ids);
    let types = at.embedding("token_type_embeddings", [shape.types, width]);
    let token_type_embeddings = types.forward(&token_type_ids);
    let mut embeddings = (&inputs_embeds).add(&token_type_embeddings);
    let position_embeddings = positions.forward(&position_ids);
    embeddings = (&embeddings).add(&position_embeddings);
    embeddings = at.layer_norm("LayerNorm", width, shape.eps, embeddings);
    embeddings = at.dropout("dropout", shape.dropout, embeddings);
    drop((token_type_ids, position_ids, inputs_embeds, buffered));
    embeddings.and_drop((token_type_embeddings, position_embeddings))
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

//! Attention of DeBERTa v2, which looks at words and at their distances apart: `DisentangledSelfAttention`.

use crate::huggingface::attention::smallest;
use crate::huggingface::prelude::*;

/// How distances take part.
pub(super) struct Relative {
    /// How many distances in one direction have an embedding.
    pub(super) span: u64,
    /// Into how many distances all are gathered, the nearer the finer.
    buckets: Option<u64>,
    /// Whether words look at distances.
    content_to_position: bool,
    /// Whether distances look at words.
    position_to_content: bool,
    /// Whether both have the projections of words.
    shares_key: bool,
}

impl Relative {
    pub(super) fn read(config: &Config<'_>, shape: &Shape) -> Result<Relative, RequestError> {
        let furthest = config.token("max_relative_positions", None)?;
        let furthest = furthest.filter(|furthest| *furthest > 0);
        let furthest = furthest.unwrap_or(shape.positions);
        let buckets = config.token("position_buckets", None)?;
        let buckets = buckets.filter(|buckets| *buckets > 0);
        if buckets.is_some_and(|buckets| buckets < 4) {
            let problem = "position_buckets must be at least 4, or -1 for none";
            return Err(config.wrong("position_buckets", problem));
        }
        let types: Vec<String> = if config.is_text("pos_att_type") {
            let types = config.text("pos_att_type", "")?.to_lowercase();
            types
                .split('|')
                .map(|word| word.trim().to_owned())
                .collect()
        } else {
            let types = config.texts("pos_att_type")?.unwrap_or_default();
            types.into_iter().map(str::to_owned).collect()
        };
        Ok(Relative {
            span: buckets.unwrap_or(furthest),
            buckets,
            content_to_position: types.iter().any(|word| word == "c2p"),
            position_to_content: types.iter().any(|word| word == "p2c"),
            shares_key: config.flag("share_att_key", false)?,
        })
    }

    fn scale_factor(&self) -> i64 {
        1 + i64::from(self.content_to_position) + i64::from(self.position_to_content)
    }
}

/// `build_relative_position`.
pub(super) fn relative_positions(states: &Tensor, relative: &Relative) -> Tensor {
    let tracer = states.tracer();
    let seq_len = states.length(1);
    let q_ids = tracer.arange_of(seq_len, DType::Int64);
    let k_ids = tracer.arange_of(seq_len, DType::Int64);
    let mut ids = (&q_ids).unsqueeze(1).sub((&k_ids).unsqueeze(0));
    if let Some(buckets) = relative.buckets {
        ids = log_bucket_position(&ids, buckets);
    }
    ids = (&ids).to(DType::Int64);
    ids = (&ids).alias();
    ids = (&ids).unsqueeze(0);
    ids.and_drop((q_ids, k_ids))
}

/// `torch.tensor(number)`.
fn tensor(tracer: &Tracer, dtype: DType) -> Tensor {
    let constant = tracer.constant(&[], dtype);
    (&constant).lift_fresh_copy()
}

/// `make_log_bucket_position`.
fn log_bucket_position(positions: &Tensor, buckets: u64) -> Tensor {
    let tracer = positions.tracer();
    let sign = positions.sign();
    let mid = (buckets / 2).cast_signed();
    let near = positions
        .less_than_number(mid)
        .and(positions.greater_than_number(-mid));
    let abs_pos = {
        let inner = tensor(&tracer, DType::Int64).type_as(positions);
        near.choose(inner, positions.abs())
    };
    let log_pos = (&abs_pos)
        .div_number(mid)
        .log()
        .div(tensor(&tracer, DType::Float32).log())
        .mul_number(mid - 1)
        .ceil()
        .add_number(mid);
    let is_near = (&abs_pos).at_most_number(mid);
    let bucket_pos = is_near.choose(positions.type_as(&log_pos), (&log_pos).mul(&sign));
    bucket_pos.and_drop((sign, abs_pos, log_pos))
}

/// `DisentangledSelfAttention`, as it is called.
pub(super) struct Attention<'a> {
    pub(super) at: &'a Frame,
    pub(super) shape: &'a Shape,
    pub(super) relative: Option<&'a Relative>,
}

impl Attention<'_> {
    fn linear(&self, name: &str, x: &Tensor) -> Tensor {
        let width = self.shape.width;
        self.at.linear(name, [width, width], true, x)
    }

    /// `transpose_for_scores`.
    fn transpose_for_scores(&self, x: impl Tensors) -> Tensor {
        let (batch, seq_len) = (x.tensor().size(0), x.tensor().size(1));
        let heads = [
            batch.into(),
            seq_len.into(),
            self.shape.heads.into(),
            Size::REST,
        ];
        let split = x.tensor().view(&heads);
        let dim = split.size(-1);
        let flat = [Size::REST, seq_len.into(), dim.into()];
        let made = (&split).permute(&[0, 2, 1, 3]).contiguous().view(&flat);
        made.and_drop((split, x))
    }

    /// `scaled_size_sqrt`.
    fn scale(&self, tracer: &Tracer) -> Tensor {
        let size = tensor(tracer, DType::Float32);
        size.mul_number(self.relative.map_or(1, Relative::scale_factor))
            .sqrt()
    }

    pub(super) fn forward(
        &self,
        x: &Tensor,
        mask: &Tensor,
        relative: Option<[&Tensor; 2]>,
    ) -> Tensor {
        let (tracer, heads) = (self.at.tracer(), self.shape.heads);
        self.at.made(&["query_proj", "key_proj", "value_proj"]);
        let query = self.transpose_for_scores(self.linear("query_proj", x));
        let key = self.transpose_for_scores(self.linear("key_proj", x));
        let value = self.transpose_for_scores(self.linear("value_proj", x));
        let scale = self.scale(tracer);
        let mut scores = {
            let turned = (&key).transpose(-1, -2);
            let scaled = turned.div((&scale).to_dtype_of(query.dtype()));
            (&query).bmm(scaled)
        };
        let mut relative_states = None;
        let mut rel_att = None;
        if let Some([positions, embeddings]) = relative {
            let embeddings = self
                .at
                .dropout("pos_dropout", self.shape.dropout, embeddings);
            rel_att = self.bias([&query, &key], positions, &embeddings);
            relative_states = Some(embeddings);
        }
        if let Some(rel_att) = &rel_att {
            scores = (&scores).add(rel_att);
        }
        let (rows, columns): (Size, Size) = (scores.size(-2).into(), scores.size(-1).into());
        scores = (&scores).view(&[Size::REST, heads.into(), rows, columns]);
        let is_seen = mask.to(DType::Bool);
        let least = smallest(query.dtype().dtype);
        scores = (&scores).masked_fill((&is_seen).bitwise_not(), least);
        let mut probs = (&scores).softmax(-1, None);
        probs = self
            .at
            .dropout("dropout", self.shape.attention_dropout, probs);
        let mut context = (&probs).view(&[Size::REST, rows, columns]).bmm(&value);
        let dim = context.size(-1).into();
        context = (&context)
            .view(&[Size::REST, heads.into(), rows, dim])
            .permute(&[0, 2, 1, 3])
            .contiguous();
        context = (&context).view(&[x.size(0).into(), rows, Size::REST]);
        drop((is_seen, relative_states, query, key, value));
        context.and_drop((rel_att, scale, scores, probs))
    }

    /// `disentangled_attention_bias`.
    fn bias(
        &self,
        [query, key]: [&Tensor; 2],
        positions: &Tensor,
        embeddings: &Tensor,
    ) -> Option<Tensor> {
        let tracer = self.at.tracer();
        let positions = positions.unsqueeze(1);
        let embeddings = embeddings.alias().unsqueeze(0);
        let relative = self.relative?;
        let heads = Extent::fixed(self.shape.heads);
        let batch: Size = query
            .size(0)
            .checked_div(heads)
            .unwrap_or(Extent::ONE)
            .into();
        let projected = |name: &str| {
            let states = self.transpose_for_scores(self.linear(name, &embeddings));
            states.repeat(&[batch, 1.into(), 1.into()])
        };
        let looks = [relative.content_to_position, relative.position_to_content];
        let pos_query;
        let pos_key;
        if relative.shares_key || looks == [false; 2] {
            pos_query = Some(projected("query_proj"));
            pos_key = Some(projected("key_proj"));
        } else {
            pos_key = looks[0].then(|| projected("pos_key_proj"));
            pos_query = looks[1].then(|| projected("pos_query_proj"));
        }
        let span = relative.span.cast_signed();
        let last = 2 * span - 1;
        let within = |positions: Tensor| {
            let shifted = positions.add_number(span);
            shifted.clamp(Some(0.into()), Some(last.into()))
        };
        let sizes = [0, 1, 1].map(|dim| Size::from(query.size(dim)));
        let mut score: Option<Tensor> = None;
        let mut scale = None;
        let mut held = Vec::new();
        if let (true, Some(pos_key)) = (looks[0], &pos_key) {
            scale = Some(self.scale(tracer));
            let mut att = query.bmm(pos_key.transpose(-1, -2));
            let at = within(positions.clone());
            att = (&att).gather(-1, (&at).squeeze(0).expand(&sizes));
            score = Some(added(score, &att, scale.as_ref()));
            held.extend([att, at]);
        }
        if let (true, Some(pos_query)) = (looks[1], &pos_query) {
            scale = Some(self.scale(tracer));
            let at = within((&positions).neg());
            let mut att = key.bmm(pos_query.transpose(-1, -2));
            att = (&att)
                .gather(-1, (&at).squeeze(0).expand(&sizes))
                .transpose(-1, -2);
            score = Some(added(score, &att, scale.as_ref()));
            held.extend([at, att]);
        }
        drop((positions, embeddings, pos_query, pos_key, scale));
        held.into_iter().for_each(drop);
        score
    }
}

/// `score += att / scale`
fn added(score: Option<Tensor>, att: &Tensor, scale: Option<&Tensor>) -> Tensor {
    let scaled = match scale {
        Some(scale) => att.div(scale.to_dtype_of(att.dtype())),
        None => att.clone(),
    };
    match score {
        Some(score) => {
            score.add_in_place(scaled);
            score
        }
        None => scaled.add_number(0),
    }
}

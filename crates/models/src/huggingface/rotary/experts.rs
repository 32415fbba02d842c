//! Experts: feed-forward parts of which each token takes a few.
//!
//! transformers runs all of them at once (`integrations/moe.py`, `grouped_mm`), so that sizes do not depend on what tokens choose.

use super::decoder::Decoder;
use super::mlp::mlp;
use crate::huggingface::prelude::*;

/// What a config says of experts.
#[derive(Debug, Clone)]
pub(super) struct Mixture {
    pub(super) count: u64,
    /// How many each token takes.
    pub(super) chosen: u64,
    pub(super) intermediate: u64,
    /// Width of what all tokens take besides.
    pub(super) shared: u64,
    pub(super) family: Family,
    /// Whether each layer has experts; others have what models without experts have.
    pub(super) layers: Vec<bool>,
}

/// Whose code chooses experts and adds up what they make.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Family {
    Mixtral,
    Qwen2 { normalizes: bool },
    Qwen3 { normalizes: bool },
    DeepseekV2(Choice),
    DeepseekV3(Choice),
}

/// How `DeepseekV2TopkRouter` and `DeepseekV3TopkRouter` choose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Choice {
    /// From the best groups only, if there are some.
    pub(super) groups: Option<Groups>,
    pub(super) normalizes: bool,
    pub(super) scaling: f64,
}

/// Groups of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Groups {
    pub(super) count: u64,
    pub(super) chosen: u64,
}

impl Mixture {
    /// Checks what is the same in all families.
    pub(super) fn checked(
        self,
        config: &Config<'_>,
        names: [&str; 2],
    ) -> Result<Mixture, RequestError> {
        let (count, chosen) = (self.count, self.chosen);
        let [count_name, chosen_name] = names.map(|name| config.spelled(name));
        if chosen > count {
            return Err(config.wrong(
                chosen_name,
                format!("{chosen_name} is {chosen}, but {count_name} is {count}"),
            ));
        }
        Ok(self)
    }
}

/// `self.name(x)` of a `MixtralSparseMoeBlock`, or that of another family.
pub(super) fn mixture(
    at: &Frame,
    name: &str,
    config: &Decoder,
    (mixture, products): (&Mixture, Products),
    x: &Tensor,
) -> Tensor {
    let class = match mixture.family {
        Family::DeepseekV2(_) => "Moe",
        Family::DeepseekV3(_) => "MoE",
        _ => "SparseMoeBlock",
    };
    at.call(name, class, |at| {
        let block = Block {
            at,
            config,
            mixture,
        };
        match mixture.family {
            Family::Mixtral | Family::Qwen2 { .. } => {
                at.made(&["gate", "experts", "shared_expert"]);
                block.of_rows(x, products)
            }
            Family::Qwen3 { .. } => {
                at.made(&["experts"]);
                block.of_rows(x, products)
            }
            Family::DeepseekV2(_) | Family::DeepseekV3(_) => {
                at.made(&["experts"]);
                block.after_router(x, products)
            }
        }
    })
}

/// Experts that are called.
struct Block<'a> {
    at: &'a Frame,
    config: &'a Decoder,
    mixture: &'a Mixture,
}

impl Block<'_> {
    /// `MixtralSparseMoeBlock.forward`, `Qwen2MoeSparseMoeBlock.forward` and `Qwen3MoeSparseMoeBlock.forward`.
    fn of_rows(&self, x: &Tensor, products: Products) -> Tensor {
        let (at, width) = (self.at, self.config.shape.width);
        let shape = [0, 1, 2].map(|dim| Size::from(x.size(dim)));
        let rows = x.view(&[Size::REST, shape[2]]);
        let is_shared = matches!(self.mixture.family, Family::Qwen2 { .. });
        let shared = || mlp(at, "shared_expert", self.config, self.mixture.shared, &rows);
        let mut shared = is_shared.then(shared);
        let [logits, weights, indices] = self.route(&rows);
        let mut output = self.experts(&rows, [&indices, &weights], products);
        if let Some(made) = shared.take() {
            let gate = at.linear("shared_expert_gate", [width, 1], false, &rows);
            let made = gate.sigmoid().mul(made);
            output = (&output).add(&made);
            shared = Some(made);
        }
        output = (&output).reshape(&shape);
        output.and_drop((rows, shared, logits, weights, indices))
    }

    /// `DeepseekV3MoE.forward`.
    fn after_router(&self, x: &Tensor, products: Products) -> Tensor {
        let shape = [0, 1, 2].map(|dim| Size::from(x.size(dim)));
        let [logits, weights, indices] = self.route(x);
        let mut hidden_states = x.view(&[Size::REST, shape[2]]);
        hidden_states = self
            .experts(&hidden_states, [&indices, &weights], products)
            .view(&shape);
        let shared = mlp(
            self.at,
            "shared_experts",
            self.config,
            self.mixture.shared,
            x,
        );
        hidden_states = (&hidden_states).add(shared);
        hidden_states.and_drop((logits, weights, indices))
    }

    /// `MixtralTopKRouter`, and those of other families: logits, and weights and indices of the experts that each token takes.
    fn route(&self, x: &Tensor) -> [Tensor; 3] {
        let mixture = self.mixture;
        let class = match mixture.family {
            Family::DeepseekV2(_) | Family::DeepseekV3(_) => "TopkRouter",
            _ => "TopKRouter",
        };
        self.at.call("gate", class, |at| {
            let weight = at.parameter("weight", &[mixture.count, self.config.shape.width]);
            let rows = [Size::REST, self.config.shape.width.into()];
            match mixture.family {
                Family::Mixtral => {
                    let rows = x.reshape(&rows);
                    let logits = functional::linear(&rows, &weight, None);
                    let probabilities = (&logits).to(DType::Float32).softmax(-1, None);
                    let [weights, indices] = (&probabilities).largest(mixture.chosen);
                    weights.divide_in_place((&weights).sum(&[-1], true));
                    drop((rows, probabilities));
                    [logits, weights, indices]
                }
                Family::Qwen2 { normalizes } | Family::Qwen3 { normalizes } => {
                    let rows = x.reshape(&rows);
                    let logits = functional::linear(&rows, &weight, None);
                    let probabilities = (&logits).softmax(-1, Some(DType::Float32));
                    let [mut weights, indices] = (&probabilities).largest(mixture.chosen);
                    if normalizes {
                        weights.divide_in_place((&weights).sum(&[-1], true));
                    }
                    weights = (&weights).to_dtype_of(logits.dtype());
                    drop((rows, probabilities));
                    [logits, weights, indices]
                }
                Family::DeepseekV2(choice) => mixture.deepseek_v2(&x.view(&rows), &weight, choice),
                Family::DeepseekV3(choice) => {
                    let correction = at.buffer(
                        "e_score_correction_bias",
                        &[mixture.count],
                        at.tracer().dtype(),
                    );
                    mixture.deepseek_v3(&x.view(&rows), [&weight, &correction], choice)
                }
            }
        })
    }

    /// `MixtralExperts`: the same in all families.
    fn experts(&self, x: &Tensor, chosen: [&Tensor; 2], products: Products) -> Tensor {
        let (config, mixture) = (self.config, self.mixture);
        self.at.call("experts", "Experts", |at| {
            let (count, inner, outer) = (mixture.count, mixture.intermediate, config.shape.width);
            // What `torch._grouped_mm` asks for.
            for width in [inner, outer] {
                let bytes = width.saturating_mul(at.tracer().dtype().size());
                if !bytes.is_multiple_of(16) {
                    let problem =
                        format!("experts: rows of {width} elements are not a multiple of 16 bytes");
                    at.tracer()
                        .fail_to_make(&at.path(""), "grouped_mm", problem);
                }
            }
            let wide = [count, inner.saturating_mul(2), outer];
            let experts = Experts {
                at,
                activation: &config.shape.activation,
                gate_up_proj: at.parameter("gate_up_proj", &wide),
                down_proj: at.parameter("down_proj", &[count, outer, inner]),
                count,
            };
            match products {
                Products::Grouped => experts.grouped(x, chosen),
                Products::Batched => experts.batched(x, chosen),
            }
        })
    }
}

impl Mixture {
    /// `DeepseekV2TopkRouter.forward`, of rows.
    fn deepseek_v2(&self, x: &Tensor, weight: &Tensor, choice: Choice) -> [Tensor; 3] {
        let logits = wide_logits(x, weight);
        let mut scores = (&logits).softmax(-1, Some(DType::Float32));
        let in_groups = choice.groups.map(|groups| {
            let [best, _] = (&scores).view(&self.grouped(groups)).maximum(-1);
            let masks = self.best_groups(best, groups);
            let excluded = (&masks[3]).to(DType::Bool).bitwise_not();
            scores = (&scores).masked_fill(excluded, 0.0);
            masks
        });
        let [mut weights, indices] = (&scores).largest_unsorted(self.chosen);
        weights = (&weights).mul_number(choice.scaling);
        drop(scores);
        in_groups.into_iter().flatten().for_each(drop);
        [logits, weights, indices]
    }

    /// `DeepseekV3TopkRouter.forward`, of rows.
    fn deepseek_v3(
        &self,
        x: &Tensor,
        [weight, correction]: [&Tensor; 2],
        choice: Choice,
    ) -> [Tensor; 3] {
        let logits = wide_logits(x, weight);
        let scores = (&logits).sigmoid();
        let mut candidates = (&scores).add(correction);
        let in_groups = choice.groups.map(|groups| {
            let best_scores = {
                let [best, _] = (&candidates).view(&self.grouped(groups)).largest(2);
                best.sum(&[-1], false)
            };
            let masks = self.best_groups(best_scores, groups);
            let excluded = (&masks[3]).to(DType::Bool).bitwise_not();
            candidates = (&candidates).masked_fill(excluded, f64::NEG_INFINITY);
            masks
        });
        let [_, indices] = (&candidates).largest_unsorted(self.chosen);
        let mut weights = (&scores).gather(1, &indices);
        let denominator = choice.normalizes.then(|| {
            let denominator = (&weights).sum(&[-1], true).add_number(1e-20);
            weights.divide_in_place(&denominator);
            denominator
        });
        weights = (&weights).mul_number(choice.scaling);
        drop((scores, candidates));
        in_groups.into_iter().flatten().for_each(drop);
        drop(denominator);
        [logits, weights, indices]
    }

    /// The shape of scores of experts in groups.
    fn grouped(&self, groups: Groups) -> [Size; 3] {
        let size = self.count / groups.count.max(1);
        [Size::REST, groups.count.into(), size.into()]
    }

    /// `group_scores`, `group_idx`, `group_mask` and `score_mask`: which experts are in the best groups.
    fn best_groups(&self, scores: Tensor, groups: Groups) -> [Tensor; 4] {
        let [_, group_idx] = (&scores).largest_unsorted(groups.chosen);
        let group_mask = (&scores).zeros_like();
        group_mask.change_in_place(
            "aten.scatter_.value",
            &[
                ("dim", Argument::Int(1)),
                ("index", Argument::Tensor(&group_idx)),
                ("value", Argument::Int(1)),
            ],
        );
        let score_mask = (&group_mask)
            .unsqueeze(-1)
            .expand(&self.grouped(groups))
            .reshape(&[Size::REST, self.count.into()]);
        [scores, group_idx, group_mask, score_mask]
    }
}

/// How tokens are multiplied with the weights of their experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Products {
    /// `grouped_mm`.
    Grouped,
    /// `batched_mm`, which `generate()` switches to after the prompt.
    Batched,
}

/// Experts whose code runs.
struct Experts<'a> {
    at: &'a Frame,
    activation: &'a str,
    gate_up_proj: Tensor,
    down_proj: Tensor,
    count: u64,
}

impl Experts<'_> {
    /// `batched_mm_experts_forward`: the weights of its experts are copied for each token.
    fn batched(&self, x: &Tensor, [top_k_index, top_k_weights]: [&Tensor; 2]) -> Tensor {
        let (tokens, width, chosen) = (x.size(0), x.size(-1), top_k_index.length(-1));
        let last = i64::try_from(self.count).unwrap_or(i64::MAX) - 1;
        let selected = x.repeat_interleave(chosen, 0);
        let sample_weights = top_k_weights.reshape(&[Size::REST]);
        let mut expert_ids = top_k_index.reshape(&[Size::REST]);
        expert_ids = (&expert_ids).clamp(Some(0.into()), Some(last.into()));
        let mut weights = (&self.gate_up_proj).index(&[Some(&expert_ids)]);
        let linear = |weights: &Tensor, x: &Tensor| weights.bmm(x.unsqueeze(-1)).squeeze(-1);
        let mut proj_out = linear(&weights, &selected);
        proj_out = self.gate(&proj_out);
        weights = (&self.down_proj)
            .index(&[Some(&expert_ids)])
            .and_drop(weights);
        proj_out = linear(&weights, &proj_out);
        let weighted_out = (&proj_out).mul((&sample_weights).unsqueeze(-1));
        let rows = [tokens.into(), chosen.into(), width.into()];
        let total = (&weighted_out).view(&rows).sum(&[1], false);
        let made = (&total).to_dtype_of(x.dtype());
        drop((selected, sample_weights, expert_ids, weights));
        made.and_drop((proj_out, weighted_out, total))
    }

    /// `grouped_mm_experts_forward`.
    fn grouped(&self, x: &Tensor, [top_k_index, top_k_weights]: [&Tensor; 2]) -> Tensor {
        let tracer = x.tracer();
        {
            let (tokens, width, chosen) = (x.size(0), x.size(-1), top_k_index.length(-1));
            let last = i64::try_from(self.count).unwrap_or(i64::MAX) - 1;
            let sample_weights = top_k_weights.reshape(&[Size::REST]);
            let expert_ids = top_k_index.reshape(&[Size::REST]);
            let [expert_ids_g, perm] = (&expert_ids).sort();
            let selected = {
                let token = (&perm).floor_divide(chosen);
                x.index(&[Some(&token)])
            };
            let sample_weights_g = (&sample_weights).index(&[Some(&perm)]);
            let histc_input = (&expert_ids_g).to(DType::Int32);
            let tokens_per_expert = (&histc_input).histogram(self.count, last);
            let offsets = (&tokens_per_expert).cumsum_in(0, DType::Int32);
            let sentinel_mask = (&expert_ids_g).at_least_number(last + 1).unsqueeze(-1);
            expert_ids_g.change_in_place("aten.clamp_.default", &[("max", Argument::Int(last))]);
            let mask = [
                ("mask", Argument::Tensor(&sentinel_mask)),
                ("value", Argument::Float(0.0)),
            ];
            selected.change_in_place("aten.masked_fill_.Scalar", &mask);
            let mut proj_out = grouped(&selected, &self.gate_up_proj, &offsets);
            proj_out = (&proj_out).masked_fill(&sentinel_mask, 0.0);
            proj_out = self.gate(&proj_out);
            proj_out = grouped(&proj_out, &self.down_proj, &offsets);
            proj_out = (&proj_out).masked_fill(&sentinel_mask, 0.0);
            let mut weighted_out = (&proj_out).mul((&sample_weights_g).unsqueeze(-1));
            let inv_perm = (&perm).empty_like();
            let order = tracer.arange_of(perm.size(0), DType::Int64);
            inv_perm.change_in_place(
                "aten.index_put_.default",
                &[
                    ("indices", Argument::OptionalTensors(vec![Some(&perm)])),
                    ("values", Argument::Tensor(&order)),
                ],
            );
            drop(order);
            weighted_out = (&weighted_out).index(&[Some(&inv_perm)]);
            let rows = [tokens.into(), chosen.into(), width.into()];
            let total = (&weighted_out).view(&rows).sum(&[1], false);
            let made = (&total).to_dtype_of(x.dtype());
            drop((sample_weights, expert_ids, expert_ids_g, perm, selected));
            drop((sample_weights_g, histc_input, tokens_per_expert, offsets));
            drop((sentinel_mask, proj_out, weighted_out, inv_perm, total));
            made
        }
    }

    /// `_default_apply_gate`.
    fn gate(&self, x: &Tensor) -> Tensor {
        let mut halves = x.chunk(2, -1).into_iter();
        let (Some(gate), Some(up)) = (halves.next(), halves.next()) else {
            return x.clone();
        };
        let active = self.at.activation("act_fn", self.activation, &gate);
        active.mul(&up).and_drop((gate, up))
    }
}

/// `F.linear` of rows in float32.
fn wide_logits(x: &Tensor, weight: &Tensor) -> Tensor {
    let x = x.to(DType::Float32);
    let weight = weight.to(DType::Float32);
    functional::linear(&x, &weight, None).and_drop((x, weight))
}

/// `_grouped_linear`.
fn grouped(x: &Tensor, weight: &Tensor, offsets: &Tensor) -> Tensor {
    let weight = weight.transpose(-2, -1);
    let rows = x.to_dtype_of(weight.dtype());
    let made = x.tracer().call(
        "aten._grouped_mm.default",
        &[
            ("self", Argument::Tensor(&rows)),
            ("mat2", Argument::Tensor(&weight)),
            ("offs", Argument::Tensor(offsets)),
        ],
    );
    made.and_drop((rows, weight))
}

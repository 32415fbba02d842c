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

/// `MixtralSparseMoeBlock`, and those of other families.
pub(super) struct Block {
    place: ModulePath,
    router: Router,
    experts: Experts,
    shared: Option<FnModule>,
    shared_gate: Option<Linear>,
    family: Family,
}

impl Block {
    pub(super) fn new(tracer: &Tracer, path: String, config: &Decoder, mixture: &Mixture) -> Block {
        let class = match mixture.family {
            Family::DeepseekV2(_) => "Moe",
            Family::DeepseekV3(_) => "MoE",
            _ => "SparseMoeBlock",
        };
        let place = ModulePath::new(path, config.class(class));
        let router = || Router::new(tracer, place.path("gate"), config, mixture);
        let experts = || Experts::new(tracer, place.path("experts"), config, mixture);
        let (router, experts) = match mixture.family {
            Family::Mixtral | Family::Qwen2 { .. } => {
                let router = router();
                (router, experts())
            }
            Family::Qwen3 { .. } | Family::DeepseekV2(_) | Family::DeepseekV3(_) => {
                let experts = experts();
                (router(), experts)
            }
        };
        let shared = match mixture.family {
            Family::Qwen2 { .. } => Some("shared_expert"),
            Family::DeepseekV2(_) | Family::DeepseekV3(_) => Some("shared_experts"),
            Family::Mixtral | Family::Qwen3 { .. } => None,
        };
        let shared = shared.map(|name| mlp(tracer, place.path(name), config, mixture.shared));
        let shared_gate = matches!(mixture.family, Family::Qwen2 { .. }).then(|| {
            let path = place.path("shared_expert_gate");
            Linear::new(tracer, path, [config.width, 1], false)
        });
        Block {
            place,
            router,
            experts,
            shared,
            shared_gate,
            family: mixture.family,
        }
    }

    pub(super) fn forward(&self, x: &Tensor, products: Products) -> Tensor {
        x.tracer().in_module(&self.place, || match self.family {
            Family::DeepseekV2(_) | Family::DeepseekV3(_) => self.after_router(x, products),
            Family::Mixtral | Family::Qwen2 { .. } | Family::Qwen3 { .. } => {
                self.of_rows(x, products)
            }
        })
    }

    /// `MixtralSparseMoeBlock.forward`, `Qwen2MoeSparseMoeBlock.forward` and `Qwen3MoeSparseMoeBlock.forward`.
    fn of_rows(&self, x: &Tensor, products: Products) -> Tensor {
        let shape = [0, 1, 2].map(|dim| Size::from(x.size(dim)));
        let rows = x.view(&[Size::REST, shape[2]]);
        let shared = self.shared.as_ref().map(|shared| shared.forward(&rows));
        let [logits, weights, indices] = self.router.forward(&rows);
        let mut output = self.experts.forward(&rows, [&indices, &weights], products);
        let mut shared = shared;
        if let (Some(made), Some(gate)) = (shared.take(), &self.shared_gate) {
            let made = gate.forward(&rows).sigmoid().mul(made);
            output = (&output).add(&made);
            shared = Some(made);
        }
        output = (&output).reshape(&shape);
        output.and_drop((rows, shared, logits, weights, indices))
    }

    /// `DeepseekV3MoE.forward`.
    fn after_router(&self, x: &Tensor, products: Products) -> Tensor {
        let shape = [0, 1, 2].map(|dim| Size::from(x.size(dim)));
        let [logits, weights, indices] = self.router.forward(x);
        let mut hidden_states = x.view(&[Size::REST, shape[2]]);
        hidden_states = self
            .experts
            .forward(&hidden_states, [&indices, &weights], products)
            .view(&shape);
        if let Some(shared) = &self.shared {
            hidden_states = (&hidden_states).add(shared.forward(x));
        }
        hidden_states.and_drop((logits, weights, indices))
    }
}

/// `MixtralTopKRouter`, and those of other families.
struct Router {
    place: ModulePath,
    weight: Tensor,
    /// `e_score_correction_bias`.
    correction: Option<Tensor>,
    width: u64,
    count: u64,
    chosen: u64,
    family: Family,
}

impl Router {
    fn new(tracer: &Tracer, path: String, config: &Decoder, mixture: &Mixture) -> Router {
        let class = match mixture.family {
            Family::DeepseekV2(_) | Family::DeepseekV3(_) => "TopkRouter",
            _ => "TopKRouter",
        };
        let place = ModulePath::new(path, config.class(class));
        let weight = tracer.parameter(&place.path("weight"), &[mixture.count, config.width]);
        let correction = matches!(mixture.family, Family::DeepseekV3(_)).then(|| {
            let path = place.path("e_score_correction_bias");
            tracer.buffer(&path, &[mixture.count], tracer.dtype())
        });
        Router {
            place,
            weight,
            correction,
            width: config.width,
            count: mixture.count,
            chosen: mixture.chosen,
            family: mixture.family,
        }
    }

    /// Logits, and weights and indices of the experts that each token takes.
    fn forward(&self, x: &Tensor) -> [Tensor; 3] {
        x.tracer().in_module(&self.place, || {
            let rows = [Size::REST, self.width.into()];
            match self.family {
                Family::Mixtral => {
                    let rows = x.reshape(&rows);
                    let logits = functional::linear(&rows, &self.weight, None);
                    let probabilities = (&logits).to(DType::Float32).softmax(-1, None);
                    let [weights, indices] = (&probabilities).largest(self.chosen);
                    weights.divide_in_place((&weights).sum(&[-1], true));
                    drop((rows, probabilities));
                    [logits, weights, indices]
                }
                Family::Qwen2 { normalizes } | Family::Qwen3 { normalizes } => {
                    let rows = x.reshape(&rows);
                    let logits = functional::linear(&rows, &self.weight, None);
                    let probabilities = (&logits).softmax(-1, Some(DType::Float32));
                    let [mut weights, indices] = (&probabilities).largest(self.chosen);
                    if normalizes {
                        weights.divide_in_place((&weights).sum(&[-1], true));
                    }
                    weights = (&weights).to_dtype_of(logits.dtype());
                    drop((rows, probabilities));
                    [logits, weights, indices]
                }
                Family::DeepseekV2(choice) => self.deepseek_v2(&x.view(&rows), choice),
                Family::DeepseekV3(choice) => self.deepseek_v3(&x.view(&rows), choice),
            }
        })
    }

    /// `F.linear` of rows in float32.
    fn wide_logits(&self, x: &Tensor) -> Tensor {
        let x = x.to(DType::Float32);
        let weight = (&self.weight).to(DType::Float32);
        functional::linear(&x, &weight, None).and_drop((x, weight))
    }

    /// `DeepseekV2TopkRouter.forward`, of rows.
    fn deepseek_v2(&self, x: &Tensor, choice: Choice) -> [Tensor; 3] {
        let logits = self.wide_logits(x);
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
    fn deepseek_v3(&self, x: &Tensor, choice: Choice) -> [Tensor; 3] {
        let logits = self.wide_logits(x);
        let scores = (&logits).sigmoid();
        let mut candidates = match &self.correction {
            Some(correction) => (&scores).add(correction),
            None => scores.clone(),
        };
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

/// `MixtralExperts`: the same in all families.
struct Experts {
    place: ModulePath,
    gate_up_proj: Tensor,
    down_proj: Tensor,
    act_fn: Activation,
    count: u64,
}

impl Experts {
    fn new(tracer: &Tracer, path: String, config: &Decoder, mixture: &Mixture) -> Experts {
        let place = ModulePath::new(path, config.class("Experts"));
        let (count, inner, outer) = (mixture.count, mixture.intermediate, config.width);
        // What `torch._grouped_mm` asks for.
        for width in [inner, outer] {
            if !width
                .saturating_mul(tracer.dtype().size())
                .is_multiple_of(16)
            {
                tracer.fail(
                    "grouped_mm",
                    format!("experts: rows of {width} elements are not a multiple of 16 bytes"),
                );
            }
        }
        let parameter = |name: &str, shape: &[u64]| tracer.parameter(&place.path(name), shape);
        Experts {
            gate_up_proj: parameter("gate_up_proj", &[count, inner.saturating_mul(2), outer]),
            down_proj: parameter("down_proj", &[count, outer, inner]),
            act_fn: Activation::named(tracer, place.path("act_fn"), &config.activation),
            count,
            place,
        }
    }

    fn forward(&self, x: &Tensor, chosen: [&Tensor; 2], products: Products) -> Tensor {
        x.tracer().in_module(&self.place, || match products {
            Products::Grouped => self.grouped(x, chosen),
            Products::Batched => self.batched(x, chosen),
        })
    }

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
        self.act_fn.forward(&gate).mul(&up).and_drop((gate, up))
    }
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

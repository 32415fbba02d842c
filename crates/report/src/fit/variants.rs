//! How the variants compare.

use std::collections::BTreeSet;

use super::rounded;
use crate::style::{Style, lines, or_dash};
use batchfit_fit::model::{Checkpointing, Mode, Optimizer, Parallel, Variant};
use batchfit_fit::{Recommendation, VariantResult};
use batchfit_step::limits::shorten;
use batchfit_step::units::Bytes;

/// A line for each variant, best first. Where those of one optimizer follow each other, it stands above them.
pub(super) fn table(variants: &[VariantResult], style: &Style) -> String {
    let groups: Vec<&[VariantResult]> = variants
        .chunk_by(|a, b| a.training.optimizer == b.training.optimizer)
        .collect();
    let optimizers: BTreeSet<&str> = variants
        .iter()
        .map(|variant| variant.training.optimizer.name())
        .collect();
    let grouped = groups.len() > 1 && groups.len() == optimizers.len();
    let is_first = |variant: &VariantResult| {
        let mut firsts = groups.iter().filter_map(|group| group.first());
        grouped && firsts.any(|first| std::ptr::eq(first, variant))
    };
    let names_optimizer = groups.len() > 1 && !grouped;
    let any = |test: fn(&VariantResult) -> bool| variants.iter().any(test);
    let has_steps = any(|variant| variant.recommendation.accumulation_steps > 1);
    let has_ranks = any(|variant| !variant.training.parallel.is_none());
    let has_speed = any(|variant| variant.recommendation.samples_per_second.is_some());
    let batch = if has_steps {
        "batch x steps"
    } else {
        "micro-batch"
    };
    let if_fits = |variant: &VariantResult, figure: fn(&Recommendation) -> String| {
        let best = &variant.recommendation;
        or_dash((best.micro_batch > 0).then(|| figure(best)))
    };
    let table = lines(variants, style)
        .above(|variant| is_first(variant).then(|| states(variant.training.optimizer)))
        .number("#", |variant| variant.rank.to_string())
        .words("variant", |variant| {
            label(&variant.training, names_optimizer)
        })
        .number(batch, |variant| {
            let steps = variant.recommendation.accumulation_steps;
            let batch = if_fits(variant, |best| best.micro_batch.to_string());
            if has_steps && batch != "-" {
                format!("{batch} x {steps}")
            } else {
                batch
            }
        })
        .number("GPUs", |variant| {
            variant.training.parallel.world_size().to_string()
        })
        .only_if(has_ranks)
        .number("global batch", |variant| {
            if_fits(variant, |best| best.global_batch.to_string())
        })
        .only_if(has_ranks)
        .number("peak reserved", |variant| {
            if_fits(variant, |best| Bytes(best.peak_reserved_bytes).to_string())
        })
        .number("headroom", |variant| {
            if_fits(variant, |best| Bytes(best.headroom_bytes).to_string())
        })
        .only_if(style.verbose)
        .number("sent/step", |variant| {
            let ranks = variant.recommendation.parallel.as_ref();
            or_dash(ranks.and_then(|ranks| ranks.communicated_bytes).map(Bytes))
        })
        .only_if(has_ranks)
        .number("samples/s", |variant| {
            or_dash(variant.recommendation.samples_per_second.map(rounded))
        })
        .only_if(has_speed)
        .words("unbeaten", |variant| {
            or_dash((variant.pareto == Some(true)).then_some("yes"))
        })
        .only_if(has_speed)
        .words("cost", cost);
    let heading = if grouped {
        "Variants, best first for each optimizer (all: `--rank across_optimizers`)\n"
    } else {
        "Variants, best first\n"
    };
    heading.to_owned() + &table.text()
}

/// An optimizer with what it keeps.
fn states(optimizer: Optimizer) -> String {
    let keeps = match optimizer {
        Optimizer::Sgd => "keeps nothing besides the parameters",
        Optimizer::SgdMomentum => "keeps one more value for each parameter",
        Optimizer::Adam | Optimizer::Adamw => "keeps two more values for each parameter",
        Optimizer::Adamw8bit | Optimizer::Adamw8bitTorchao => {
            "keeps two more values of eight bits for each parameter"
        }
        Optimizer::AdamwBnb8bit => {
            "keeps two more values for each parameter, of eight bits but for embeddings"
        }
        Optimizer::PagedAdamw8bit => {
            "keeps two more values of eight bits for each parameter, those of large ones where the driver puts them"
        }
        Optimizer::Adafactor | Optimizer::AdafactorTransformers => {
            "keeps sums over the rows and columns of each matrix"
        }
    };
    format!("{}: {keeps}", optimizer.name())
}

/// What it costs, or lacks.
fn cost(variant: &VariantResult) -> String {
    let best = &variant.recommendation;
    let missing = best.missing_bytes.filter(|_| best.micro_batch == 0);
    let missing = missing.map(|bytes| format!("needs {} more", Bytes(bytes)));
    let short = (best.shortfall > 0).then(|| format!("{} samples short", best.shortfall));
    let all = [missing, short, variant.cost.clone()];
    let all: Vec<String> = all.into_iter().flatten().collect();
    or_dash((!all.is_empty()).then(|| all.join(", ")))
}

/// What makes a variant, in the words of a request.
fn label(variant: &Variant, names_optimizer: bool) -> String {
    let mut label = variant.precision.name().to_owned();
    if names_optimizer && variant.mode == Mode::Train {
        label = format!("{label} {}", variant.optimizer.name());
    }
    match &variant.checkpointing {
        Checkpointing::None => {}
        Checkpointing::PerBlock => label.push_str(" per_block"),
        Checkpointing::Modules(globs) => {
            label = format!("{label} {}", shorten(&globs.join(" ")));
        }
    }
    match &variant.parallel {
        Parallel::None => label,
        Parallel::Fsdp2(sharded) if !sharded.reshard_after_forward => {
            format!("{label} fsdp2 without resharding")
        }
        strategy => format!("{label} {}", strategy.name().unwrap_or_default()),
    }
}

//! How the variants compare.

use std::collections::BTreeSet;

use super::rounded;
use crate::style::Style;
use crate::table::{Table, text, with_header};
use batchfit_fit::VariantResult;
use batchfit_fit::model::{Checkpointing, Mode, Optimizer, Parallel, Variant};
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
    let columns = Columns::of(variants, style);
    let mut table = with_header(&columns.header(), &Columns::NUMBERS);
    for group in &groups {
        if let (true, [first, ..]) = (grouped, *group) {
            table.add_line(states(first.training.optimizer));
        }
        for variant in *group {
            columns.row(&mut table, variant, groups.len() > 1 && !grouped);
        }
    }
    let heading = if grouped {
        "Variants, best first for each optimizer (all: `--rank across_optimizers`)\n"
    } else {
        "Variants, best first\n"
    };
    heading.to_owned() + &text(&table, style)
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

/// The heading of micro-batches with their accumulation steps.
const BATCH_AND_STEPS: &str = "batch x steps";

/// Which columns have something to tell.
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each column, which are there or not"
)]
struct Columns {
    steps: bool,
    headroom: bool,
    speed: bool,
    ranks: bool,
}

impl Columns {
    const NUMBERS: [&str; 9] = [
        "#",
        "micro-batch",
        BATCH_AND_STEPS,
        "peak reserved",
        "headroom",
        "samples/s",
        "GPUs",
        "global batch",
        "sent/step",
    ];

    fn of(variants: &[VariantResult], style: &Style) -> Columns {
        let any = |test: &dyn Fn(&VariantResult) -> bool| variants.iter().any(test);
        Columns {
            steps: any(&|variant| variant.recommendation.accumulation_steps > 1),
            headroom: style.verbose,
            speed: any(&|variant| variant.recommendation.samples_per_second.is_some()),
            ranks: any(&|variant| !variant.training.parallel.is_none()),
        }
    }

    fn header(&self) -> Vec<&'static str> {
        let mut header = vec!["#", "variant"];
        header.push(if self.steps {
            BATCH_AND_STEPS
        } else {
            "micro-batch"
        });
        if self.ranks {
            header.extend(["GPUs", "global batch"]);
        }
        header.push("peak reserved");
        header.extend(self.headroom.then_some("headroom"));
        header.extend(self.ranks.then_some("sent/step"));
        if self.speed {
            header.extend(["samples/s", "unbeaten"]);
        }
        header.push("cost");
        header
    }

    fn row(&self, table: &mut Table, variant: &VariantResult, names_optimizer: bool) {
        let best = &variant.recommendation;
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let fits = best.micro_batch > 0;
        let if_fits = |text: String| or_dash(fits.then_some(text));
        let mut row = vec![
            variant.rank.to_string(),
            label(&variant.training, names_optimizer),
            if_fits(if self.steps {
                format!("{} x {}", best.micro_batch, best.accumulation_steps)
            } else {
                best.micro_batch.to_string()
            }),
        ];
        if self.ranks {
            row.push(variant.training.parallel.world_size().to_string());
            row.push(if_fits(best.global_batch.to_string()));
        }
        row.push(if_fits(Bytes(best.peak_reserved_bytes).to_string()));
        row.extend(
            self.headroom
                .then(|| if_fits(Bytes(best.headroom_bytes).to_string())),
        );
        if self.ranks {
            let ranks = best.parallel.as_ref();
            let sent = ranks.and_then(|ranks| ranks.communicated_bytes);
            row.push(or_dash(sent.map(|bytes| Bytes(bytes).to_string())));
        }
        if self.speed {
            row.push(or_dash(best.samples_per_second.map(rounded)));
            let is_unbeaten = variant.pareto == Some(true);
            row.push(or_dash(is_unbeaten.then(|| "yes".to_owned())));
        }
        let missing = best.missing_bytes.filter(|_| !fits);
        let missing = missing.map(|bytes| format!("needs {} more", Bytes(bytes)));
        let short = (best.shortfall > 0).then(|| format!("{} samples short", best.shortfall));
        let all: Vec<String> = [missing, short, variant.cost.clone()]
            .into_iter()
            .flatten()
            .collect();
        row.push(or_dash((!all.is_empty()).then(|| all.join(", "))));
        table.add_row(row);
    }
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

//! Launches that compute nothing.

use std::collections::BTreeMap;

use crate::device::{Launch, LaunchError, Launcher, StepReport};
use crate::program::{Convolution, Program};
use crate::units::Bytes;

use super::heuristics::installed_heuristics;
use super::workspaces::{Lookup, Plans, Source, WorkspaceTable};
use super::{Card, calibrated};

/// Knows what scratch memory a library would want, and launches nothing.
#[derive(Debug, Clone)]
pub struct SimulatedLauncher {
    workspaces: Lookup<'static>,
    /// The card whose convolutions they are, as the driver calls it.
    product: &'static str,
    /// By how much what cuDNN says without the card may be too low: of engines that split sums over multiprocessors.
    split: Bytes,
    /// Calls whose plans were not recorded, where they are from, and by how much each may be short.
    estimated: BTreeMap<Convolution, (Kind, Bytes)>,
}

/// How what is said of a convolution is known, where it was not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Asked,
    Estimated,
}

/// What is not known of the scratch memory of convolutions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Estimates {
    /// How many are as cuDNN's heuristics say it of the card without it.
    pub asked: usize,
    /// How many were estimated from others.
    pub estimated: usize,
    /// By how much the scratch memory of one may be larger than is said. They run one at a time.
    pub short_by: Bytes,
    /// Whether one of groups over a volume was estimated.
    pub of_grouped_volumes: bool,
    /// The card that was asked about, and the one whose layers estimates are from, and whether that was only asked about too.
    products: [String; 2],
    is_asked: bool,
}

impl Estimates {
    /// What the reader of a probe should know.
    pub fn note(&self) -> String {
        let [asked, from] = &self.products;
        let of_asked = format!(
            "the workspaces of {} convolutions are cuDNN's own estimate for cards like the {asked}",
            self.asked
        );
        let how = if self.is_asked {
            "which cuDNN's heuristics were asked about, for cards like the"
        } else {
            "that were measured on an"
        };
        let instead = match installed_heuristics() {
            Some(_) => "",
            None => " (--ask-cudnn asks PyTorch's cuDNN instead)",
        };
        let of_estimated = format!(
            "the workspaces of {} convolutions are estimated from similar ones {how} {from}{instead}",
            self.estimated
        );
        match (self.asked, self.estimated) {
            (0, _) => of_estimated,
            (_, 0) => of_asked,
            _ => format!("{of_asked}; {of_estimated}"),
        }
    }
}

impl Default for SimulatedLauncher {
    fn default() -> SimulatedLauncher {
        SimulatedLauncher::of(None)
    }
}

impl SimulatedLauncher {
    /// For a card: what was recorded on it, or asked about it, before what was recorded on others.
    pub fn of(card: Option<&'static Card>) -> SimulatedLauncher {
        let mut tables = Vec::new();
        let (mut product, mut multiprocessors) = (MEASURED, 0);
        let mut of_architecture = Vec::new();
        if let Some(card) = card {
            product = card.product;
            // Older cards have no engine of that kind.
            if card.capability.compute.0 >= 9 && card.capability.compute.0 < 12 {
                multiprocessors = card.capability.multiprocessors;
            }
            tables.extend(calibrated::tables_of(card.product));
            of_architecture = WorkspaceTable::of_architecture(card.capability.compute);
        }
        match tables.iter().position(|table| table.is_alone()) {
            Some(last) => tables.truncate(last + 1),
            None if of_architecture.is_empty() => {
                tables.extend([WorkspaceTable::h200(), WorkspaceTable::h100()]);
            }
            None => tables.extend(of_architecture),
        }
        SimulatedLauncher {
            workspaces: Lookup::among(tables).with_heuristics(card.zip(installed_heuristics())),
            product,
            split: Bytes(multiprocessors * TILE),
            estimated: BTreeMap::new(),
        }
    }

    /// The plans of one call with where they are from, which is the caller's to tell.
    pub fn plans(&mut self, convolution: &Convolution) -> Plans {
        self.workspaces.plans(convolution)
    }

    /// What is not known of the plans given since the last call, if there is something.
    pub fn take_estimates(&mut self) -> Option<Estimates> {
        let estimated = std::mem::take(&mut self.estimated);
        let count = |wanted: Kind| {
            estimated
                .values()
                .filter(|(kind, _)| *kind == wanted)
                .count()
        };
        let (asked, others) = (count(Kind::Asked), count(Kind::Estimated));
        let of_grouped_volumes = estimated
            .iter()
            .any(|(call, (kind, _))| *kind == Kind::Estimated && call.volumes && call.groups > 1);
        // Before a table is read: most models have no convolution.
        let short_by = estimated.into_values().map(|(_, bytes)| bytes).max()?;
        let from = self.workspaces.estimated_from();
        let named = |product: &str| product.trim_start_matches("NVIDIA ").to_owned();
        Some(Estimates {
            asked,
            estimated: others,
            short_by,
            of_grouped_volumes,
            products: [self.product, from.card().unwrap_or(MEASURED)].map(named),
            is_asked: from.is_asked(),
        })
    }
}

impl Launcher for SimulatedLauncher {
    fn convolution_plans(&mut self, convolution: &Convolution) -> Result<Vec<Bytes>, LaunchError> {
        let plans = self.workspaces.plans(convolution);
        let first = plans.workspaces.first().copied().unwrap_or(Bytes::ZERO);
        let unknown = match plans.source {
            Source::Recorded | Source::Interpolated | Source::NotTheLibrary => None,
            Source::Asked => Some((Kind::Asked, self.split)),
            Source::Estimated(_) => Some((
                Kind::Estimated,
                Bytes(plans.at_most.0.saturating_sub(first.0)),
            )),
        };
        if let Some(unknown) = unknown {
            self.estimated.insert(*convolution, unknown);
        }
        Ok(plans.workspaces)
    }

    fn further_plans(
        &mut self,
        convolution: &Convolution,
        listed: usize,
    ) -> Result<Vec<Bytes>, LaunchError> {
        Ok(self.workspaces.further_plans(convolution, listed))
    }

    fn prepare(&mut self, program: &Program, batch: u64) -> Result<(), LaunchError> {
        let calls = program.convolutions.iter().map(|shape| shape.at(batch));
        self.workspaces.expect(calls);
        Ok(())
    }

    fn launch(&mut self, _launch: &Launch<'_>) -> Result<(), LaunchError> {
        Ok(())
    }

    fn finish_step(&mut self) -> Result<StepReport, LaunchError> {
        Ok(StepReport::default())
    }
}

/// The card that most tables were recorded on.
const MEASURED: &str = "NVIDIA H200";

/// The largest tile of a sum that an engine keeps for each multiprocessor of a card of compute capability 9.0 or 10.0, in bytes: 128 x 256
/// float32. Without the card cuDNN takes it to have fewer of them, and what is added for that is not always right. See
/// `docs/how/calibration.md`.
const TILE: u64 = 128 << 10;

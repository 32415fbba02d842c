//! What a request about a simulated card is answered with, and what it leaves its allocator.

use crate::alloc::{MemoryLimit, Settings, limit_of_fraction};
use crate::device::sim::workspaces::WorkspaceTable;
use crate::device::sim::{Card, CardMemory, Workspaces};
use crate::limits::Cancel;
use crate::model::{DeviceChoice, Parallel, Precision, Request, SearchMode, Variant, Workload};
use crate::probe::{Detail, ProbeReport};
use crate::units::Bytes;
use crate::validate::settings_in_force;
use crate::{EngineError, Environment, Headroom};

use super::{FitContext, environment, lowered};
use crate::fitting::memory_budget::MemoryBudget;
use crate::fitting::probing::runner::{ProbeOutcome, Runner as _, StepTime};
use crate::fitting::probing::simulator::Simulator;
use crate::fitting::recommendation::headroom_policy::{HeadroomPolicy, VariantHeadroom};
use crate::fitting::recommendation::notes::{machines, uneven};

/// What simulates a request about a simulated card, and what there is for the allocator.
pub(in crate::fitting) fn simulation(
    request: &Request,
    card: &'static Card,
    cancel: &Cancel,
) -> Result<(Simulator, MemoryBudget), EngineError> {
    let workload = &lowered(request, cancel)?.workload;
    let settings = settings_in_force(request, workload).map_err(EngineError::Invalid)?;
    let untold = (Vec::new(), Vec::new());
    let setting = simulated(request, workload, card, settings, untold, cancel);
    Ok((setting.simulator, setting.budget))
}

/// What a request about a simulated card is answered with.
pub(super) fn simulated<'a>(
    request: &Request,
    workload: &Workload,
    card: &'static Card,
    settings: Settings,
    (mut notes, assumptions): (Vec<String>, Vec<String>),
    cancel: &Cancel,
) -> FitContext<'a> {
    let device = format!("sim:{}", card.name);
    notes.extend(of_generation(card.capability.compute, request));
    notes.extend(card.notes());
    notes.extend(machines(request));
    notes.extend(uneven(request, card));
    if request.search == SearchMode::Probes {
        notes.push(format!(
            "{device} is a simulated device: `search` set to \"probes\" changes nothing there"
        ));
    }
    let memory = card.memory();
    let budget = room_on(request, &settings, memory);
    notes.extend(budget.note(strategies(request)));
    let simulator = Simulator::new(
        device.clone(),
        workload.clone(),
        card.capability,
        settings,
        memory,
        cancel,
    )
    .of_card(Some(card));
    let is_other = other_card(workload, memory, &mut notes);
    FitContext {
        simulator: match (card.workspaces, workload) {
            (Workspaces::Recorded, Workload::Graph(_)) => simulator,
            (_, Workload::Recorded(_)) if !is_other => simulator,
            (Workspaces::Recorded | Workspaces::Transferred, _) => simulator.transferred(),
        },
        gpu: None,
        budget,
        environment: Environment {
            cudnn: WorkspaceTable::h200().cudnn().map(ToOwned::to_owned),
            ..environment(device, card.product.to_owned())
        },
        notes,
        assumptions,
    }
}

/// A simulated probe beside a fit.
pub(in crate::fitting) struct Simulated {
    simulator: Simulator,
    probed: ProbeOutcome,
    limit: Bytes,
    kept: VariantHeadroom,
}

impl Simulated {
    /// What is to be left free at this batch.
    pub(in crate::fitting) fn headroom(&self) -> Bytes {
        self.kept.bytes(&self.probed.uncertainties, self.limit)
    }

    /// The same for the answer's document.
    pub(in crate::fitting) fn document(&self) -> Headroom {
        self.kept.document(&self.probed.uncertainties, self.limit)
    }

    /// Whether the batch that it was for would be safe.
    pub(in crate::fitting) fn is_safe(
        &mut self,
        variant: &Variant,
        batch: u64,
    ) -> Result<bool, EngineError> {
        let probe = |limit| self.simulator.probe(variant, batch, limit, Detail::Verdict);
        let headroom = self.kept.bytes(&self.probed.uncertainties, self.limit);
        self.probed.is_safe(headroom, self.limit, probe)
    }

    /// What the probe found.
    pub(in crate::fitting) fn report(&self) -> &ProbeReport {
        &self.probed.report
    }
}

/// Simulates one batch of a variant on the card that a request names; `None` where that is a real one.
pub(in crate::fitting) fn simulated_probe(
    request: &Request,
    variant: &Variant,
    batch: u64,
    detail: Detail,
    cancel: &Cancel,
) -> Result<Option<Simulated>, EngineError> {
    let Some(card) = card(request) else {
        return Ok(None);
    };
    let (mut simulator, budget) = simulation(request, card, cancel)?;
    let limit = budget.limit(&variant.parallel);
    let probed = simulator.probe(variant, batch, limit, detail)?;
    Ok(Some(Simulated {
        simulator,
        probed,
        limit,
        kept: HeadroomPolicy::of(request).about(variant),
    }))
}

/// How long an optimizer step of so many samples in each of so many micro-steps takes on the card that a request names.
pub(in crate::fitting) fn simulated_step_time(
    request: &Request,
    variant: &Variant,
    (batch, steps): (u64, u64),
    cancel: &Cancel,
) -> Result<StepTime, EngineError> {
    let Some(card) = card(request) else {
        return Ok(StepTime::Unknown("it did not run on the card"));
    };
    let (mut simulator, _) = simulation(request, card, cancel)?;
    simulator.step_time(variant, batch, steps)
}

/// The simulated card that a request names; `None` where that is a real one.
pub(in crate::fitting) fn card(request: &Request) -> Option<&'static Card> {
    match &request.device {
        DeviceChoice::Sim(name) => Card::find(name),
        DeviceChoice::Auto
        | DeviceChoice::Cuda(_)
        | DeviceChoice::Kind(_)
        | DeviceChoice::Host(..) => None,
    }
}

/// Whether recordings are of another card than the one asked about, as far as its memory tells; then that is noted.
fn other_card(workload: &Workload, memory: CardMemory, notes: &mut Vec<String>) -> bool {
    /// Cards of one name differ by less, with what firmware keeps.
    const ALIKE: f64 = 0.02;
    let Workload::Recorded(steps) = workload else {
        return false;
    };
    let Some(total) = steps.total else {
        notes.push(
            "the recordings do not say on which GPU they were made; on another one, PyTorch's libraries may take \
             other scratch memory"
                .to_owned(),
        );
        return false;
    };
    let apart = (total.0 as f64 - memory.total.0 as f64).abs();
    let is_other = apart > ALIKE * memory.total.0 as f64;
    if is_other {
        notes.push(format!(
            "recorded on a GPU with {total}, and asked for one with {}: PyTorch's libraries may take other scratch \
             memory there",
            memory.total
        ));
    }
    is_other
}

/// What a request leaves its allocator of a card that it has alone.
pub(in crate::fitting) fn room_on(
    request: &Request,
    settings: &Settings,
    memory: CardMemory,
) -> MemoryBudget {
    MemoryBudget {
        asked: requested_limit(request, settings, memory),
        available: memory.available,
        is_of_rank: false,
    }
}

/// The limit that a request names: its own, or the fraction in its allocator settings.
pub(in crate::fitting) fn requested_limit(
    request: &Request,
    settings: &Settings,
    memory: CardMemory,
) -> Option<Bytes> {
    match request.memory_limit {
        Some(MemoryLimit::Bytes(bytes)) => Some(bytes),
        Some(MemoryLimit::Fraction(fraction)) => limit_of_fraction(fraction, memory.total),
        None => settings.limit(memory.total),
    }
}

/// What a reader should know of a card's compute capability.
pub(super) fn of_generation(compute: (u32, u32), request: &Request) -> Vec<String> {
    /// The first that computes in bfloat16 (NVIDIA's CUDA C++ Programming Guide, "Arithmetic Instructions").
    const WITH_BF16: (u32, u32) = (8, 0);
    /// The first that PyTorch 2.11's wheels for CUDA 12.8 and 13.0 have kernels for (RELEASE.md, "CUDA Support Matrix").
    const IN_WHEELS: (u32, u32) = (7, 5);
    let (major, minor) = compute;
    let is_bf16 =
        |variant: &Variant| matches!(variant.precision, Precision::AmpBf16 | Precision::Bf16);
    let mut notes = Vec::new();
    if compute < WITH_BF16 && request.variants.iter().any(is_bf16) {
        notes.push(format!(
            "this card has no bfloat16 (compute capability {major}.{minor}; it takes 8.0): PyTorch runs it, products no faster than in \
             float32 and convolutions without cuDNN, so that steps may take longer and other scratch memory than is said; `amp_fp16` (--amp \
             fp16) is what this card is fast in"
        ));
    }
    if compute < IN_WHEELS {
        notes.push(format!(
            "PyTorch 2.11's wheels for CUDA 12.8 and 13.0 have no kernels for compute capability {major}.{minor}: this card takes the wheel \
             for CUDA 12.6"
        ));
    }
    notes
}

/// How the variants of a request train with others.
pub(super) fn strategies(request: &Request) -> impl Iterator<Item = &Parallel> {
    request.variants.iter().map(|variant| &variant.parallel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RequestDocument;

    const TOTAL: Bytes = Bytes::gib(16);
    const AVAILABLE: Bytes = Bytes::gib(15);

    #[test]
    fn a_fraction_is_of_all_memory_and_may_be_an_allocator_setting() {
        let request = |text: &str| {
            let document = RequestDocument::from_json(text.as_bytes()).unwrap();
            Request::parse(document, &["t4"]).unwrap()
        };
        let memory = CardMemory {
            total: TOTAL,
            available: AVAILABLE,
        };
        let model = r#""model": {"preset": "resnet18"}, "device": "sim:t4""#;
        let none = request(&format!("{{{model}}}"));
        let half = request(&format!(r#"{{{model}, "memory_limit": "0.5"}}"#));
        let quarter: Settings = "per_process_memory_fraction:0.25".parse().unwrap();

        assert_eq!(requested_limit(&none, &Settings::default(), memory), None);
        assert_eq!(
            requested_limit(&half, &quarter, memory),
            Some(Bytes::gib(8))
        );
        assert_eq!(
            requested_limit(&none, &quarter, memory),
            Some(Bytes::gib(4))
        );
    }
}

//! What can be wrong with a request before any device is looked for.

use crate::EngineError;
use crate::alloc::{Settings, SettingsError};
use crate::compile::{CompileError, MOST_CLASSES, check_checkpointing, check_parallel, smoothed};
use crate::fitting::{NO_RECORDER, check_soak, soak_on_a_gpu};
use crate::graph::Graph;
use crate::limits::{Cancel, with_cancel};
use crate::model::{
    Checkpointing, DeviceChoice, Lowered, Request, RequestError, SearchMode, Variant, Workload,
};

/// What a request is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The largest batch.
    Fit,
    /// One run of this batch.
    Probe(u64),
}

/// Reads the model of a request, checks all that it asks for, and last has `find` look for its device and say whether that is
/// simulated: what is wrong with a request is said before a missing device. A queue that accepts a request and an engine that
/// answers it both begin here, with the same errors.
pub fn resolve<'r, T>(
    request: &'r Request,
    purpose: Purpose,
    cancel: &Cancel,
    find: impl FnOnce(&'r Lowered) -> Result<(T, bool), EngineError>,
) -> Result<T, EngineError> {
    let check = || match purpose {
        Purpose::Fit => validate(request).and_then(|it| validate_fit(it).map(|()| it)),
        Purpose::Probe(batch) => {
            validate_alone(request)?;
            validate(request).and_then(|it| validate_batch(it, batch).map(|()| it))
        }
    };
    let checked = with_cancel(cancel, check).ok_or(EngineError::Cancelled)?;
    let (found, is_simulated) = find(checked?)?;
    if !is_simulated {
        check_gpu(request)?;
    }
    Ok(found)
}

/// Refuses what a GPU is not asked.
fn check_gpu(request: &Request) -> Result<(), RequestError> {
    if request.soak.is_some() {
        return Err(soak_on_a_gpu());
    }
    match &request.lengths {
        Some(lengths) if lengths.each.len() > MOST_PROBED_LENGTHS => Err(RequestError::at(
            lengths.pointer(),
            format!(
                "{} lengths are more than the {MOST_PROBED_LENGTHS} that are probed on a GPU, each for some seconds; name fewer, \
                 or simulate the card",
                lengths.each.len()
            ),
        )),
        Some(_) | None => Ok(()),
    }
}

/// A request's model as a graph, when it fits together and the allocator settings are known.
pub fn validate(request: &Request) -> Result<&Lowered, RequestError> {
    settings(request)?;
    if request.search == SearchMode::Recorded && !request.has_recorder() {
        return Err(RequestError::at("/search", NO_RECORDER));
    }
    match request.device {
        // A kind of card is simulated where there is none.
        DeviceChoice::Sim(_) | DeviceChoice::Kind(_) => {}
        DeviceChoice::Auto | DeviceChoice::Cuda(_) | DeviceChoice::Host(..) => check_gpu(request)?,
    }
    if request.soak.is_some() {
        check_soak(request)?;
    }
    let lowered = request.lower()?;
    let Workload::Graph(graph) = &lowered.workload else {
        return Ok(lowered);
    };
    check_lengths(request, graph)?;
    let mut asked: Vec<&Checkpointing> = Vec::new();
    for variant in &request.variants {
        if !asked.contains(&&variant.checkpointing) {
            asked.push(&variant.checkpointing);
            check_checkpointing(graph, variant).map_err(|error| invalid_variant(&error))?;
        }
        check_parallel(graph, variant).map_err(|error| invalid_variant(&error))?;
    }
    if let Some(variant) = request.variants.first() {
        smoothed(graph, variant).map_err(|error| invalid_variant(&error))?;
    }
    Ok(lowered)
}

/// Most lengths that are answered for on a real GPU: some minutes.
const MOST_PROBED_LENGTHS: usize = 32;

/// Whether the lengths of a request are those of its model: a graph of another length is another one.
fn check_lengths(request: &Request, longest: &Graph) -> Result<(), RequestError> {
    let Some(lengths) = &request.lengths else {
        return Ok(());
    };
    let (of, shortest) = (lengths.of.name(), lengths.each[0].length);
    if shortest == lengths.longest() {
        return Ok(());
    }
    let graph = request
        .at(shortest)?
        .graph()
        .map_err(|invalid| RequestError {
            pointer: lengths.pointer(),
            problem: format!("{of} {shortest}: {}", invalid.problem),
            ..invalid
        })?;
    let shapes = |graph: &Graph| -> Vec<_> {
        let inputs = graph.inputs.iter();
        inputs
            .map(|input| graph.value(input.value).shape.clone())
            .collect()
    };
    if shapes(&graph) == shapes(longest) {
        let problem = format!(
            "samples of this model do not change with {of}: those of {shortest} and {} are alike; leave `lengths` out, or name \
             what its samples differ in",
            lengths.longest()
        );
        return Err(RequestError::at(lengths.pointer(), problem));
    }
    Ok(())
}

/// A probe is of one variant, one length and three steps.
fn validate_alone(request: &Request) -> Result<(), RequestError> {
    validate_single(request)?;
    if request.soak.is_some() {
        let problem = "a probe runs three steps; a soak belongs to a fit, or to `batchfit soak`";
        return Err(RequestError::at("/soak", problem));
    }
    match &request.lengths {
        Some(lengths) if lengths.each.len() > 1 => Err(RequestError::at(
            lengths.pointer(),
            format!(
                "one length is answered at a time here, not {}; a fit answers for several",
                lengths.each.len()
            ),
        )),
        Some(_) | None => Ok(()),
    }
}

/// A variant that the model does not have, at the member that asks for it.
pub fn invalid_variant(error: &CompileError) -> RequestError {
    let member = match error {
        CompileError::NoRepeatedBlocks | CompileError::NoSuchModules { .. } => {
            "/training/checkpointing"
        }
        CompileError::NoCrossEntropy => "/training/label_smoothing",
        CompileError::NoSuchUnits { .. } => "/training/parallel/units",
        CompileError::BatchNormUnderMixedPrecision { .. } => {
            "/training/parallel/mixed_precision/param_dtype"
        }
        CompileError::ScalarParameter { .. } | CompileError::NothingTrained => {
            "/training/parallel/strategy"
        }
        CompileError::Cancelled => "",
    };
    RequestError::at(member, error.to_string())
}

/// What can be fitted: one recording says nothing of other batches.
fn validate_fit(lowered: &Lowered) -> Result<(), RequestError> {
    match &lowered.workload {
        Workload::Recorded(steps) => match steps.batches.as_slice() {
            [only] => Err(RequestError::at(
                RECORDED,
                format!(
                    "one recording answers for its own batch alone, which is {only} (`batchfit probe --batch {only}`); \
                     record at least one other batch, such as {}",
                    only.saturating_mul(2)
                ),
            )),
            _ => Ok(()),
        },
        Workload::Graph(_) => Ok(()),
    }
}

/// What one batch can be asked of: one recording has only its own.
pub fn validate_batch(lowered: &Lowered, batch: u64) -> Result<(), RequestError> {
    match &lowered.workload {
        Workload::Recorded(steps) if steps.batches.len() == 1 && !steps.is_recorded(batch) => {
            let only = steps.batches[0];
            Err(RequestError::at(
                RECORDED,
                format!(
                    "one recording answers for its own batch alone, which is {only}, not {batch}"
                ),
            ))
        }
        Workload::Recorded(_) | Workload::Graph(_) => Ok(()),
    }
}

/// Where recordings are in a request.
const RECORDED: &str = "/model/recorded";

/// Most operations that are simulated for one request, each variant dozens of times: an operation takes up to a millisecond, so these
/// take minutes, and a ResNet-152 under all of 60 variants three percent of them.
const MOST_OPERATIONS: usize = 1_000_000;

/// How many changes `suggest` answers, each like a variant of its own.
const SUGGESTED: usize = 12;

/// How many operations of a soak, each simulated once, are worth one of a variant.
const OF_A_SOAK: usize = 1_000;

/// Most variants that are soaked.
const SOAKED: usize = 8;

/// The operations that an answer to a request simulates, as far as its model was read: those of each variant, at each length, of each class of
/// ranks, of each change that is suggested and of each step of a soak.
pub fn work(request: &Request) -> usize {
    let Some(Lowered {
        workload: Workload::Graph(graph),
        ..
    }) = request.read()
    else {
        return 0;
    };
    let lengths = request.lengths.as_ref();
    let lengths = lengths.map_or(1, |lengths| lengths.each.len());
    let variants = request.variants.len();
    let suggested = request.suggest.map_or(0, |_| SUGGESTED);
    let ranks = |variant: &Variant| match variant.parallel.world_size() {
        0 | 1 => 1,
        ranks => usize::try_from(ranks).map_or(MOST_CLASSES, |ranks| ranks.min(MOST_CLASSES)),
    };
    let each = request.variants.iter().map(ranks).sum::<usize>() + suggested;
    let steps = request.soak.as_ref().map_or(0, |course| {
        usize::try_from(course.length()).unwrap_or(usize::MAX)
    });
    let soaked = steps.saturating_mul(variants.min(SOAKED)) / OF_A_SOAK;
    let times = each.saturating_mul(lengths).saturating_add(soaked);
    graph.operations().saturating_mul(times)
}

/// Whether the [`work`] that a request asks for is within the bounds of a service, before any of it is done. Who asks on their own machine
/// may wait as long as they like.
pub fn check_work(request: &Request, work: usize) -> Result<(), RequestError> {
    if work <= MOST_OPERATIONS {
        return Ok(());
    }
    let has = |name: &'static str, is_there: bool| is_there.then_some(name);
    let makes: Vec<&str> = [
        has("variants", request.variants.len() > 1),
        has("`lengths`", request.lengths.is_some()),
        has("`suggest`", request.suggest.is_some()),
        has("steps of `soak`", request.soak.is_some()),
    ]
    .into_iter()
    .flatten()
    .collect();
    let fewer = match makes.as_slice() {
        [] => "layers".to_owned(),
        makes => makes.join(", or "),
    };
    Err(RequestError::at(
        "/training",
        format!(
            "this makes {work} operations to simulate, and at most {MOST_OPERATIONS} are taken on for one request; ask for fewer {fewer} at \
             a time"
        ),
    ))
}

/// The allocator settings that an answer is for: those of the request, or where it has none those that were in force when
/// its recordings were made.
pub(super) fn settings_in_force(
    request: &Request,
    workload: &Workload,
) -> Result<Settings, RequestError> {
    let recorded = match workload {
        Workload::Recorded(steps) if request.allocator.is_empty() => steps.allocator.as_deref(),
        Workload::Recorded(_) | Workload::Graph(_) => None,
    };
    let Some(recorded) = recorded else {
        return settings(request);
    };
    recorded.parse().map_err(|error: SettingsError| {
        let problem = format!("the allocator settings of the recording: {error}");
        RequestError::at(RECORDED, problem)
    })
}

/// The allocator settings of a request.
pub(super) fn settings(request: &Request) -> Result<Settings, RequestError> {
    let settings = request.allocator.parse();
    settings.map_err(|error| invalid_settings(request, &error))
}

/// A probe tries one batch of one variant.
pub(super) fn validate_single(request: &Request) -> Result<(), RequestError> {
    match request.variants.as_slice() {
        [_one] => Ok(()),
        several => Err(RequestError::at(
            "/training",
            format!(
                "a probe runs one variant, and these lists make {}",
                several.len()
            ),
        )),
    }
}

fn invalid_settings(request: &Request, error: &SettingsError) -> RequestError {
    let (problem, nearest) = match error {
        // Without the error's own hint, which `RequestError` gives in its own words.
        SettingsError::UnknownKey { key, nearest } => (
            format!("unknown allocator setting {key:?}"),
            nearest.clone(),
        ),
        SettingsError::TooLong { .. }
        | SettingsError::NotSupported { .. }
        | SettingsError::NoValue { .. }
        | SettingsError::WrongValue { .. } => (error.to_string(), None),
    };
    RequestError {
        nearest,
        ..RequestError::at("/allocator", problem).with_text(&request.allocator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RequestDocument;

    #[test]
    fn work_is_refused_with_the_figure_and_the_limit() {
        let asked = |more: &str| {
            let layers = vec![r#"{"type": "relu"}"#; 998].join(",");
            let model = format!(
                r#"{{"input": {{"shape": [8]}}, "layers": [{layers}, {{"type": "linear", "out_features": 8}}]}}"#
            );
            let text = format!(r#"{{"model": {model}, "device": "sim:h200"{more}}}"#);
            let document = RequestDocument::from_json(text.as_bytes()).unwrap();
            let request = Request::parse(document).unwrap();
            request.lower().unwrap();
            request
        };
        let each = work(&asked(""));
        assert!((1_000..1_010).contains(&each), "{each}");
        let times = |more: &str| work(&asked(more)) / each;

        assert_eq!(times(r#", "training": {"optimizer": ["sgd", "adam"]}"#), 2);
        assert_eq!(times(r#", "suggest": true"#), 1 + SUGGESTED);
        assert_eq!(times(r#", "soak": {"steps": 100000}"#), 101);
        let ranks = |ranks: u64| times(&format!(r#", "world_size": {ranks}"#));
        assert_eq!([ranks(1), ranks(2), ranks(1 << 20)], [1, 2, MOST_CLASSES]);

        let refused = check_work(&asked(r#", "suggest": true"#), MOST_OPERATIONS + 1).unwrap_err();
        assert_eq!(refused.pointer, "/training");
        assert!(
            refused.problem.contains(" 1000001 operations "),
            "{refused}"
        );
        assert!(refused.problem.contains("fewer `suggest`"), "{refused}");
    }

    #[test]
    fn a_kind_of_card_is_soaked_where_it_is_simulated() {
        let text =
            br#"{"model": {"preset": "resnet18"}, "device": "rtx4090", "soak": {"steps": 5}}"#;
        let request = Request::parse(RequestDocument::from_json(text).unwrap()).unwrap();
        let on = |is_simulated| {
            let found = |_: &Lowered| Ok(((), is_simulated));
            resolve(&request, Purpose::Fit, &Cancel::NEVER, found)
        };

        assert_eq!(on(true), Ok(()));
        assert_eq!(on(false), Err(EngineError::Invalid(soak_on_a_gpu())));
    }

    #[test]
    fn what_cannot_be_checkpointed_is_refused_before_anything_runs() {
        let asked = |checkpointing: &str| {
            let layers = r#"{"type": "linear", "out_features": 8}, {"type": "relu"}"#;
            let model = format!(r#"{{"input": {{"shape": [8]}}, "layers": [{layers}]}}"#);
            let training = format!(r#"{{"checkpointing": {checkpointing}}}"#);
            let text = format!(r#"{{"model": {model}, "training": {training}}}"#);
            let document = RequestDocument::from_json(text.as_bytes()).unwrap();
            validate(&Request::parse(document).unwrap()).map(drop)
        };

        assert_eq!(asked(r#""none""#), Ok(()));
        for missing in [
            r#""per_block""#,
            r#"["none", "per_block"]"#,
            r#"{"modules": ["nowhere"]}"#,
        ] {
            let refused = asked(missing).unwrap_err();
            assert_eq!(refused.pointer, "/training/checkpointing");
            assert!(refused.problem.contains("no module"), "{refused}");
        }
    }
}

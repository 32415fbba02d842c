//! `batchfit fit`: computes, stores where it can, and prints.

mod commands;

use std::borrow::Cow;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tempfile::TempPath;
use tracing::info;

use super::arguments::{DatabaseFlags, Fit, Format};
use super::error::CliError;
use super::question::{self, ParsedArgs};
use super::{Outcome, answers, engine, python, recorder, storage};
use crate::cli::terminal::output::{self, ProgressLine};
use crate::device::sim::Card;
use crate::jobs::{
    self, DeviceKind, Engine as _, EngineError, FitDocument, FitEngine, FitResult, Isolation,
    Progress, Work,
};
use crate::limits::Cancel;
use crate::model::{DeviceChoice, HeadroomCalibration, Request, nicknames};
use crate::report::{self, Answer, Form, ShownRequest, Style};
use crate::store::{Db, Time};

/// More lengths than are answered in a second or two.
const MANY_LENGTHS: usize = 64;

/// A question with its answer.
struct Answered {
    request: Request,
    result: FitResult,
    document: FitDocument,
}

pub(super) fn run(arguments: &Fit) -> Result<Outcome, CliError> {
    let format = arguments.output.format();
    let shown = ProgressLine::new(format);
    let own = own(arguments)?;
    shown.say("reading the model");
    let recorder = recorder(&arguments.recorder, &arguments.module)?;
    let is_module = recorder.as_ref().is_some_and(|it| it.module.is_some());
    let soak = ("--soak", "soak");
    let mut course = question::members(soak, arguments.soak.as_deref())?;
    let generation = ("--generation", "generation");
    course.extend(question::members(
        generation,
        arguments.generation.as_deref(),
    )?);
    let listed = listed_cards(arguments.question.own.on.as_deref())?;
    let mut asked = if is_module {
        question::read_unrecorded(&arguments.question, course)?
    } else {
        let again = arguments.earlier.again.as_deref();
        let again = again.map(|id| answers::again(&arguments.kept, id));
        let mut flags = Cow::Borrowed(&arguments.question);
        if let Some(card) = listed.first() {
            flags.to_mut().own.on = Some(card.name.to_owned());
        }
        if let Some(graph) = &own {
            let flags = flags.to_mut();
            flags.own.what = None;
            flags.own.model = Some(graph.to_path_buf());
            flags
                .members
                .retain(|given| !python::export::SIZES.iter().any(|size| given.is_of(size)));
        }
        let asked = question::read_and(&flags, again.transpose()?, course)?;
        let asked = asked.with_recorder(recorder.is_some());
        match own
            .is_some()
            .then_some(arguments.question.own.what.as_deref())
            .flatten()
        {
            Some(name) => asked.with_model_name(&name.to_string_lossy()),
            None => asked,
        }
    };
    // Each holds a program of the model.
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get().min(4));
    let engine = engine(arguments.patience.deadlines())?
        .with_recorder(recorder)
        .with_threads(threads);
    if arguments.earlier.stored {
        shown.end();
        return answers::stored(arguments, &engine, asked.questions);
    }
    let no_gpu = if asked.names_a_device() {
        None
    } else {
        no_gpu_here(&engine)
    };
    if no_gpu.is_some() {
        one_answer(format, 1 + asked.questions.len(), "--on", "name a card")?;
        asked.questions = over(&asked.questions, &common_cards());
    }
    if !listed.is_empty() {
        one_answer(format, listed.len(), "--on", "name one card")?;
        asked.questions = over(&asked.questions, &listed);
    }
    if !is_module {
        learn_before(&arguments.kept, &engine, &mut asked.questions);
    }
    say_many_lengths(&asked.questions);
    let assumes_length = asked.assumes_length;
    let answers = answer_all(arguments, &engine, asked, is_module, &shown)?;
    shown.end();
    // Before the answer is printed: its reader may look it up at once.
    store(&arguments.kept, &answers);
    let fits = |answered: &Answered| answered.result.recommendation.micro_batch > 0;
    let outcome = if answers.iter().any(fits) {
        Outcome::Answered
    } else {
        Outcome::NothingFits
    };
    if let ([only], Some(path)) = (answers.as_slice(), &arguments.output.document) {
        let json = serde_json::to_vec(&only.document).unwrap_or_default();
        let unwritable = CliError::unwritable(path);
        std::fs::write(path, json).map_err(unwritable)?;
    }
    let style = output::style(arguments.output.verbose);
    print(
        format,
        &answers,
        (no_gpu.as_deref(), assumes_length),
        &style,
    )?;
    if let ([only], Format::Text) = (answers.as_slice(), format)
        && !only.result.suggestions.is_empty()
    {
        output::text(&commands::to_paste(&only.result))?;
    }
    if let ([only], Format::Text, true) = (answers.as_slice(), format, arguments.output.why) {
        output::text(&report::why(&only.result, &style))?;
    }
    Ok(outcome)
}

/// The graph of a module of the user's own: a model's name has no colon, and no loss nor batch of its own.
fn own(arguments: &Fit) -> Result<Option<TempPath>, CliError> {
    let what = arguments.question.own.what.as_deref();
    let may_be_own = what.is_some_and(|what| what.to_string_lossy().contains(':'))
        || arguments.module.loss.is_some()
        || !arguments.module.tensors.is_empty();
    if may_be_own {
        return python::export::own(arguments);
    }
    Ok(None)
}

/// Says what takes long where many lengths are asked about.
fn say_many_lengths(questions: &[Request]) {
    let lengths = questions.iter().filter_map(|it| it.lengths.as_deref());
    let many = lengths
        .map(|it| it.each.len())
        .find(|it| *it > MANY_LENGTHS);
    if let Some(many) = many {
        output::note(&format!(
            "each of {many} lengths is searched by itself; `--multiple-of 8` rounds them up, as collators pad them, which is faster"
        ));
    }
}

/// Refuses several answers in a format that holds one.
fn one_answer(format: Format, count: usize, flag: &str, instead: &str) -> Result<(), CliError> {
    let holds_several = matches!(format, Format::Text | Format::Json | Format::Markdown);
    if count > 1 && !holds_several {
        let problem = format!("{} holds one answer; {instead}", format.flag());
        return Err(CliError::flag(flag, problem));
    }
    Ok(())
}

/// Asks the engine to stop after the `timeout_seconds` of a request, unless it is dropped before.
struct Timer {
    _stopped_by: Sender<()>,
}

impl Timer {
    fn start(seconds: u64, cancel: &Cancel) -> Timer {
        let (stopped_by, stopped) = channel::<()>();
        let cancel = cancel.clone();
        thread::spawn(move || {
            if stopped.recv_timeout(Duration::from_secs(seconds)) == Err(RecvTimeoutError::Timeout)
            {
                cancel.cancel();
            }
        });
        Timer {
            _stopped_by: stopped_by,
        }
    }
}

/// Answers all questions; those about a module become questions about its recordings.
fn answer_all(
    arguments: &Fit,
    engine: &FitEngine,
    asked: ParsedArgs,
    is_module: bool,
    shown: &ProgressLine,
) -> Result<Vec<Answered>, CliError> {
    let (count, origin) = (asked.questions.len(), asked.origin);
    let mut answers = Vec::new();
    for (index, mut request) in asked.questions.into_iter().enumerate() {
        let (variants, about) = (request.variants.clone(), request.device.to_string());
        let show = |progress: Progress| {
            let note = output::progress_text(&progress.note, &variants);
            shown.say(&match count {
                1 => note,
                _ => format!("{} of {count}, {about}: {note}", index + 1),
            });
        };
        let started_at = Time::from(Timestamp::now());
        let cancel = Cancel::default();
        let seconds = request.timeout_seconds;
        let timer = seconds.map(|seconds| Timer::start(seconds, &cancel));
        let work = Work {
            cancel: &cancel,
            progress: &show,
        };
        let result = if is_module {
            let found = engine.fit_recorded(&request, &work);
            found.map(|found| {
                request = found.request;
                found.result
            })
        } else {
            engine.fit(&request, Isolation::Shared, &work)
        };
        let result = result.and_then(|mut result| {
            if arguments.output.format() == Format::Text
                && count == 1
                && result.recommendation.micro_batch == 0
                && commands::is_asked_for(&result)
            {
                engine.suggest(&request, &mut result, &work)?;
            }
            Ok(result)
        });
        drop(timer);
        let result = result.map_err(|error| match (error, seconds) {
            (EngineError::Cancelled, Some(seconds)) => EngineError::TimedOut { seconds },
            (other, _) => other,
        });
        let result = result.map_err(|error| origin.blame(CliError::Engine(error)))?;
        let finished_at = Time::from(Timestamp::now());
        let document = FitDocument::finished(&request, &result, started_at, finished_at);
        answers.push(Answered {
            request,
            result,
            document,
        });
    }
    Ok(answers)
}

/// Writes answers; `no_gpu` is why they are about cards that were not named.
fn print(
    format: Format,
    answered: &[Answered],
    (no_gpu, assumes_length): (Option<&str>, bool),
    style: &Style,
) -> Result<Outcome, CliError> {
    let names: Vec<(&str, ShownRequest)> = answered
        .iter()
        .map(|answered| {
            let request = ShownRequest::of(answered.document.request.as_str())
                .with_assumed_length(assumes_length);
            (answered.request.model_name(), request)
        })
        .collect();
    let answers: Vec<Answer> = answered
        .iter()
        .zip(&names)
        .map(|(answered, (model, request))| {
            let result = &answered.result;
            Answer {
                model,
                length: None,
                world_size: result.ranks(answered.request.world_size),
                result,
                request,
            }
        })
        .collect();
    let snippet = |format: Format, answer: &Answer| {
        let form = Form::named(&format.name()).unwrap_or(Form::Text);
        let nothing_fits = answer.result.recommendation.micro_batch == 0;
        match form.write(answer) {
            Ok(text) => {
                if nothing_fits {
                    output::error(report::NOTHING_FITS);
                }
                output::text(&text)
            }
            // There is nothing to train with.
            Err(problem) if nothing_fits => {
                output::error(&problem);
                Ok(Outcome::NothingFits)
            }
            Err(problem) => Err(CliError::flag("--format", problem)),
        }
    };
    match (format, answers.as_slice(), answered) {
        (Format::Text, [only], _) => {
            output::text(&report::fit(only.model, only.result, only.request, style))
        }
        (Format::Text, several, _) => output::text(&report::overview(several, no_gpu, style)),
        (Format::Json, _, [only]) => output::json(&only.document),
        (Format::Json, _, several) => {
            let items: Vec<&FitDocument> =
                several.iter().map(|answered| &answered.document).collect();
            output::json(&json!({ "items": items }))
        }
        (Format::Markdown, answers, _) => output::text(&report::markdown(answers)),
        (of_one, [answer], _) => snippet(of_one, answer),
        (_of_one, ..) => Ok(Outcome::Answered),
    }
}

/// Stores answers. They are printed even where that cannot be done.
fn store(kept: &DatabaseFlags, answers: &[Answered]) {
    if let Err(error) = stored(kept, answers) {
        output::warning(&format!("the answer is not stored: {error:#}"));
    }
}

/// The questions, each with what outcomes of earlier answers teach about it, where something is kept.
fn learn_before(kept: &DatabaseFlags, engine: &FitEngine, questions: &mut [Request]) {
    match calibration(kept, engine, questions) {
        Ok(taught) => {
            for (one, taught) in questions.iter_mut().zip(taught) {
                *one = one.clone().with_calibration(taught);
            }
        }
        Err(error) => info!("nothing is known of earlier answers: {error:#}"),
    }
}

fn calibration(
    kept: &DatabaseFlags,
    engine: &FitEngine,
    questions: &[Request],
) -> anyhow::Result<Vec<Vec<HeadroomCalibration>>> {
    let database = storage::database(kept)?;
    let runtime = storage::runtime()?;
    runtime.block_on(async {
        let db = Db::open_existing(&database).await?;
        let mut all = Vec::new();
        // Where nothing was ever learnt, there is no need to look at the model or for a GPU.
        let is_known = db.learnt_count().await?.models > 0;
        for one in questions.iter().filter(|_| is_known) {
            let card = match one.device {
                DeviceChoice::Sim(_) => None,
                // The engine says that it is not here.
                DeviceChoice::Auto
                | DeviceChoice::Cuda(_)
                | DeviceChoice::Kind(_)
                | DeviceChoice::Host(..) => engine.catalogue().card(one).ok().flatten(),
            };
            let taught = jobs::learn_before(&db, one, card.as_deref()).await;
            // So is what is wrong with the model.
            all.push(taught.unwrap_or_default());
        }
        db.close().await;
        Ok(all)
    })
}

fn stored(kept: &DatabaseFlags, answers: &[Answered]) -> anyhow::Result<()> {
    let recorded = storage::with_database(kept, async |db| {
        let mut recorded = Ok(());
        for answered in answers {
            recorded = recorded.and(
                jobs::record(db, &answered.request, &answered.result, &answered.document).await,
            );
        }
        recorded
    });
    Ok(recorded??)
}

/// The cards that people ask about most, smallest memory first.
const COMMON: [&str; 9] = [
    "t4", "l4", "rtx4090", "rtx3090", "a100-40g", "l40s", "h100-80g", "a100-80g", "h200",
];

/// Why this machine has no GPU. Nothing where it has one, even one that cannot be used: its owner wants to know
/// what is missing.
fn no_gpu_here(engine: &FitEngine) -> Option<String> {
    let devices = engine.catalogue().devices();
    let real = || {
        devices
            .iter()
            .filter(|device| device.kind == DeviceKind::Cuda)
    };
    if real().any(|device| device.gpu.is_some()) {
        return None;
    }
    let missing = real().find_map(|device| device.missing.clone());
    Some(missing.unwrap_or_else(|| "this machine has no GPU".to_owned()))
}

/// The cards that people ask about most.
fn common_cards() -> Vec<&'static Card> {
    COMMON.iter().filter_map(|name| Card::find(name)).collect()
}

/// The cards of a list such as `rtx4090,rtx3090`; none where one is named, in words or by what it has.
fn listed_cards(on: Option<&str>) -> Result<Vec<&'static Card>, CliError> {
    let list = on.filter(|on| on.contains([',', '\n']) && nicknames::parse(on).is_err());
    // Lines of nvidia-smi have a comma in each.
    let apart = |list: &str| if list.contains('\n') { '\n' } else { ',' };
    let parts = list.map_or_else(Vec::new, |list| list.trim().split(apart(list)).collect());
    let is_several = |part: &&str| nicknames::parse(part).is_ok_and(|on| on.count.is_some());
    if parts.iter().any(is_several) {
        return Ok(Vec::new());
    }
    let card = |part: &&str| {
        let on = nicknames::parse(part).map_err(|invalid| CliError::named(&"--on", invalid))?;
        if let Some(note) = &on.note {
            output::note(note);
        }
        Ok(on.card)
    };
    parts.iter().map(card).collect()
}

/// Each question for each of these cards.
fn over(questions: &[Request], cards: &[&'static Card]) -> Vec<Request> {
    let on = |one: &Request, card: &Card| {
        let mut request = one.clone();
        request.device = DeviceChoice::Sim(card.name.to_owned());
        request.document.set("device", format!("sim:{}", card.name));
        request
    };
    let all = questions
        .iter()
        .flat_map(|one| cards.iter().map(move |card| on(one, card)));
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_cards_are_there_and_in_order() {
        let memory: Vec<_> = COMMON
            .iter()
            .map(|name| Card::find(name).unwrap().total_memory)
            .collect();

        assert!(memory.is_sorted(), "{memory:?}");
    }

    #[test]
    fn lines_of_nvidia_smi_are_cards_of_their_own() {
        let lines = "NVIDIA GeForce RTX 4090, 24564 MiB\nTesla T4, 15360 MiB\n";
        let cards = listed_cards(Some(lines)).unwrap();
        assert_eq!(
            cards.iter().map(|card| card.name).collect::<Vec<_>>(),
            ["rtx4090", "t4"]
        );
    }
}

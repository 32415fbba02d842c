//! `batchfit fit`: computes, stores where it can, and prints.

mod cards;
mod commands;
mod progress;
mod stored;

use std::borrow::Cow;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::arguments::{Fit, Format};
use super::devices::engine;
use super::error::CliError;
use super::question::{self, ParsedArgs, ParsedRequest};
use super::{Outcome, answers, python, recorder};
use crate::cli::terminal::{output, style};
use crate::jobs::{
    self, Engine as _, EngineError, FitDocument, FitEngine, FitResult, Isolation, Progress, Work,
};
use crate::limits::Cancel;
use crate::report::{self, Answer, Form, Style};
use crate::store::Time;
use progress::ProgressLine;

/// A question with its answer.
struct Answered {
    one: ParsedRequest,
    result: FitResult,
    document: FitDocument,
}

pub(super) fn run(arguments: &Fit) -> Result<Outcome, CliError> {
    let format = arguments.output.format();
    let shown = ProgressLine::new(format);
    let own = python::export::own(arguments)?;
    shown.say("reading the model");
    let recorder = recorder::command(&arguments.recorder, &arguments.module)?;
    let is_module = recorder.as_ref().is_some_and(|it| it.module.is_some());
    let soak = ("--soak", "soak");
    let mut course = question::members(soak, arguments.soak.as_deref())?;
    let generation = ("--generation", "generation");
    course.extend(question::members(
        generation,
        arguments.generation.as_deref(),
    )?);
    let listed = cards::listed(arguments.question.own.on.as_deref())?;
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
                .retain(|given| !python::export::SIZES.contains(&given.flag.name));
        }
        let asked = question::read_again(&flags, again.transpose()?, course)?;
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
    let engine = engine(arguments.patience.deadlines())?.with_recorder(recorder);
    if arguments.earlier.stored {
        shown.end();
        return answers::stored(arguments, &engine, asked.questions);
    }
    let no_gpu = if asked.names_a_device() {
        None
    } else {
        cards::no_gpu(&engine)
    };
    if no_gpu.is_some() {
        one_answer(format, 1 + asked.questions.len(), "--on", "name a card")?;
        asked.questions = cards::over(&asked.questions, &cards::common());
    }
    if !listed.is_empty() {
        one_answer(format, listed.len(), "--on", "name one card")?;
        asked.questions = cards::over(&asked.questions, &listed);
    }
    if !is_module {
        stored::learn_before(&arguments.kept, &engine, &mut asked.questions);
    }
    let answers = answer_all(arguments, &engine, asked, is_module, &shown)?;
    shown.end();
    // Before the answer is printed: its reader may look it up at once.
    stored::store(&arguments.kept, &answers);
    let fits = |answered: &Answered| answered.result.recommendation.micro_batch > 0;
    let outcome = if answers.iter().any(fits) {
        Outcome::Answered
    } else {
        Outcome::NothingFits
    };
    if let ([only], Some(path)) = (answers.as_slice(), &arguments.output.document) {
        let json = serde_json::to_vec(&only.document).unwrap_or_default();
        let unwritable = |source| CliError::Unwritable {
            path: path.clone(),
            source,
        };
        std::fs::write(path, json).map_err(unwritable)?;
    }
    let style = style::stdout(arguments.output.verbose);
    print(format, &answers, no_gpu.as_deref(), &style)?;
    if let ([only], Format::Text) = (answers.as_slice(), format) {
        output::text(&commands::to_paste(&only.result))?;
    }
    if let ([only], Format::Text, true) = (answers.as_slice(), format, arguments.output.why) {
        output::text(&report::why(&only.result, &style))?;
    }
    Ok(outcome)
}

/// Refuses several answers in a format that holds one.
fn one_answer(format: Format, count: usize, flag: &str, instead: &str) -> Result<(), CliError> {
    let holds_one = match format {
        Format::Text | Format::Json | Format::Markdown => false,
        Format::Env
        | Format::Hf
        | Format::Trl
        | Format::Lightning
        | Format::Accelerate
        | Format::Python => true,
    };
    if holds_one && count > 1 {
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
    for (index, mut one) in asked.questions.into_iter().enumerate() {
        let (variants, about) = (one.request.variants.clone(), one.request.device.to_string());
        let show = |progress: Progress| {
            let note = progress::progress_text(&progress.note, &variants);
            shown.say(&match count {
                1 => note,
                _ => format!("{} of {count}, {about}: {note}", index + 1),
            });
        };
        let started_at = Time::from(Timestamp::now());
        let cancel = Cancel::default();
        let seconds = one.request.timeout_seconds;
        let timer = seconds.map(|seconds| Timer::start(seconds, &cancel));
        let work = Work {
            cancel: &cancel,
            progress: &show,
        };
        let result = if is_module {
            let found = engine.fit_recorded(&one.request, &work);
            found.map(|found| {
                one.request = found.request;
                found.result
            })
        } else {
            engine.fit(&one.request, Isolation::Shared, &work)
        };
        let result = result.and_then(|mut result| {
            if arguments.output.format() == Format::Text
                && count == 1
                && commands::is_asked_for(&result)
            {
                engine.suggest(&one.request, &mut result, &work)?;
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
        let document =
            FitDocument::finished(&one.request, &result, started_at, finished_at, chance());
        answers.push(Answered {
            one,
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
    no_gpu: Option<&str>,
    style: &Style,
) -> Result<(), CliError> {
    let described = |answered: &Answered| {
        let asked = serde_json::from_str(answered.document.request.as_str()).unwrap_or_default();
        (jobs::model_name(&answered.one.request), asked)
    };
    let names: Vec<(String, Value)> = answered.iter().map(described).collect();
    let answers: Vec<Answer> = answered
        .iter()
        .zip(&names)
        .map(|(answered, (model, request))| {
            let Answered { one, result, .. } = answered;
            Answer {
                model,
                length: None,
                world_size: result.ranks(one.request.world_size),
                result,
                request,
            }
        })
        .collect();
    let snippet = |form: Form| {
        let [answer] = answers.as_slice() else {
            return Ok(());
        };
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
                Ok(())
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
        (Format::Env, ..) => snippet(Form::Env),
        (Format::Hf, ..) => snippet(Form::Hf),
        (Format::Trl, ..) => snippet(Form::Trl),
        (Format::Lightning, ..) => snippet(Form::Lightning),
        (Format::Accelerate, ..) => snippet(Form::Accelerate),
        (Format::Python, ..) => snippet(Form::Python),
    }
}

/// Sixty-four bits of chance: the standard library seeds each hasher from the system.
fn chance() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

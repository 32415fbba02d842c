//! Replays: what would this recording have taken?

use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;

use crate::alloc::Settings;
use crate::http::App;
use crate::http::request::parameters::{Parameters, invalid};
use crate::http::request::unpack::Unpacked;
use crate::http::request::uploads::{LIMIT_MIB, ReceivedBody};
use crate::http::response::large::{self, ReadsGzip};
use crate::http::response::problem::{Code, Problem};
use crate::replay::{
    Bounds, Recording, RecordingError, Replay, ReplayOptions, ReplayReport, pickle, read_bare,
    replay,
};

/// What an uploaded file may make the service use.
const BOUNDS: Bounds = Bounds {
    mib: LIMIT_MIB as u64,
    // A comparison replays them a hundred times.
    events: 1 << 19,
    pickle: pickle::Bounds {
        bytes: 64 << 20,
        depth: 32,
    },
};

/// A recording, from a body of any content type, and what the query asks about it.
pub(in crate::http) struct ReplayBody {
    received: ReceivedBody,
    options: ReplayOptions,
    reads_gzip: ReadsGzip,
}

impl FromRequest<App> for ReplayBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<ReplayBody, Problem> {
        let (parts, body) = request.into_parts();
        let options = options(&Parameters::of(&parts))?;
        let reads_gzip = ReadsGzip::of(&parts.headers);
        let request = Request::from_parts(parts, body);
        let received = app.uploads.arrive(request).await?;
        Ok(ReplayBody {
            received,
            options,
            reads_gzip,
        })
    }
}

fn options(parameters: &Parameters) -> Result<ReplayOptions, Problem> {
    let limit = parameters.text("memory_limit");
    let settings = parameters.text("allocator");
    Ok(ReplayOptions {
        limit: limit
            .map(|text| {
                let limit = crate::model::parse_memory_limit(&Value::from(text.as_str()), "");
                limit.map_err(|wrong| {
                    invalid("memory_limit", &text, wrong.to_string(), wrong.nearest)
                })
            })
            .transpose()?,
        settings: settings
            .map(|text| {
                let settings = text.parse::<Settings>();
                settings.map_err(|error| invalid("allocator", &text, error.to_string(), None))
            })
            .transpose()?,
        compare: parameters.one_of("compare", &["true", "false"])?.as_deref() == Some("true"),
        events: parameters.one_of("events", &["true", "false"])?.as_deref() == Some("true"),
    })
}

/// Replay a recording.
///
/// The body is a memory snapshot of PyTorch (the pickle that `torch.cuda.memory._dump_snapshot` writes) or
/// a trace as text, as it is or compressed with gzip. Nothing of it is executed or kept. Running out of
/// memory is an answer.
#[utoipa::path(post, path = "/v1/replays", tag = "replays",
    request_body(content = Vec<u8>, content_type = "application/octet-stream",
        description = "A memory snapshot or a trace, at most 64 MiB decompressed"),
    params(
        ("memory_limit" = Option<String>, Query, description = "What may be reserved, instead of what was recorded: bytes, 12GiB or 0.8", example = "12GiB"),
        ("allocator" = Option<String>, Query, description = "Allocator settings, instead of the recorded ones: the text of a PYTORCH_CUDA_ALLOC_CONF", example = "expandable_segments:True"),
        ("compare" = Option<bool>, Query, description = "Whether to compare with other settings"),
        ("events" = Option<bool>, Query, description = "Whether to tell each allocation and free in `events`: what a drawing of all of it is made from")),
    responses((status = 200, body = ReplayReport, description = "What the replay found")))]
pub(in crate::http) async fn create_replay(
    State(app): State<App>,
    body: ReplayBody,
) -> Result<Response, Problem> {
    let ReplayBody {
        received,
        options,
        reads_gzip,
    } = body;
    let replayed = move |file: Unpacked| {
        let recording = recording(&file.contents)?;
        drop(file);
        let Replay { report, events } = replay(&recording, &options).map_err(|error| Problem {
            parameter: Some("memory_limit".to_owned()),
            ..Problem::new(Code::QueryInvalid, error.to_string())
        })?;
        drop((recording, events));
        large::serialize(StatusCode::OK, &report, reads_gzip)
    };
    let done = app.uploads.unpack(received, replayed).await;
    let done = done.map_err(|problem| {
        if problem.kind.ends_with(Code::UploadInvalid.slug()) {
            Problem::new(Code::RecordingInvalid, problem.detail)
        } else {
            problem
        }
    });
    Ok(done?.read)
}

fn recording(file: &[u8]) -> Result<Recording, Problem> {
    read_bare(file, BOUNDS).map_err(|error| {
        let code = match error {
            RecordingError::TooLarge { .. } => Code::BodyTooLarge,
            RecordingError::UnknownFormat { .. }
            | RecordingError::TooLong { .. }
            | RecordingError::Gzip { .. }
            | RecordingError::Pickle(_)
            | RecordingError::At { .. }
            | RecordingError::Rebuild { .. }
            | RecordingError::Settings { .. } => Code::RecordingInvalid,
        };
        Problem::new(code, error.to_string())
    })
}

//! From a request to its answer: the queue, the runner, agents, and recovery when one of them stops.
//!
//! A fit is a row first ([`crate::store`]) and work second, so a server that dies loses nothing: its
//! running fits go back to the queue when the next one starts. The runner claims rows, one at a time
//! for each GPU and a few at a time for simulated devices, and calls the [`Engine`] on a thread of its
//! own. A state changes only through a statement that names the state it expects; an attempt that was
//! cancelled or overtaken finds that out when it tries to store its answer.

mod agents;
mod cards;
mod clock;
mod document;
mod events;
mod lanes;
mod leases;
mod outcomes;
mod presets;
mod probes;
mod queue;
mod readiness;
mod runner;
mod runs;
mod searches;
mod shares;
mod uploads;

pub use agents::{
    AgentCard, AgentDocument, AgentState, Claim, ClaimDocument, JobDocument, JobNews, JobOutcome,
    LeaseDocument, MOST_CARDS, PROTOCOL, Registration, RegistrationResponse, answer_job,
};
pub use cards::card;
pub use cards::{CardDocument, MachineDocument, Throughput, cards, machines};
pub use document::{FailureCode, FitDocument, FitError, ProbeDocument, record};
pub use events::{Event, FitNews, Follower, Notification, StateNews};
pub use lanes::{ReadPermit, patience_for_large};
pub use leases::LEASE;
pub use outcomes::{
    AccuracyDocument, HeadroomChange, NearDocument, OutcomeDocument, OutcomeStatus,
    RejectReasonDocument, ReportedEnvironment, ReportedOutcome, Reporter, accuracy, add_outcome,
    followed, learn_before, nearest, outcomes, question_of,
};
pub use presets::PresetDocument;
pub use probes::ProbeRequest;
pub use queue::{Cancellation, EnqueueOptions, JobError, Jobs, Limits};
pub use readiness::NotReadyReason;
pub use runs::record_run;
pub use searches::{ObservationReply, SearchCancellation, SearchDocument, record_search};
pub use shares::{Share, permit_to_read, permit_to_send, room_of_key, under_key};
pub(crate) use shares::{niceness, yielding};
pub use uploads::{About, Found, UploadDocument, UploadLimits, examine, new_upload};

pub use batchfit_fit::{
    AcrossRanks, Bucket, Catalogue, DeviceKind, DeviceSummary, Engine, EngineError, Environment,
    Exactly, FailingStep, FitEngine, FitResult, FromRecordings, GpuRun, GpuWork, Headroom,
    HeadroomFrom, Isolation, LengthRow, LengthTable, Limit, LimitKind, ProbeSummary, Progress,
    Recommendation, Runs, SafeBatch, SoakResult, SoakStep, StepKind, Suggestion, SuggestionKind,
    VariantResult, Why, Work, invalid_variant, run_isolated, soak, validate, validate_batch,
};

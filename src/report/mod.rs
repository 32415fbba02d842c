//! Text for what the service, the store and a GPU answer; that of fits, probes and recordings is in `batchfit_report`.

mod agents;
mod answers;
mod cards;
mod gaps;
mod outcomes;
mod search;

pub use agents::agents;
pub use answers::{answer, answers, near};
pub use batchfit_report::*;
pub use cards::{card, cards, machines};
pub use gaps::gaps;
pub use outcomes::{accuracy, outcome, outcomes};
pub use search::{search, search_env};

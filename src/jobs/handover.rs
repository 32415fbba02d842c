//! Requests that were just read, on their way to whoever answers them.

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::bounded::MOST_NODES;
use crate::model::Request;

/// Most operations of the models in requests that wait: one of the largest, or many small ones. One takes about a
/// kilobyte.
const MOST_OPERATIONS: usize = MOST_NODES;
/// Most requests that wait.
const MOST_REQUESTS: usize = 64;

/// Requests of queued fits by the fits' names, so that a graph that was read to be checked is not read again to be
/// answered. Those that have to wait long are dropped: the database has them too.
#[derive(Debug, Default)]
pub(super) struct Handover(Mutex<VecDeque<(String, Request)>>);

impl Handover {
    /// Leaves a request for whoever takes up the fit.
    pub(super) fn leave(&self, id: &str, request: Request) {
        let mut waiting = self.0.lock().expect("nothing panics while it is held");
        waiting.push_back((id.to_owned(), request));
        while waiting.len() > MOST_REQUESTS || operations(&waiting) > MOST_OPERATIONS {
            waiting.pop_front();
        }
    }

    /// The request of this fit, if it still waits.
    pub(super) fn take(&self, id: &str) -> Option<Request> {
        let mut waiting = self.0.lock().expect("nothing panics while it is held");
        let index = waiting.iter().position(|(other, _)| other == id)?;
        waiting.remove(index).map(|(_, request)| request)
    }
}

fn operations(waiting: &VecDeque<(String, Request)>) -> usize {
    let graphs = waiting.iter().map(|(_, request)| request.graph());
    graphs.flatten().map(|graph| graph.nodes.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RequestDocument;

    /// A request for a model of so many layers.
    fn request(layers: usize) -> Request {
        let layers = vec![r#"{"type": "relu"}"#; layers].join(",");
        let input = r#""input": {"shape": [4]}"#;
        let text = format!(r#"{{"model": {{{input}, "layers": [{layers}]}}}}"#);
        let document = RequestDocument::from_json(text.as_bytes()).unwrap();
        Request::parse(document, &[]).unwrap()
    }

    #[test]
    fn a_request_is_taken_once() {
        let handover = Handover::default();
        handover.leave("1", request(1));

        assert!(handover.take("2").is_none());
        assert!(handover.take("1").is_some());
        assert!(handover.take("1").is_none());
    }

    #[test]
    fn the_oldest_make_room() {
        let handover = Handover::default();
        for id in ["1", "2", "3"] {
            handover.leave(id, request(MOST_OPERATIONS / 2 - 10));
        }
        let taken = ["1", "2", "3"].map(|id| handover.take(id).is_some());
        assert_eq!(taken, [false, true, true]);

        for id in 0..=MOST_REQUESTS {
            handover.leave(&id.to_string(), request(1));
        }
        assert!(handover.take("0").is_none());
        assert!(handover.take("1").is_some());
    }
}

//! Requests that were just read, on their way to whoever answers them.

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::model::Request;

/// Most bytes of models in requests that wait: one of the largest, or many small ones. The graph of a model takes
/// about as much again.
const MOST_BYTES: usize = 64 << 20;
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
        while waiting.len() > MOST_REQUESTS || bytes(&waiting) > MOST_BYTES {
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

fn bytes(waiting: &VecDeque<(String, Request)>) -> usize {
    let each = waiting
        .iter()
        .map(|(_, request)| request.document.text().len());
    each.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RequestDocument;

    fn request(padding: usize) -> Request {
        let space = " ".repeat(padding);
        let text = format!(r#"{{"model": {{"preset": "resnet18"}}{space}}}"#);
        let document = RequestDocument::from_json(text.as_bytes()).unwrap();
        Request::parse(document, &[]).unwrap()
    }

    #[test]
    fn a_request_is_taken_once() {
        let handover = Handover::default();
        handover.leave("1", request(0));

        assert!(handover.take("2").is_none());
        assert!(handover.take("1").is_some());
        assert!(handover.take("1").is_none());
    }

    #[test]
    fn the_oldest_make_room() {
        let handover = Handover::default();
        for id in ["1", "2", "3"] {
            handover.leave(id, request(MOST_BYTES / 2 - 1024));
        }
        let taken = ["1", "2", "3"].map(|id| handover.take(id).is_some());
        assert_eq!(taken, [false, true, true]);

        for id in 0..=MOST_REQUESTS {
            handover.leave(&id.to_string(), request(0));
        }
        assert!(handover.take("0").is_none());
        assert!(handover.take("1").is_some());
    }
}

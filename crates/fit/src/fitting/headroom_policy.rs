//! Who says what an answer leaves free: what it had to assume, what outcomes of earlier answers have taught, or the request.

use crate::model::{Request, Taught, TaughtBy, Variant, strategy};
use crate::units::{Bytes, Share};
use crate::{Headroom, HeadroomFrom};

use super::advice;
use super::uncertainty::{self, Uncertainty};

/// What a request and earlier outcomes say about headroom, for all variants.
#[derive(Debug, Clone, Default)]
pub(super) struct HeadroomPolicy {
    asked: Option<Share>,
    taught: Vec<Taught>,
}

/// Who says what is left free of one variant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Kept {
    /// What its probes had to assume.
    #[default]
    ByDoubts,
    /// Outcomes: so much at the least, or exactly.
    Taught {
        share: Share,
        replaces: bool,
        of: TaughtBy,
        outcomes: u64,
    },
    /// The request.
    Asked(Share),
}

impl HeadroomPolicy {
    pub(super) fn of(request: &Request) -> HeadroomPolicy {
        HeadroomPolicy {
            asked: request.headroom,
            taught: request.calibration().to_vec(),
        }
    }

    pub(super) fn about(&self, variant: &Variant) -> Kept {
        if let Some(asked) = self.asked {
            return Kept::Asked(asked);
        }
        let named = strategy(&variant.parallel);
        let taught = self.taught.iter().find(|taught| taught.strategy == named);
        taught.map_or(Kept::ByDoubts, |taught| Kept::Taught {
            share: taught.share,
            replaces: taught.replaces,
            of: taught.of,
            outcomes: taught.outcomes,
        })
    }
}

impl Kept {
    /// What is to be left free of `limit`.
    pub(super) fn bytes(self, uncertainties: &[Uncertainty], limit: Bytes) -> Bytes {
        let doubted = || uncertainty::headroom(uncertainties, limit);
        match self {
            Kept::ByDoubts => doubted(),
            Kept::Asked(share) => share.bytes(limit),
            Kept::Taught {
                share, replaces, ..
            } if replaces => share.bytes(limit),
            Kept::Taught { share, .. } => share.bytes(limit).max(doubted()),
        }
    }

    /// The same for the answer's document.
    pub(super) fn document(self, uncertainties: &[Uncertainty], limit: Bytes) -> Headroom {
        let doubted = Share::of(uncertainty::headroom(uncertainties, limit), limit);
        let by_doubts = Headroom {
            fraction: doubted.fraction(),
            from: HeadroomFrom::Default,
            outcomes: 0,
        };
        match self {
            Kept::ByDoubts => by_doubts,
            Kept::Asked(share) => Headroom {
                fraction: share.fraction(),
                from: HeadroomFrom::Asked,
                outcomes: 0,
            },
            Kept::Taught {
                share, replaces, ..
            } if !replaces && share < doubted => by_doubts,
            Kept::Taught {
                share,
                of,
                outcomes,
                ..
            } => Headroom {
                fraction: share.fraction(),
                from: match of {
                    TaughtBy::Itself => HeadroomFrom::Learnt,
                    TaughtBy::Others => HeadroomFrom::Others,
                },
                outcomes,
            },
        }
    }

    /// What a reader is told of it.
    pub(super) fn why(self, uncertainties: &[Uncertainty], limit: Bytes) -> String {
        let left = self.bytes(uncertainties, limit);
        match self.document(uncertainties, limit).from {
            HeadroomFrom::Default => advice::kept_free(left, uncertainties, limit),
            HeadroomFrom::Asked => {
                format!("{left} of the limit are left free, because the request asks for it")
            }
            HeadroomFrom::Learnt => {
                let outcomes = match self {
                    Kept::Taught { outcomes: 1, .. } => "one outcome".to_owned(),
                    Kept::Taught { outcomes, .. } => format!("{outcomes} outcomes"),
                    Kept::ByDoubts | Kept::Asked(_) => String::new(),
                };
                format!(
                    "{left} of the limit are left free, as {outcomes} of earlier answers for this model and card have taught"
                )
            }
            HeadroomFrom::Others => format!(
                "{left} of the limit are left free, as outcomes of other models on this card have taught"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Bytes = Bytes(1_000_000);
    const DOUBTS: [Uncertainty; 2] = [Uncertainty::Driver, Uncertainty::Card];

    fn calibration(millionths: u32, replaces: bool) -> Kept {
        Kept::Taught {
            share: Share(millionths),
            replaces,
            of: TaughtBy::Itself,
            outcomes: 3,
        }
    }

    #[test]
    fn what_was_learnt_adds_until_it_may_replace() {
        let kept = |kept: Kept| {
            let document = kept.document(&DOUBTS, LIMIT);
            (kept.bytes(&DOUBTS, LIMIT).0, document.from)
        };

        assert_eq!(kept(Kept::ByDoubts), (15_000, HeadroomFrom::Default));
        assert_eq!(
            kept(calibration(30_000, false)),
            (30_000, HeadroomFrom::Learnt)
        );
        assert_eq!(
            kept(calibration(9_000, false)),
            (15_000, HeadroomFrom::Default)
        );
        assert_eq!(
            kept(calibration(9_000, true)),
            (9_000, HeadroomFrom::Learnt)
        );
        assert_eq!(
            kept(Kept::Asked(Share(1_000))),
            (1_000, HeadroomFrom::Asked)
        );
        assert_eq!(kept(Kept::Asked(Share(0))), (0, HeadroomFrom::Asked));
    }

    #[test]
    fn what_the_document_says_is_the_very_share() {
        for limit in [(12 << 30) + 1, 24_564_989_952, 7] {
            let document = calibration(32_727, true).document(&DOUBTS, Bytes(limit));
            assert!((document.fraction - 0.032_727).abs() < 1e-12);
        }
        let document = Kept::ByDoubts.document(&DOUBTS, Bytes(24_564_989_952));
        assert!((document.fraction - 0.015).abs() < 1e-12);
    }
}

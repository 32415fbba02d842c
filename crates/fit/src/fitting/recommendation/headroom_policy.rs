//! Who says what an answer leaves free: what it had to assume, what outcomes of earlier answers have taught, or the request.

use crate::model::{CalibrationSource, HeadroomCalibration, Request, Variant, strategy};
use crate::units::{Bytes, Share};
use crate::{Headroom, HeadroomFrom};

use crate::fitting::recommendation::recommend;
use crate::fitting::recommendation::uncertainty::{self, Uncertainty};

/// What a request and earlier outcomes say about headroom, for all variants.
#[derive(Debug, Clone, Default)]
pub(in crate::fitting) struct HeadroomPolicy {
    asked: Option<Share>,
    calibration: Vec<HeadroomCalibration>,
}

/// Who says what is left free of one variant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::fitting) enum VariantHeadroom {
    /// What its probes had to assume.
    #[default]
    ByDoubts,
    /// Outcomes: so much at the least, or exactly.
    HeadroomCalibration {
        share: Share,
        replaces: bool,
        of: CalibrationSource,
        outcomes: u64,
    },
    /// The request.
    Asked(Share),
}

impl HeadroomPolicy {
    pub(in crate::fitting) fn of(request: &Request) -> HeadroomPolicy {
        HeadroomPolicy {
            asked: request.headroom,
            calibration: request.calibration().to_vec(),
        }
    }

    pub(in crate::fitting) fn about(&self, variant: &Variant) -> VariantHeadroom {
        if let Some(asked) = self.asked {
            return VariantHeadroom::Asked(asked);
        }
        let named = strategy(&variant.parallel);
        let calibration = self
            .calibration
            .iter()
            .find(|calibration| calibration.strategy == named);
        calibration.map_or(VariantHeadroom::ByDoubts, |calibration| {
            VariantHeadroom::HeadroomCalibration {
                share: calibration.share,
                replaces: calibration.replaces,
                of: calibration.of,
                outcomes: calibration.outcomes,
            }
        })
    }
}

impl VariantHeadroom {
    /// What is to be left free of `limit`.
    pub(in crate::fitting) fn bytes(self, uncertainties: &[Uncertainty], limit: Bytes) -> Bytes {
        let doubted = || uncertainty::headroom(uncertainties, limit);
        match self {
            VariantHeadroom::ByDoubts => doubted(),
            VariantHeadroom::Asked(share) => share.bytes(limit),
            VariantHeadroom::HeadroomCalibration {
                share, replaces, ..
            } if replaces => share.bytes(limit),
            VariantHeadroom::HeadroomCalibration { share, .. } => share.bytes(limit).max(doubted()),
        }
    }

    /// The same for the answer's document.
    pub(in crate::fitting) fn document(
        self,
        uncertainties: &[Uncertainty],
        limit: Bytes,
    ) -> Headroom {
        let doubted = Share::of(uncertainty::headroom(uncertainties, limit), limit);
        let by_doubts = Headroom {
            fraction: doubted.fraction(),
            from: HeadroomFrom::Default,
            outcomes: 0,
        };
        match self {
            VariantHeadroom::ByDoubts => by_doubts,
            VariantHeadroom::Asked(share) => Headroom {
                fraction: share.fraction(),
                from: HeadroomFrom::Asked,
                outcomes: 0,
            },
            VariantHeadroom::HeadroomCalibration {
                share, replaces, ..
            } if !replaces && share < doubted => by_doubts,
            VariantHeadroom::HeadroomCalibration {
                share,
                of,
                outcomes,
                ..
            } => Headroom {
                fraction: share.fraction(),
                from: match of {
                    CalibrationSource::Itself => HeadroomFrom::Learnt,
                    CalibrationSource::Others => HeadroomFrom::Others,
                },
                outcomes,
            },
        }
    }

    /// What a reader is told of it.
    pub(in crate::fitting) fn why(self, uncertainties: &[Uncertainty], limit: Bytes) -> String {
        let left = self.bytes(uncertainties, limit);
        match self.document(uncertainties, limit).from {
            HeadroomFrom::Default => recommend::kept_free(left, uncertainties, limit),
            HeadroomFrom::Asked => {
                format!("headroom is {left} of the limit, because the request sets it")
            }
            HeadroomFrom::Learnt => {
                let outcomes = match self {
                    VariantHeadroom::HeadroomCalibration { outcomes: 1, .. } => {
                        "one outcome".to_owned()
                    }
                    VariantHeadroom::HeadroomCalibration { outcomes, .. } => {
                        format!("{outcomes} outcomes")
                    }
                    VariantHeadroom::ByDoubts | VariantHeadroom::Asked(_) => String::new(),
                };
                format!(
                    "headroom is {left} of the limit, learnt from {outcomes} of earlier answers for this model and card"
                )
            }
            HeadroomFrom::Others => format!(
                "headroom is {left} of the limit, learnt from outcomes of other models on this card"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fitting::recommendation::headroom_policy::*;

    const LIMIT: Bytes = Bytes(1_000_000);
    const DOUBTS: [Uncertainty; 2] = [Uncertainty::Driver, Uncertainty::Card];

    fn calibration(millionths: u32, replaces: bool) -> VariantHeadroom {
        VariantHeadroom::HeadroomCalibration {
            share: Share(millionths),
            replaces,
            of: CalibrationSource::Itself,
            outcomes: 3,
        }
    }

    #[test]
    fn what_was_learnt_adds_until_it_may_replace() {
        let headroom = |headroom: VariantHeadroom| {
            let document = headroom.document(&DOUBTS, LIMIT);
            (headroom.bytes(&DOUBTS, LIMIT).0, document.from)
        };

        assert_eq!(
            headroom(VariantHeadroom::ByDoubts),
            (15_000, HeadroomFrom::Default)
        );
        assert_eq!(
            headroom(calibration(30_000, false)),
            (30_000, HeadroomFrom::Learnt)
        );
        assert_eq!(
            headroom(calibration(9_000, false)),
            (15_000, HeadroomFrom::Default)
        );
        assert_eq!(
            headroom(calibration(9_000, true)),
            (9_000, HeadroomFrom::Learnt)
        );
        assert_eq!(
            headroom(VariantHeadroom::Asked(Share(1_000))),
            (1_000, HeadroomFrom::Asked)
        );
        assert_eq!(
            headroom(VariantHeadroom::Asked(Share(0))),
            (0, HeadroomFrom::Asked)
        );
    }

    #[test]
    fn what_the_document_says_is_the_very_share() {
        for limit in [(12 << 30) + 1, 24_564_989_952, 7] {
            let document = calibration(32_727, true).document(&DOUBTS, Bytes(limit));
            assert!((document.fraction - 0.032_727).abs() < 1e-12);
        }
        let document = VariantHeadroom::ByDoubts.document(&DOUBTS, Bytes(24_564_989_952));
        assert!((document.fraction - 0.015).abs() < 1e-12);
    }
}

//! Machines that clouds rent out: which cards they have, and how many.
//!
//! Looked at on 2026-11-23; [`Cloud::source`] says where. Sizes with a part of a GPU are left out, and machines whose card is not in the
//! catalogue.

use std::fmt;
use std::sync::LazyLock;

use super::{CARDS, Card};
use crate::limits::shorten;

/// A machine of a cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    /// What the cloud calls it.
    pub name: &'static str,
    /// Its cards' name in the catalogue.
    pub card: &'static str,
    /// How many of them it has.
    pub count: u64,
}

/// A cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cloud {
    /// What it is called.
    pub name: &'static str,
    /// Its machines.
    pub machines: &'static [Instance],
    /// Where these and their cards are from.
    pub source: &'static str,
}

/// How like a name must be to be suggested, from 0 to 1, and how many are.
const LEAST_ALIKE: f64 = 0.6;
const MOST_ALIKE: usize = 4;

/// What may stand before a name: Azure's sizes and `SageMaker`'s instances are written with it and without.
const PREFIXES: [&str; 2] = ["standard_", "ml."];

impl Instance {
    /// The machine of this name, however it is capitalized, with its usual prefix or without.
    pub fn find(name: &str) -> Option<&'static Instance> {
        let wanted = bare(name.trim());
        let mut all = groups().flatten();
        all.find(|instance| bare(instance.name).eq_ignore_ascii_case(wanted))
    }

    /// The machines of the same kind as one of this name, where there is none of this name: `p5.2xlarge` is a `p5`.
    pub fn family(name: &str) -> Vec<&'static str> {
        let lower = name.trim().to_lowercase();
        let wanted = bare(&lower);
        let Some(end) = wanted.find('.').or_else(|| wanted.rfind('-')) else {
            return Vec::new();
        };
        let kind = &wanted[..=end];
        let alike = groups()
            .flatten()
            .filter(|instance| instance.name.starts_with(kind));
        alike.map(|instance| instance.name).collect()
    }

    /// The machines whose names begin with one, or are most like it, best first; none where a card's name is at least as much like it.
    pub fn alike(name: &str) -> Vec<&'static str> {
        let wanted = shorten(bare(name.trim())).to_lowercase();
        let likeness = |known: &str| {
            let known = bare(known).to_lowercase();
            if wanted.len() > 1 && known.starts_with(&wanted) {
                return 1.0;
            }
            strsim::normalized_damerau_levenshtein(&wanted, &known)
        };
        let cards = CARDS.iter().map(|card| likeness(card.name));
        let least = cards.fold(LEAST_ALIKE, f64::max);
        let mut scored: Vec<(f64, &'static str)> = groups()
            .flatten()
            .map(|machine| (likeness(machine.name), machine.name))
            .filter(|(score, _)| *score > least)
            .collect();
        crate::order::by(&mut scored, |(a, _), (b, _)| b.total_cmp(a));
        scored.truncate(MOST_ALIKE);
        scored.into_iter().map(|(_, name)| name).collect()
    }

    /// Its card.
    pub fn card(&self) -> Option<&'static Card> {
        Card::find(self.card)
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let product = self.card().map_or(self.card, |card| card.product);
        write!(f, "{}: {} x {product}", self.name, self.count)
    }
}

fn bare(name: &str) -> &str {
    let begins = |prefix: &&&str| {
        let start = name.get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    let prefix = PREFIXES.iter().find(begins);
    prefix.map_or(name, |prefix| &name[prefix.len()..])
}

/// All machines, by cloud.
pub fn clouds() -> [Cloud; 4] {
    [
        Cloud {
            name: "AWS",
            machines: &MACHINES[0],
            source: "website/content/en/preview/reference/instance-types.md of github.com/aws/karpenter-provider-aws, which is made from EC2's \
                     API; p3.2xlarge to p3.16xlarge and p6e-gb200.36xlarge from other pages",
        },
        Cloud {
            name: "Google Cloud",
            machines: &MACHINES[1],
            source: "cloud.google.com/compute/docs/gpus; a3-highgpu-1g to -4g, a3-edgegpu-8g, a4x-highgpu-4g and g4-standard from programs that \
                     start them",
        },
        Cloud {
            name: "Azure",
            machines: &MACHINES[2],
            source: "articles/virtual-machines/sizes/gpu-accelerated of github.com/MicrosoftDocs/azure-compute-docs, and the table of sizes of \
                     github.com/Azure/kaito",
        },
        Cloud {
            name: "Lambda",
            machines: &MACHINES[3],
            source: "catalogs/v7/lambda/vms.csv of github.com/skypilot-org/skypilot-catalog, which is made from Lambda's API; \
                     gpu_1x_b200_sxm6 to gpu_4x_b200_sxm6 from programs that start them",
        },
    ]
}

fn groups() -> impl Iterator<Item = &'static [Instance]> {
    clouds().into_iter().map(|cloud| cloud.machines)
}

/// A machine a line, its name, how many cards it has and which; an empty line between clouds, which are in the order of [`clouds`].
static MACHINES: LazyLock<Vec<Vec<Instance>>> = LazyLock::new(|| {
    let machine = |line: &'static str| {
        let [name, count, card] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("not a machine: {line}");
        };
        let count = count.parse().expect("a number of cards");
        Instance { name, card, count }
    };
    let clouds = include_str!("instances.txt").split("\n\n");
    clouds
        .map(|cloud| cloud.lines().map(machine).collect())
        .collect()
});

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = &'static Instance> {
        groups().flatten()
    }

    #[test]
    fn names_are_unique_and_cards_are_in_the_catalogue() {
        let mut names: Vec<String> = all().map(|one| one.name.to_lowercase()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();

        assert_eq!(names.len(), count);
        assert!(all().all(|one| one.card().is_some() && one.count > 0));
        assert!(all().all(|one| Card::find(one.name).is_none()));
    }

    #[test]
    fn counts_in_names_are_those_of_the_table() {
        for one in all() {
            let google = one.name.rsplit_once("gpu-").map(|(_, rest)| rest);
            let lambda = one.name.strip_prefix("gpu_");
            let says = google.and_then(|rest| rest.strip_suffix('g'));
            let says = says.or_else(|| lambda.and_then(|rest| Some(rest.split_once('x')?.0)));
            if let Some(says) = says {
                assert_eq!(says.parse::<u64>(), Ok(one.count), "{}", one.name);
            }
        }
    }

    #[test]
    fn case_and_prefixes_are_forgiven() {
        let found = |name| Instance::find(name).map(ToString::to_string);

        assert_eq!(
            found("P5.48xlarge").unwrap(),
            "p5.48xlarge: 8 x NVIDIA H100 80GB HBM3"
        );
        assert_eq!(found("ml.p4d.24xlarge"), found("p4d.24xlarge"));
        assert_eq!(found("nc24ads_a100_v4"), found("Standard_NC24ads_A100_v4"));
        for none in ["", "standard_", "ml.", "p5", "p5.", "ä.xlarge", "💥"] {
            assert_eq!(found(none), None, "{none}");
        }
    }

    #[test]
    fn a_size_that_is_not_there_is_answered_with_those_that_are() {
        assert_eq!(
            Instance::family("p5.2xlarge"),
            ["p5.4xlarge", "p5.48xlarge"]
        );
        assert_eq!(Instance::family("A4-HighGPU-4g"), ["a4-highgpu-8g"]);
        for none in [
            "",
            "h100",
            "h100-pcie",
            "rtx-4090",
            "a",
            ".",
            "-",
            "gpu",
            "💥-1",
        ] {
            assert_eq!(Instance::family(none), [""; 0], "{none}");
        }
    }

    #[test]
    fn a_name_like_no_family_is_answered_with_those_most_like_it() {
        assert_eq!(Instance::alike("gpu_8x_h100")[0], "gpu_8x_h100_sxm5");
        assert_eq!(Instance::alike("p7.48xlarge")[0], "p5.48xlarge");
        assert_eq!(Instance::alike("a2")[0], "a2-highgpu-1g");
        assert_eq!(
            Instance::alike("Standard_NC24ads_A10_v4")[0],
            "Standard_NC24ads_A100_v4"
        );
        for none in ["", "h2000", "rtx4091", "💥", &"p5.48xlarge".repeat(10_000)] {
            assert_eq!(Instance::alike(none), [""; 0], "{none}");
        }
    }
}

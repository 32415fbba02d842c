//! What to say of a card by a name that is none of the catalogue's. A card of another name has another amount of memory: it is offered
//! only where a name is misspelt, never in the place of another card.

use crate::bounded::shorten;
use crate::model::invalid::Invalid;

/// What is called a card or a place with cards and is not simulated, each word in small letters and without spaces and dashes, and
/// what to do instead. A word that ends in `*` is the beginning of one.
const ABSENT: [(&[&str], &str); 6] = [
    (
        &["colab"],
        "Colab lends a T4, an L4 or an A100 of 40 GB, as `nvidia-smi` says there; name it",
    ),
    (
        &["kaggle"],
        "Kaggle lends two T4s or a P100, as `nvidia-smi` says there; for the T4s name 2xt4",
    ),
    (
        &[
            "mac",
            "mps",
            "apple*",
            "amd*",
            "radeon*",
            "instinct*",
            "mi25",
            "mi50",
            "mi60",
            "mi100",
            "mi210",
            "mi250*",
            "mi3*",
            "rx*",
            "7900*",
            "tpu*",
            "gaudi*",
            "hpu",
            "xpu",
            "arc*",
        ],
        "only NVIDIA's cards under CUDA are simulated",
    ),
    // Of compute capability below 7.5, which PyTorch 2.11's wheels for CUDA 13 have no kernels for.
    (
        &[
            "k40", "k80", "m40", "m60", "p4", "p40", "p100*", "titanx*", "titanv", "gtx9*",
            "gtx10*", "1050*", "1060*", "1070*", "1080*",
        ],
        "it is not in the catalogue, and PyTorch 2.11's wheels for CUDA 13 do not run on it; v100-16g under a memory limit, that of the \
         card less 1 GiB, is the nearest",
    ),
    (
        &[
            "gtx16*",
            "1650*",
            "1660*",
            "rtx2050",
            "rtx2060*",
            "2060*",
            "rtx2070*",
            "2070*",
            "rtx2080",
            "rtx2080super",
            "2080",
            "2080super",
            "quadrort*",
        ],
        "it is not in the catalogue: take t4, of its generation, under a memory limit, that of the card less 1 GiB",
    ),
    (
        &[
            "a2",
            "a16",
            "a800*",
            "h800*",
            "l20",
            "l2",
            "rtx3050*",
            "3050*",
            "rtx4050*",
            "4050*",
            "rtx4070ti",
            "4070ti",
            "rtx4090d",
            "4090d",
            "rtx5060",
            "5060",
            "rtxa2000",
            "a2000",
            "rtxa4500",
            "a4500",
            "rtxa5500",
            "a5500",
        ],
        "it is not in the catalogue: take one of its generation with at least as much memory, which `batchfit cards` lists, under a memory \
         limit, that of the card less 1 GiB",
    ),
];

/// A name without what people write differently: case, dashes, spaces.
fn plain(name: &str) -> String {
    let kept = shorten(name).to_lowercase();
    let kept = kept.strip_prefix("sim:").unwrap_or(&kept);
    kept.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// What to say of a card that is known not to be simulated; a size such as `24GB` among them.
pub(crate) fn absent(pointer: &str, name: &str) -> Option<Invalid> {
    let plain = plain(name);
    let size = plain
        .strip_suffix("gb")
        .or_else(|| plain.strip_suffix("gib"));
    let is_size = size.is_some_and(|size| size.parse::<u64>().is_ok());
    let is = |word: &&str| match word.strip_suffix('*') {
        Some(beginning) => plain.starts_with(beginning),
        None => plain == *word,
    };
    let found = ABSENT
        .iter()
        .find(|(words, _)| words.iter().any(|word| is(word)));
    let advice = match found {
        _ if is_size => {
            "a size is no card: memory alone does not say what kernels take; name the card, and a memory limit with it"
        }
        found => found?.1,
    };
    Some(Invalid {
        value: Some(format!("{:?}", shorten(name))),
        ..Invalid::at(
            pointer,
            format!("unknown card {:?}; {advice}", shorten(name)),
        )
    })
}

/// The card that a name is a misspelling of: with the same numbers but for a digit too many, and letters that differ in one where there
/// are several.
pub(crate) fn misspelt<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let parts = |name: &str| {
        let plain = plain(name);
        let start = plain.find(|c: char| c.is_ascii_digit())?;
        let rest = &plain[start..];
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        Some((
            plain[..start].to_owned(),
            rest[..end].to_owned(),
            rest[end..].to_owned(),
        ))
    };
    let (letters, digits, suffix) = parts(name)?;
    let is_meant = |known: &&&str| {
        let Some((of, number, after)) = parts(known) else {
            return false;
        };
        let same_letters =
            letters == of || of.len() > 1 && strsim::damerau_levenshtein(&letters, &of) == 1;
        let one_too_many =
            digits.len() == number.len() + 1 && strsim::levenshtein(&digits, &number) == 1;
        same_letters && suffix == after && (digits == number || one_too_many)
    };
    known.iter().find(is_meant).copied()
}

/// A card that nobody knows.
pub(crate) fn unknown(pointer: &str, what: &str, name: &str, known: &[&str]) -> Invalid {
    if let Some(absent) = absent(pointer, name) {
        return absent;
    }
    let nearest = misspelt(name, known);
    let said = format!("unknown {what} {:?}", shorten(name));
    Invalid {
        value: Some(format!("{:?}", shorten(name))),
        problem: match nearest {
            Some(_) => said,
            None => format!("{said}; `batchfit cards` lists those that there are"),
        },
        nearest: nearest.map(str::to_owned),
        pointer: pointer.to_owned(),
    }
}

//! Tables as files: compressed in blocks, so that a reader unpacks only the layers it is asked about.
//!
//! A file is several gzip members; decompressed one after the other they are the table's text. The first
//! holds everything before the layers, and for each of the others a line `block LENGTH LAYER LAYER ...`
//! with its compressed length and what it holds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read, Write as _};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

/// How many layers share a block: a model has a few dozen, seldom next to each other.
const LAYERS_A_BLOCK: usize = 64;

/// Packs a table's text into a file.
pub fn pack(text: &str) -> io::Result<Vec<u8>> {
    let mut head = String::new();
    let mut layers: Vec<(&str, String)> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with("block ")) {
        if let Some(layer) = line.strip_prefix("layer ") {
            layers.push((layer, String::new()));
        }
        let into = layers.last_mut().map_or(&mut head, |(_, text)| text);
        into.push_str(line);
        into.push('\n');
    }
    let mut blocks = Vec::new();
    for block in layers.chunks(LAYERS_A_BLOCK) {
        let text: String = block.iter().map(|(_, text)| text.as_str()).collect();
        let compressed = compress(&text)?;
        write!(head, "block {}", compressed.len()).expect("writing to a string cannot fail");
        for (layer, _) in block {
            write!(head, " {layer}").expect("writing to a string cannot fail");
        }
        head.push('\n');
        blocks.push(compressed);
    }
    let mut file = compress(&head)?;
    file.extend(blocks.concat());
    Ok(file)
}

/// The whole text of a file, of at most 512 MiB: fifty times the largest that there is.
pub fn unpack(file: impl Read) -> io::Result<String> {
    let mut text = String::new();
    let mut bounded = MultiGzDecoder::new(file).take(LONGEST + 1);
    if bounded.read_to_string(&mut text)? as u64 > LONGEST {
        return Err(io::Error::other("it unpacks to more than 512 MiB"));
    }
    Ok(text)
}

/// Bytes of the text of a table.
const LONGEST: u64 = 512 << 20;

/// One table of several: provenance from the first, and each layer from the first that has it.
pub fn merge(tables: &[String]) -> String {
    let mut head = String::new();
    let mut grids: Vec<&str> = Vec::new();
    let mut layers: BTreeMap<Vec<u64>, String> = BTreeMap::new();
    for (number, table) in tables.iter().enumerate() {
        let mut own: Vec<usize> = Vec::new();
        let mut into: Option<&mut String> = None;
        for line in table.lines() {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "grid" => {
                    let known = grids.iter().position(|grid| *grid == rest);
                    own.push(known.unwrap_or_else(|| {
                        grids.push(rest);
                        grids.len() - 1
                    }));
                }
                "layer" => {
                    let key: Vec<u64> = rest.split(',').flat_map(str::parse).collect();
                    into = match layers.entry(key) {
                        std::collections::btree_map::Entry::Occupied(_) => None,
                        std::collections::btree_map::Entry::Vacant(free) => {
                            Some(free.insert(format!("{line}\n")))
                        }
                    };
                }
                "job" => {
                    let Some(into) = &mut into else { continue };
                    // `job PASS TYPE GRID |...`
                    let words: Vec<&str> = line.splitn(5, ' ').collect();
                    let grid = words.get(3).and_then(|grid| grid.parse::<usize>().ok());
                    let grid = grid.and_then(|grid| own.get(grid));
                    if let (Some(grid), [job, pass, dtype, _, lists]) = (grid, words.as_slice()) {
                        writeln!(into, "{job} {pass} {dtype} {grid} {lists}")
                            .expect("writing to a string cannot fail");
                    }
                }
                "block" => {}
                _ if number == 0 => {
                    head.push_str(line);
                    head.push('\n');
                }
                _ => {}
            }
        }
    }
    for grid in grids {
        writeln!(head, "grid {grid}").expect("writing to a string cannot fail");
    }
    head.extend(layers.into_values());
    head
}

fn compress(text: &str) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes())?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str =
        "batchfit workspaces 1\ncard a\ngrid 1-4\nlayer 2,1\njob forward f16 0 |0+0|0|0*4\n";
    const SECOND: &str = "batchfit workspaces 1\ncard b\ngrid 1-8\ngrid 1-4\nlayer 10,1\n\
        job forward f16 0 |0+0|0|0*8\nlayer 2,1\njob forward f16 1 |9+9|0|0*4\n";

    #[test]
    fn tables_are_merged_with_their_grids() {
        assert_eq!(
            merge(&[FIRST.to_owned(), SECOND.to_owned()]),
            "batchfit workspaces 1\ncard a\ngrid 1-4\ngrid 1-8\nlayer 2,1\njob forward f16 0 |0+0|0|0*4\n\
             layer 10,1\njob forward f16 1 |0+0|0|0*8\n"
        );
    }

    #[test]
    fn nothing_merges_to_nothing() {
        assert_eq!(merge(&[]), "");
    }

    #[test]
    fn a_packed_table_unpacks_to_its_text_and_its_blocks() {
        let file = pack(FIRST).unwrap();
        let text = unpack(file.as_slice()).unwrap();
        let without: String = text
            .lines()
            .filter(|line| !line.starts_with("block "))
            .flat_map(|line| [line, "\n"])
            .collect();
        assert_eq!(without, FIRST);
        assert!(text.contains(" 2,1\nlayer 2,1\n"), "{text}");
    }
}

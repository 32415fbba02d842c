//! Names a question by what it asks, so that the same question is answered once.

use std::fmt::{self, Write};

use sha2::{Digest, Sha256};

use super::request::Request;
use crate::graph::Graph;

/// SHA-256 in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

impl Request {
    /// A digest of everything that the answer depends on; `graph` is this request's model.
    ///
    /// The graph counts, not how it was described: a preset, the same layers and the same model exported
    /// are one question. Names of values do not matter; paths of modules do, since reports speak of them.
    pub fn fingerprint(&self, graph: &Graph) -> String {
        let mut hash = Hash(Sha256::new());
        let canonical = self.write_canonical(graph, &mut hash);
        canonical.expect("hashing accepts every text");
        hexadecimal(&hash.0.finalize())
    }

    fn write_canonical(&self, graph: &Graph, to: &mut impl Write) -> fmt::Result {
        writeln!(to, "batchfit 1")?;
        for value in &graph.values {
            writeln!(to, "value {} {:?}", value.dtype, value.shape)?;
        }
        for module in &graph.modules {
            writeln!(to, "module {:?} {:?}", module.path, module.parent)?;
        }
        for parameter in &graph.parameters {
            writeln!(to, "{parameter:?}")?;
        }
        writeln!(
            to,
            "{:?} {:?} {:?}",
            graph.inputs, graph.prediction, graph.loss
        )?;
        for node in &graph.nodes {
            writeln!(to, "{node:?}")?;
        }
        for variant in &self.variants {
            writeln!(to, "{variant:?}")?;
        }
        writeln!(
            to,
            "{:?} {:?} {:?} {} {:?} {:?}",
            self.device,
            self.memory_limit,
            self.target_batch,
            self.world_size,
            self.allocator,
            self.search
        )
    }
}

/// Feeds what is written to it into a digest.
struct Hash(Sha256);

impl Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

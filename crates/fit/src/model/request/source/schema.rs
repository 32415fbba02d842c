//! How a model may be described, for the OpenAPI document.
//!
//! Nothing here is read from JSON: `batchfit-models` does that, with better messages than derived code gives.

#![expect(dead_code, reason = "these types are only described, never made")]

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// A model, described in exactly one way.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Model)]
#[expect(clippy::large_enum_variant, reason = "for its schema alone")]
pub(crate) enum ModelSchema {
    /// A well-known model by name, with overrides: see `GET /v1/presets`.
    #[schema(title = "Preset")]
    Preset {
        #[schema(example = "resnet50")]
        preset: String,
        /// Height and width of the images: one number, or `[height, width]`.
        image_size: Option<Value>,
        #[schema(minimum = 1)]
        num_classes: Option<u64>,
        #[schema(minimum = 1)]
        in_channels: Option<u64>,
        /// Tokens of a sample; models of the Hugging Face hub also take the other members of `HuggingFace`.
        #[schema(minimum = 1)]
        seq_len: Option<u64>,
    },
    /// A list of layers.
    #[schema(title = "Layers")]
    Layers {
        /// Layers by PyTorch's names, such as
        /// `{"type": "conv2d", "name": "conv1", "out_channels": 64, "kernel_size": 3}`.
        layers: Vec<Value>,
        /// One sample, such as `{"shape": [3, 32, 32]}`; `"dtype": "int64"` for token ids.
        input: Value,
        /// `cross_entropy`.
        loss: Option<String>,
    },
    /// What `torch.export` serializes for the model with its loss.
    #[schema(title = "Exported")]
    Exported {
        /// The graph itself, an object; or the digest of one that was uploaded, such as
        /// `sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08`: see `PUT /v1/graphs/{digest}`.
        exported: ExportedSchema,
        /// Tokens of a sample, where the graph leaves open besides the batch how long samples are.
        #[schema(minimum = 1)]
        seq_len: Option<u64>,
    },
    /// A Hugging Face config, and what it leaves open.
    #[schema(title = "HuggingFace")]
    HuggingFace {
        /// The contents of its `config.json`; the class is the first of `architectures`.
        #[schema(value_type = Object)]
        hf: Value,
        /// Tokens of a sample, or samples or frames of sound.
        #[schema(minimum = 1)]
        seq_len: Option<u64>,
        /// Tokens of an answer, for models with an encoder and a decoder.
        #[schema(minimum = 1)]
        target_len: Option<u64>,
        /// Causal language models: into how many chunks the tokens of the loss are divided, each under a checkpoint, so that the
        /// logits of all tokens are never there at once.
        #[schema(minimum = 1, maximum = 256)]
        loss_chunks: Option<u64>,
        /// Height and width of images, where they are not the config's: one number, or `[height, width]`.
        image_size: Option<Value>,
        /// What parameters are loaded in: `fp32`, `bf16` or `fp16`; by default what the precision trains in, and under autocast the type of
        /// the config, as `from_pretrained` of transformers 5 does.
        #[schema(pattern = "^(fp32|bf16|fp16)$")]
        param_dtype: Option<String>,
        /// Low-rank adapters of PEFT, for causal language models: `r`, `lora_alpha`, `lora_dropout`, `use_rslora`, and
        /// `target_modules`, a list of names or `all-linear`; PEFT's defaults for what is missing. Or `r` alone: 16.
        #[schema(value_type = Option<Value>, example = json!({"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]}))]
        lora: Option<Value>,
        /// Parameters, or modules with all that is in them, that are not trained: `*` stands for anything but a dot,
        /// `**` for anything.
        frozen: Option<Vec<String>>,
        /// Whether texts are padded to the longest of their batch, so that attention has a mask.
        padded: Option<bool>,
        /// Which head a model of text has, of those that its family has; by default the class's own.
        #[schema(
            pattern = "^(causal_lm|masked_lm|sequence_classification|token_classification|question_answering)$"
        )]
        task: Option<String>,
        /// How many classes a classifier tells apart, where it is not the config's.
        #[schema(minimum = 1)]
        num_labels: Option<u64>,
        /// The function of attention, as transformers calls it; before the config's, and `sdpa` without either.
        #[schema(pattern = "^(sdpa|eager|flash_attention_2|flash_attention_3)$")]
        attn_implementation: Option<String>,
    },
    /// Recordings of PyTorch's allocator at several batches, in the place of a model; they decide precision, optimizer and
    /// checkpointing.
    #[schema(title = "Recorded")]
    Recorded {
        /// 1 to 32 recordings: each as the digest of an upload, or all of them as text.
        recorded: Vec<String>,
        /// The batch of each recording, where it does not say it itself: memory snapshots.
        batches: Option<Vec<u64>>,
    },
}

/// A graph, or the digest of one.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ExportedGraph)]
pub(crate) enum ExportedSchema {
    /// The JSON that `torch.export` serializes.
    #[schema(title = "Graph", value_type = Object)]
    Graph(Value),
    /// The digest of an upload: `sha256:` and 64 hexadecimal digits.
    #[schema(title = "Digest")]
    Digest(String),
}

"""Sound: speech recognition, synthesis, separation and codecs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import model

TA, HF = "torchaudio", "transformers"


def ctc(model, x, lengths, target, target_lengths):
    """Connectionist temporal classification of log probabilities, time first."""
    out = model(x)
    return F.ctc_loss(out.log_softmax(-1).transpose(0, 1), target, lengths, target_lengths)


CTC = ("lengths=i64[B]=100", "target=i64[B,20]=1", "target_lengths=i64[B]=20")


@model("torchaudio-conformer", TA, "x=f32[B,100,80]", "lengths=i64[B]=100", "y=f32[B,100,80]", loss=lambda m, x, lengths, y: F.l1_loss(m(x, lengths)[0], y), on_gpu=True)
def conformer():
    from torchaudio.models import Conformer

    return Conformer(input_dim=80, num_heads=4, ffn_dim=128, num_layers=2, depthwise_conv_kernel_size=31)


@model("torchaudio-wav2vec2", TA, "x=f32[B,16000]", "y=i64[B]", loss=lambda m, x, y: F.cross_entropy(m(x)[0].mean(1), y), batches=(2, 8), on_gpu=True)
def wav2vec2():
    from torchaudio.models import wav2vec2_model

    return wav2vec2_model(extractor_mode="group_norm", extractor_conv_layer_config=None, extractor_conv_bias=False, encoder_embed_dim=128, encoder_projection_dropout=0.1, encoder_pos_conv_kernel=128, encoder_pos_conv_groups=16, encoder_num_layers=2, encoder_num_heads=4, encoder_attention_dropout=0.1, encoder_ff_interm_features=256, encoder_ff_interm_dropout=0.1, encoder_dropout=0.1, encoder_layer_norm_first=False, encoder_layer_drop=0.1, aux_num_out=32)


@model("torchaudio-hdemucs", TA, "x=f32[B,2,44100]", "y=f32[B,4,2,44100]", loss="mse", batches=(1, 4), on_gpu=True)
def hdemucs():
    from torchaudio.models import HDemucs

    return HDemucs(sources=["a", "b", "c", "d"], channels=16, nfft=2048, depth=5)


@model("torchaudio-convtasnet", TA, "x=f32[B,1,8000]", "y=f32[B,2,8000]", loss="mse", on_gpu=True)
def conv_tasnet():
    from torchaudio.models import ConvTasNet

    return ConvTasNet(num_sources=2, enc_num_feats=64, msk_num_feats=32, msk_num_hidden_feats=64, msk_num_layers=4, msk_num_stacks=2)


@model("torchaudio-deepspeech", TA, "x=f32[B,1,100,80]", *CTC, loss=ctc)
def deepspeech():
    from torchaudio.models import DeepSpeech

    return DeepSpeech(n_feature=80, n_hidden=128, n_class=40)


@model("torchaudio-wav2letter", TA, "x=f32[B,1,16000]", "y=i64[B]", loss=lambda m, x, y: F.nll_loss(m(x).mean(-1), y), on_gpu=True)
def wav2letter():
    from torchaudio.models import Wav2Letter

    return Wav2Letter(num_classes=40)


@model("torchaudio-wavernn", TA, "x=f32[B,1,2000]", "spec=f32[B,1,80,14]", "y=i64[B,2000]", loss=lambda m, x, spec, y: F.cross_entropy(m(x, spec).flatten(0, 2), y.flatten()), batches=(2, 8))
def wavernn():
    from torchaudio.models import WaveRNN

    return WaveRNN(upsample_scales=[5, 5, 8], n_classes=64, hop_length=200, n_res_block=2, n_rnn=64, n_fc=64, n_freq=80, n_hidden=32, n_output=32)


@model("torchaudio-tacotron2", TA, "tokens=i64[B,30]", "lengths=i64[B]=30", "mel=f32[B,80,60]", "mel_lengths=i64[B]=60", loss=lambda m, tokens, lengths, mel, mel_lengths: F.mse_loss(m(tokens, lengths, mel, mel_lengths)[1], mel))
def tacotron2():
    from torchaudio.models import Tacotron2

    return Tacotron2(symbol_embedding_dim=64, encoder_embedding_dim=64, decoder_rnn_dim=64, attention_rnn_dim=64, prenet_dim=32, postnet_n_convolution=3, postnet_embedding_dim=64)


@model("torchaudio-emformer", TA, "x=f32[B,64,80]", "lengths=i64[B]=60", loss=lambda m, x, lengths: m(x, lengths)[0].square().mean())
def emformer():
    from torchaudio.models import Emformer

    return Emformer(input_dim=80, num_heads=4, ffn_dim=128, num_layers=2, segment_length=16, right_context_length=4)


@model("torchaudio-rnnt", TA, "x=f32[B,68,80]", "lengths=i64[B]=64", "targets=i64[B,16]", "target_lengths=i64[B]=16", loss=lambda m, x, lengths, targets, target_lengths: m(x, lengths, targets, target_lengths)[0].logsumexp(-1).mean())
def rnnt():
    from torchaudio.models.rnnt import emformer_rnnt_model

    return emformer_rnnt_model(input_dim=80, encoding_dim=64, num_symbols=40, segment_length=16, right_context_length=4, time_reduction_input_dim=32, time_reduction_stride=4, transformer_num_heads=4, transformer_ffn_dim=128, transformer_num_layers=2, transformer_dropout=0.1, transformer_activation="gelu", transformer_left_context_length=8, transformer_max_memory_size=0, transformer_weight_init_scale_strategy="depthwise", transformer_tanh_on_mem=True, symbol_embedding_dim=32, num_lstm_layers=1, lstm_layer_norm=True, lstm_layer_norm_epsilon=1e-3, lstm_dropout=0.1)


@model("torchaudio-melspectrogram-classifier", TA, "x=f32[B,16000]", "y=i64[B]", on_gpu=True)
def mel_classifier():
    from torchaudio.transforms import AmplitudeToDB, MelSpectrogram

    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.features = torch.nn.Sequential(MelSpectrogram(n_fft=512, n_mels=64), AmplitudeToDB())
            self.body = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 10))

        def forward(self, x):
            return self.body(self.features(x)[:, None])

    return Classifier()


@model("transformers-whisper", HF, "input_features=f32[B,80,200]", "decoder_input_ids=i64[B,32]", "labels=i64[B,32]", loss="model", on_gpu=True)
def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    return WhisperForConditionalGeneration(WhisperConfig(vocab_size=500, d_model=96, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=192, decoder_ffn_dim=192, max_source_positions=100, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1))


@model("transformers-wav2vec2-ctc", HF, "input_values=f32[B,16000]", "labels=i64[B,20]=1", loss="model", batches=(2, 8))
def hf_wav2vec2():
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    return Wav2Vec2ForCTC(Wav2Vec2Config(hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=192, conv_dim=(64,) * 7, num_conv_pos_embeddings=32, num_conv_pos_embedding_groups=4, mask_time_prob=0.0))


@model("transformers-hubert-classifier", HF, "input_values=f32[B,16000]", "labels=i64[B]", loss="model", batches=(2, 8))
def hubert():
    from transformers import HubertConfig, HubertForSequenceClassification

    return HubertForSequenceClassification(HubertConfig(hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=192, conv_dim=(64,) * 7, num_conv_pos_embeddings=32, num_conv_pos_embedding_groups=4, apply_spec_augment=False))


@model("transformers-ast", HF, "input_values=f32[B,128,128]", "labels=i64[B]", loss="model")
def ast():
    from transformers import ASTConfig, ASTForAudioClassification

    return ASTForAudioClassification(ASTConfig(hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=192, max_length=128))


@model("transformers-encodec", HF, "x=f32[B,1,8000]", loss=lambda m, x: (m.decoder(m.encoder(x))[..., :8000] - x).abs().mean(), on_gpu=True)
def encodec():
    from transformers import EncodecConfig, EncodecModel

    return EncodecModel(EncodecConfig(hidden_size=32, num_filters=8, upsampling_ratios=[5, 4, 2], codebook_dim=32))


@model("transformers-vits-text-encoder", HF, "ids=i64[B,40]", "mask=f32[B,40,1]", loss=lambda m, ids, mask: m.text_encoder(ids, mask).last_hidden_state.square().mean())
def vits():
    from transformers import VitsConfig, VitsModel

    return VitsModel(VitsConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=2, ffn_dim=96, flow_size=48, spectrogram_bins=65))


@model("speechbrain-ecapa", "speechbrain", "x=f32[B,100,80]", "y=i64[B]", loss=lambda m, x, y: F.cross_entropy(m(x).squeeze(1), y), on_gpu=True)
def ecapa():
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN

    return ECAPA_TDNN(80, lin_neurons=64, channels=[64, 64, 64, 64, 192], attention_channels=32)


@model("speechbrain-crdnn", "speechbrain", "x=f32[B,100,40]", "y=f32[B,100,64]", loss="mse")
def crdnn():
    from speechbrain.lobes.models.CRDNN import CRDNN

    return CRDNN(input_shape=[None, None, 40], cnn_channels=(16, 32), rnn_layers=2, rnn_neurons=64, dnn_neurons=64, time_pooling=False)


@model("conformer-lucidrains", "conformer", "x=f32[B,128,96]", "y=f32[B,128,96]", loss="mse")
def lucidrains_conformer():
    from conformer import Conformer

    return Conformer(dim=96, depth=2, dim_head=32, heads=4, ff_mult=4, conv_expansion_factor=2, conv_kernel_size=31, attn_dropout=0.1, ff_dropout=0.1, conv_dropout=0.1)


@model("encodec-meta", "encodec", "x=f32[B,1,8000]", loss=lambda m, x: (m.decoder(m.encoder(x))[..., :8000] - x).abs().mean())
def encodec_meta():
    from encodec.modules import SEANetDecoder, SEANetEncoder

    class Codec(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = SEANetEncoder(n_filters=8, dimension=32, ratios=[5, 4, 2])
            self.decoder = SEANetDecoder(n_filters=8, dimension=32, ratios=[5, 4, 2])

    return Codec()
